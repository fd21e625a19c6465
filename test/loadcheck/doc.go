// Package loadcheck sends numbered connections through a lab, thousands a second. It counts connections that were
// lost, reset or delivered to an endpoint that the oracle does not allow, and measures the longest gap.
//
// A [Counter] runs streams. Each stream makes new connections from one host to one address at a steady pace, whether the earlier
// ones have been answered or not, and keeps some connections open on which it sends numbered requests. [Serve] starts servers that
// say who they are and repeat the numbers. A [Ledger] knows which states of the cluster count when: while a change is under way
// both the old and the new one do. Nothing here knows what kind of proxy is in between.
//
// Times are the client's, monotonic. On a busy machine its scheduler makes gaps too. So some streams are a control:
// they connect to a plain address, the same way and at the same time. On each processor a thread also sleeps and
// measures how late it wakes up. A gap is only held against the proxy as far as neither had one then; see [Gap]. The
// package exists on Linux only.
package loadcheck
