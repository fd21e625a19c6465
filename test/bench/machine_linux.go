package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RSS returns the resident memory of this process in bytes.
func RSS() (uint64, error) {
	now, _, err := residentMemory(os.Getpid())
	return now, err
}

// residentMemory returns the resident memory of a process in bytes, and the most that it ever was.
func residentMemory(pid int) (now, peak uint64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		now, err = parseStatus(string(status), "VmRSS")
	}
	if err == nil {
		peak, err = parseStatus(string(status), "VmHWM")
	}
	return now, peak, err
}

// forgetPeak resets the peak memory of this process to its current memory.
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

// Machine is where and when figures were measured.
type Machine struct {
	CPUs       int       `json:"cpus"`
	Kernel     string    `json:"kernel"`
	Go         string    `json:"go"`
	Time       time.Time `json:"time"`
	LoadBefore string    `json:"loadAverageBefore"`
	LoadAfter  string    `json:"loadAverageAfter"`
}

func thisMachine() (m Machine, err error) {
	var name syscall.Utsname
	if err := syscall.Uname(&name); err != nil {
		return m, os.NewSyscallError("uname", err)
	}
	for _, c := range name.Release {
		if c == 0 {
			break
		}
		m.Kernel += string(rune(c))
	}
	m.CPUs, m.Go, m.Time = runtime.NumCPU(), runtime.Version(), time.Now().UTC()
	m.LoadBefore, err = loadAverage()
	return m, err
}

func (m *Machine) String() string {
	return fmt.Sprintf("%d CPUs, Linux %s, %s, %s, load average %s before and %s after", m.CPUs, m.Kernel, m.Go, m.Time.Format(time.DateOnly), m.LoadBefore, m.LoadAfter)
}

// loadAverage returns how busy the machine was in the last minute.
func loadAverage() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(text), " ")
	return average, err
}
