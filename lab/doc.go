// Package lab shows how ordinary manifests affect connections. It runs the manifests in a lab and connects to
// everything that they serve, from every kind of client. It compares the results with the oracle and draws them.
//
// Measurements go through all of production's stages: completed objects, brain, store, reconciler, dataplane, kernel.
// The package exists on Linux only.
package lab
