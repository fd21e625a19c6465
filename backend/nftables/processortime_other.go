//go:build !linux

package nftables

import "time"

// processorTime returns 0: there is no dataplane outside of Linux.
func processorTime() time.Duration { return 0 }
