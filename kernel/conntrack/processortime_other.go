//go:build !linux

package conntrack

import "time"

// threadClock returns 0 at all times: there is no dataplane with flows outside of Linux.
func threadClock() func() time.Duration { return func() time.Duration { return 0 } }
