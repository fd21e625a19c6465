// Package confine runs the program with the privileges that the manifests and units in deploy give it, and no others.
package confine
