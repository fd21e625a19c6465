// Package chaos injects faults for a proxy while thousands of connections a second go through it, and reports their outcome.
//
// A scenario is one kind of fault, such as killing the process, flushing its rules or replacing every endpoint. Each scenario has a lab of
// its own with a small cluster, whose services are called by pods, by the node and from outside. A [Subject] is the proxy under test, a
// real process on the lab's node, with the way in which it learns about the cluster. Package loadcheck makes the load and counts outcomes.
// The oracle says, for each connection, who may answer.
//
// Packets show whether a change has arrived. Each change also moves a service called mark. Once connections to it show the move, all
// earlier changes count. So all kinds of proxies are measured alike. The package exists on Linux only.
package chaos
