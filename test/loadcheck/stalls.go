//go:build linux

package loadcheck

import (
	"context"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// askEvery is how often a processor is asked whether it runs anything.
const askEvery = 500 * time.Microsecond

// stallsOf watches a processor until ctx ends. It returns the times, of a millisecond or more, in which a thread of the load would have had
// to wait for the processor. In such a time the kernel, the machine under it, or threads with priority keep it busy.
func stallsOf(ctx context.Context, cpu int) ([]wait, error) {
	runtime.LockOSThread() // and never unlocked, so that the thread and its settings end with this goroutine
	var only unix.CPUSet
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		return nil, os.NewSyscallError("sched_setaffinity", err)
	}
	var stalls []wait
	sleep := unix.NsecToTimespec(int64(askEvery))
	for ctx.Err() == nil {
		due := time.Now().Add(askEvery)
		_ = unix.Nanosleep(&sleep, nil) // less after a signal
		if w := (wait{since: due, until: time.Now()}); w.length() >= worthKeeping {
			stalls = append(stalls, w)
		}
	}
	return stalls, nil
}
