package conntrack

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadClock returns what tells the processor time that the calling thread has taken, to any thread. The calling goroutine must be locked to it.
func threadClock() func() time.Duration {
	// As MAKE_THREAD_CPUCLOCK of the kernel's include/linux/posix-timers.h has it: the bits for one thread, and for all that it has run.
	const thread, scheduled = 4, 2
	clock := int32(^unix.Gettid())<<3 | thread | scheduled
	return func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(clock, &t) // it cannot fail while the thread lives, and is 0 afterwards
		return time.Duration(t.Nano())
	}
}
