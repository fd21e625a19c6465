// Package chaos injects faults for a proxy while thousands of connections a second go through it, and reports their outcome.
//
// A scenario is one kind of fault: the process is killed, its rules are flushed, every endpoint is replaced. Each scenario has a lab of
// its own, with a small cluster whose services are called by pods, by the node and from outside. A [Subject] is the proxy under
// test, a real process on the lab's node, and the way on which it learns of the cluster. Package loadcheck makes the load and
// counts; the oracle says, for each connection, who may answer.
//
// Packets show whether a change has arrived: each change also moves a service called mark, and once connections to it
// show that, all earlier changes count. So all kinds of proxies are measured alike. The package exists on Linux only.
package chaos
