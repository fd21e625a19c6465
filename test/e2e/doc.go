// Package e2e checks Switchyard against real Kubernetes. `make e2e` lets a real API server drive it through every
// story of the conformance suite. `make differential` compares it with upstream kube-proxy packet by packet, and
// `make compare` measures both.
//
// It is a module of its own, so that its dependencies are not dependencies of importable packages.
package e2e
