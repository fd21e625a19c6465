//go:build !linux

package flowcutter

import "time"

// processorTime returns 0: there is no dataplane outside of Linux.
func processorTime() time.Duration { return 0 }
