//go:build linux

// Package figures reads what processes and the machine use, for the programs that measure.
package figures

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RSS returns the resident memory of a process in MiB.
func RSS(pid int) (float64, error) { return Status(pid, "VmRSS") }

// Status returns a line of a process's status, such as VmHWM, in MiB.
func Status(pid int, field string) (float64, error) {
	return line(fmt.Sprintf("/proc/%d/status", pid), field)
}

// Available returns how much memory new programs can get without swapping, in MiB.
func Available() (float64, error) { return line("/proc/meminfo", "MemAvailable") }

// line returns a line such as "VmRSS:     1234 kB" of a file in MiB.
func line(path, field string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, field)
}

// CPU returns the processor time of a process and of the programs that it ran and waited for, such as nft.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the program's name, is in parentheses and may hold spaces; the third follows.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const utime, cstime = 11, 14 // counted from the third field
	if len(fields) <= cstime {
		return 0, fmt.Errorf("process %d: unexpected stat %q", pid, text)
	}
	return sum(fields[utime : cstime+1])
}

// Idle returns the time that all processors of the machine have been idle.
func Idle() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(first)
	const idle, iowait = 4, 5
	if len(fields) <= iowait {
		return 0, fmt.Errorf("/proc/stat: unexpected %q", first)
	}
	return sum(fields[idle : iowait+1])
}

// sum adds numbers of clock ticks.
func sum(fields []string) (time.Duration, error) {
	const perSecond = 100 // USER_HZ is 100 everywhere
	var ticks int64
	for _, field := range fields {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// Percentile returns a percentile in milliseconds, such as 0.99, and 0 of an empty list. It sorts the list.
func Percentile(list []time.Duration, p float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	i := min(int(p*float64(len(list))), len(list)-1)
	return float64(list[i].Microseconds()) / 1000
}

// Machine names what figures depend on.
func Machine() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d CPUs, Linux %s, %s, load average before the run %.2f", runtime.NumCPU(), unix.ByteSliceToString(name.Release[:]), runtime.Version(), Load())
}

// Load returns the load average of the last minute, 0 where it cannot be read.
func Load() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(average, 64)
	return load
}
