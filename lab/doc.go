// Package lab shows how ordinary manifests affect connections. It runs them in a lab, connects to everything that
// they serve from every kind of client, compares the results with the oracle, and draws them.
//
// Measurements go through all of production's stages: completed objects, brain, store, reconciler, dataplane, kernel.
// The package exists on Linux only.
package lab
