//go:build !windows

package client

// DefaultTarget is where a server on the same node listens.
const DefaultTarget = "unix:///run/switchyard/api.sock"
