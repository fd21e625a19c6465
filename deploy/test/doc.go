// Package test checks what is in deploy: that the Helm chart and the Kustomize base are the same, that the API server accepts
// them, that they fit the program, and that images can be read by others.
//
// It is a module of its own, so that nothing that others import depends on what it needs.
package test
