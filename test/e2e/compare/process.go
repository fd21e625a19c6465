//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// rss returns the resident memory of a process in MiB.
func rss(pid int) (float64, error) { return status(pid, "VmRSS") }

// status returns a line of a process's status in MiB.
func status(pid int, field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}

// cpu returns the processor time of a process and of the programs that it ran and waited for, such as nft.
func cpu(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the program's name, is in parentheses and may hold spaces; the third follows.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const utime, cstime, perSecond = 11, 14, 100 // counted from the third field; USER_HZ is 100 everywhere
	if len(fields) <= cstime {
		return 0, fmt.Errorf("process %d: unexpected stat %q", pid, text)
	}
	var ticks int64
	for _, field := range fields[utime : cstime+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// describeMachine names what figures depend on.
func describeMachine() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	load, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d CPUs, Linux %s, %s, load average before the run %s", runtime.NumCPU(), unix.ByteSliceToString(name.Release[:]), runtime.Version(), average)
}
