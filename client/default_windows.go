package client

// DefaultTarget is where a server on the same node listens.
const DefaultTarget = "npipe:////./pipe/switchyard"
