package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RSS returns the resident memory of this process in bytes.
func RSS() (uint64, error) {
	now, _, err := residentMemory()
	return now, err
}

// residentMemory returns the resident memory of this process in bytes, and the most that it ever was.
func residentMemory() (now, peak uint64, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0, err
	}
	if now, err = parseStatus(string(status), "VmRSS"); err != nil {
		return 0, 0, err
	}
	peak, err = parseStatus(string(status), "VmHWM")
	return now, peak, err
}

// forgetPeak has the most memory that this process ever had be what it has now.
func forgetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// parseStatus finds a line such as "VmRSS:     1234 kB".
func parseStatus(status, name string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/self/status: %s: %w", name, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", name)
}

// processCPU is how long this process has computed.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allowFiles raises the limit of open files of this process, and of those that it starts, to n at least.
func allowFiles(n int) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if l.Cur >= uint64(n) {
		return nil
	}
	raised := syscall.Rlimit{Cur: uint64(n), Max: max(l.Max, uint64(n))}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err != nil {
		return fmt.Errorf("the limit of open files is %d, and must be %d: %w: raise the hard limit with ulimit -Hn", l.Max, n, err)
	}
	return nil
}
