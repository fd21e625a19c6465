//go:build linux

package chaos

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// processors is what all processors have done since the machine started, in ticks of the kernel.
type processors struct{ steal, all uint64 }

// readProcessors reads it, see proc_stat(5).
func readProcessors() (processors, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return processors{}, err
	}
	return parseProcessors(string(text))
}

func parseProcessors(text string) (p processors, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	const steal = 8 // after the name: user nice system idle iowait irq softirq steal; user and nice include the times of guests
	if len(fields) <= steal || fields[0] != "cpu" {
		return p, fmt.Errorf("/proc/stat begins with %q, want the times of cpu up to steal", line)
	}
	for i, field := range fields[1 : steal+1] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return p, fmt.Errorf("/proc/stat: field %d of cpu: %w", i+1, err)
		}
		p.all += n
		p.steal = n // the last one stays
	}
	return p, nil
}

// stealSince is the share of the time that the machine under this one has given to others.
func (p processors) stealSince(before processors) float64 {
	if p.all <= before.all {
		return 0
	}
	return float64(p.steal-before.steal) / float64(p.all-before.all)
}
