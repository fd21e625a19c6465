// Package clusterv1 is the code of the protocol between relays, generated from cluster.proto by make proto.
package clusterv1
