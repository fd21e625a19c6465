//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// GoFirst gives all present and future threads of this process priority over other threads. The load must measure the proxy, not its own
// wait for a processor. Processes that a scenario starts get no priority unless they carry the load. The goroutine of a scenario gets none
// either.
//
// For the same reason GoFirst leaves the sharing of processors to the kernel. The kernel shares them by the microsecond, while Go's
// scheduler takes 10 ms. It also collects garbage only when the garbage fills half of the free memory. The collector has a thread for every
// four other threads, and together they keep all processors busy for some 80 ms.
func GoFirst() error {
	const threads, least = 64, 2 << 30 // more threads than streams
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return os.NewSyscallError("sysinfo", err)
	}
	runtime.GOMAXPROCS(threads)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(max(least, int64(info.Freeram)*int64(info.Unit)/2))
	return schedulePID(os.Getpid(), unix.SCHED_RR)
}

// AsOthers takes from a process the priority that it has inherited from this one. It is called right after the start.
func AsOthers(pid int) error { return schedulePID(pid, unix.SCHED_NORMAL) }

func schedulePID(pid, policy int) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			if err := schedule(tid, policy); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("change who runs first (CAP_SYS_NICE is required): %w", err)
			}
		}
	}
	return nil
}

// asOthers runs fn on a thread that is not preferred, nor are the programs that it starts.
func asOthers(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its priority
		err := schedule(0, unix.SCHED_NORMAL)
		if err == nil {
			err = fn()
		}
		result <- err
	}()
	return <-result
}

// schedule sets the policy of a thread, 0 being the calling one.
func schedule(tid, policy int) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: uint32(policy)}
	if policy == unix.SCHED_RR {
		attr.Priority = 1
	}
	return os.NewSyscallError("sched_setattr", unix.SchedSetAttr(tid, &attr, 0))
}
