package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RSS returns the resident memory of this process in bytes.
func RSS() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	return parseRSS(string(status))
}

// parseRSS finds the line "VmRSS:     1234 kB".
func parseRSS(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/self/status: VmRSS: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmRSS")
}
