package usage

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Thread returns the processor time that the calling thread has taken.
func Thread() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // which cannot fail
	return time.Duration(t.Nano())
}

// Process returns the processor time that this process has taken.
func Process() time.Duration { return used(unix.RUSAGE_SELF) }

// Family returns the processor time that this process and its children have taken. Children count when they have ended.
func Family() time.Duration { return Process() + used(unix.RUSAGE_CHILDREN) }

func used(who int) time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(who, &r) // which cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// Files returns the number of files that this process has open.
func Files(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
