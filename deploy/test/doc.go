// Package test checks the contents of deploy. The Helm chart and the Kustomize base must be the same, the API server
// must accept them, and they must fit the program. Other programs must be able to read the images.
//
// It is a module of its own, so that its dependencies are not dependencies of importable packages.
package test
