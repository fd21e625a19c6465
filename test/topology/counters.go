//go:build linux

package topology

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Trouble is what the kernel has counted of a lab's hosts.
type Trouble map[*Host]counters

// Trouble reads the counters of all hosts that there are.
func (l *Lab) Trouble() Trouble {
	l.mu.Lock()
	hosts := slices.AppendSeq([]*Host{l.switchHost, l.node, l.other, l.client}, maps.Values(l.pods))
	l.mu.Unlock()
	t := Trouble{}
	for _, h := range hosts {
		t[h] = h.counters()
	}
	return t
}

// Since returns a line for each host that was also there before, and has dropped packets or could not answer them
// since then.
func (t Trouble) Since(before Trouble) (lines []string) {
	for h, c := range t {
		if was := before[h]; was != nil && c.since(was) != "" {
			lines = append(lines, h.Name+":"+c.since(was))
		}
	}
	slices.Sort(lines)
	return lines
}

// counters are the kernel's counters of one host, by name.
type counters map[string]uint64

// counters reads those that report packets that were dropped or could not be answered. Files that a kernel lacks are left out.
func (h *Host) counters() counters {
	c := counters{}
	_ = h.Do(func() error { // of a host that is gone there is nothing to be read
		for _, name := range []string{"snmp", "netstat"} {
			c.addPairs(readNet(name))
		}
		c.addLines(readNet("snmp6"))
		c.addTable("conntrack", readNet("stat/nf_conntrack"))
		c.addDevices(readNet("dev"))
		return nil
	})
	return c
}

// Retransmissions returns how many TCP segments the host has sent again, 0 if it is gone.
func (h *Host) Retransmissions() uint64 { return h.counters()["TcpRetransSegs"] }

func readNet(name string) []string {
	text, err := os.ReadFile("/proc/thread-self/net/" + name)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (c counters) add(name, value string, base int) {
	if n, err := strconv.ParseUint(value, base, 64); err == nil {
		c[name] += n
	}
}

// addPairs reads pairs of lines, "Udp: InDatagrams NoPorts" and "Udp: 12 3".
func (c counters) addPairs(lines []string) {
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j := 1; j < min(len(names), len(values)); j++ {
			c.add(names[0]+names[j], values[j], 10)
		}
	}
}

// addLines reads lines "Udp6NoPorts 3".
func (c counters) addLines(lines []string) {
	for _, line := range lines {
		if f := strings.Fields(line); len(f) == 2 {
			c.add(f[0], f[1], 10)
		}
	}
}

// addTable reads a line of names and one of hexadecimal values for each CPU.
func (c counters) addTable(prefix string, lines []string) {
	if len(lines) == 0 {
		return
	}
	names := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		values := strings.Fields(line)
		for j := range min(len(names), len(values)) {
			c.add(prefix+":"+names[j], values[j], 16)
		}
	}
}

// addDevices reads the drops of each device, the fourth number of both halves of a line of /proc/net/dev.
func (c counters) addDevices(lines []string) {
	for _, line := range lines {
		name, numbers, ok := strings.Cut(line, ":")
		if f := strings.Fields(numbers); ok && len(f) == 16 {
			c.add(strings.TrimSpace(name)+":rx-drop", f[3], 10)
			c.add(strings.TrimSpace(name)+":tx-drop", f[11], 10)
		}
	}
}

// interesting are parts of the names of counters that report trouble.
var interesting = []string{"drop", "Drop", "Err", "Discard", "NoRoute", "NoPorts", "AddrErr", "Overflow", "Retrans", "Timeout", "Unreach",
	"invalid", "insert_failed", "early_drop", "search_restart", "clash", "Abort", "OutRsts"}

// since returns the counters of trouble that have changed.
func (c counters) since(before counters) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		about := slices.ContainsFunc(interesting, func(part string) bool { return strings.Contains(name, part) })
		if now := c[name]; about && now != before[name] {
			fmt.Fprintf(&text, " %s+%d", name, now-before[name])
		}
	}
	return text.String()
}
