// Package ctusage reads how full the kernel's connection tracking table is.
package ctusage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// The shares of the table, in percent, from which new connections are at risk. The kernel drops the first packet of a
// connection that finds the table full.
const (
	// NearlyFull is a warning: a burst of connections can fill the rest.
	NearlyFull = 75
	// Full is a fault: packets are dropped now, or will be with the next burst.
	Full = 95
)

// Read returns the number of entries that the calling thread's network namespace holds, and the most that it may hold.
// Without connection tracking in the kernel both are 0. A limit of 0 is none.
func Read() (count, limit int, err error) { return ReadFS(os.DirFS("/")) }

// ReadFS is [Read] from a file system that has /proc as "proc".
func ReadFS(files fs.FS) (count, limit int, err error) {
	limit, err = number(files, "nf_conntrack_max")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	count, err = number(files, "nf_conntrack_count")
	return count, limit, err
}

// Percent returns how full a table with count of limit entries is, 0 if it has no limit.
func Percent(count, limit int) int {
	if limit <= 0 {
		return 0
	}
	return int(int64(count) * 100 / int64(limit))
}

func number(files fs.FS, name string) (int, error) {
	data, err := fs.ReadFile(files, "proc/sys/net/netfilter/"+name)
	if err != nil {
		return 0, fmt.Errorf("sysctl net.netfilter.%s: %w", name, err)
	}
	text := strings.TrimSpace(string(data))
	value, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("sysctl net.netfilter.%s: %q is no number", name, text)
	}
	return value, nil
}

// Meaning says what happens when the table is full.
const Meaning = "when the table is full, the kernel drops the first packets of new connections, to Services and elsewhere"

// Remedy says how to make room in a table of at most limit entries.
func Remedy(limit int) string {
	return fmt.Sprintf("raise conntrack.maxPerCore or conntrack.min in the configuration, or sysctl -w net.netfilter.nf_conntrack_max=%d; "+
		"look for clients that open many connections", 2*limit)
}

// Problem returns an error if the table is nearly full. It is nil if the table cannot be read.
func Problem() error { return problem(Read()) }

func problem(count, limit int, err error) error {
	share := Percent(count, limit)
	if err != nil || share < NearlyFull {
		return nil
	}
	return fmt.Errorf("%d of at most %d connections are tracked (%d%%): %s; %s", count, limit, share, Meaning, Remedy(limit))
}
