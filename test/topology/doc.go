// Package topology builds a throw-away two-node cluster out of network namespaces and sends real packets through it.
//
//	client .100      other node .2           node under test .1
//	     |               |    \ pods               |    \ pods
//	     +---------------+---------- switch -------+
//
// Each host is a network namespace. Pods hang off their node by a veth pair and are routed, as with a ptp CNI: pod-to-pod
// traffic on a node goes through the node's own routing. The client sends everything that is not on the underlay through the
// node under test, so any virtual address can be tried from outside. Answers of the other node's pods to the client go
// directly, without the node under test. Nothing of a lab outlives the process. The package exists on Linux only.
package topology
