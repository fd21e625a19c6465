package flowcutter

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime returns the processor time that the calling thread has taken.
func processorTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // which cannot fail
	return time.Duration(t.Nano())
}
