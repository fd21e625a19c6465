// Package lab shows what ordinary manifests do to connections: it runs them in a lab, connects to everything that they
// serve from every kind of client, compares what happens with what the oracle expects, and draws the result.
//
// Measurements go through all of production's stages: completed objects, brain, store, reconciler, dataplane, kernel.
// The package exists on Linux only.
package lab
