// Package client follows what one node must route, as a Switchyard server on the node tells it. It is all that a dataplane needs:
// Kubernetes' rules have been applied by the server, and nothing here knows an object of Kubernetes.
package client
