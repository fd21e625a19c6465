// Package alerts tests the alerts of deploy/prometheus: each one fires on its fault, and none in an hour of normal changes.
//
// The faults happen to real processes, and Prometheus' rule engine evaluates the alerts over samples that are really
// scraped. A virtual clock makes the tests short: it jumps by the scrape interval before each scrape, so an hour takes
// seconds. Points in time that a process exports are moved by the jumps since then. The process itself measures and
// waits in real time, so these tests wait for its reaction to a change before the clock jumps. With the flag -real, the
// clock does not jump, and changes come each second.
package alerts
