// Package topology builds a throw-away two-node cluster out of network namespaces and sends real packets through it.
//
//	client .100      other node .2           node under test .1
//	     |               |    \ pods               |    \ pods
//	     +---------------+---------- switch -------+
//
// Each host is a network namespace. A veth pair connects each pod to its node, and its packets are routed, as with a ptp CNI.
// So pod-to-pod traffic on a node uses the node's own routing. The client sends all packets that leave the underlay through
// the node under test, so that tests can use any virtual address from outside. Answers of the other node's pods to the client
// go directly, without the node under test. A third node, if there is one, is as the other node. Nothing of a lab outlives the
// process. The package exists on Linux only.
package topology
