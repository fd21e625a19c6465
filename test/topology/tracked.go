//go:build linux

package topology

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// TrackTimes lets connection tracking note from now on when an entry began. What [Host.Tracked] returns of it has a delta-time then, its age in seconds.
// Not all kernels can do that.
func (h *Host) TrackTimes() error {
	return h.SetSysctls(netns.Sysctl{Path: "net/netfilter/nf_conntrack_timestamp", Value: "1"})
}

// Forget has the host's connection tracking forget all connections. A client that uses a port again then has a new one.
func (h *Host) Forget() error {
	return h.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// Tracked returns what the host's connection tracking knows of connections from an address: a line for each, as in /proc/net/nf_conntrack, which not all
// kernels have.
func (h *Host) Tracked(proto state.Protocol, from netip.AddrPort) (lines []string, err error) {
	err = h.Do(func() error {
		for _, line := range readNet("nf_conntrack") {
			if strings.Contains(line, " "+strings.ToLower(proto.String())+" ") && trackedFrom(line) == from {
				lines = append(lines, line)
			}
		}
		return nil
	})
	return lines, err
}

// trackedFrom returns where the connection of an entry comes from: its first address and port. The other ones are of the answers.
func trackedFrom(line string) netip.AddrPort {
	value := func(name string) string {
		_, rest, _ := strings.Cut(line, " "+name+"=")
		v, _, _ := strings.Cut(rest, " ")
		return v
	}
	addr, _ := netip.ParseAddr(value("src"))
	port, _ := strconv.ParseUint(value("sport"), 10, 16)
	return netip.AddrPortFrom(addr, uint16(port))
}
