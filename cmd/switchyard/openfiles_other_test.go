//go:build !linux

package main

// limitOpenFiles is for tests that there are on Linux only.
func limitOpenFiles() {}
