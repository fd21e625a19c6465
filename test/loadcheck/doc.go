// Package loadcheck sends numbered connections through a lab, thousands a second. It counts connections that were lost, reset or delivered
// to an endpoint that the oracle does not allow, and measures the longest gap.
//
// A [Counter] runs streams. Each stream makes new connections from one host to one address at a steady pace, without waiting for answers.
// It also keeps some connections open and sends numbered requests on them. [Serve] starts servers that say who they are and repeat the
// numbers. A [Ledger] knows which states of the cluster count when. While a change is under way, both the old and the new state count. The
// package does not know the kind of the proxy.
//
// Times are the client's, monotonic. On a busy machine, the scheduler also makes gaps. So some streams are a control, which connects to a
// plain address in the same way and at the same time. On each processor, a thread also sleeps and measures how late it wakes up. A gap only
// counts against the proxy as far as neither the control nor such a thread has a gap then (see [Gap]). The package exists on Linux only.
package loadcheck
