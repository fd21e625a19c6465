//go:build linux

package topology

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestTracked looks for connections in a table that also has others.
func TestTracked(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the nft tool is not installed")
	}
	if _, err := os.Stat("/proc/net/nf_conntrack"); err != nil {
		t.Skip("this kernel does not list what it tracks")
	}
	l := newLab(t, Options{})
	pod := addPod(t, l, PodOptions{Name: "pod"})
	if err := l.Node().TrackTimes(); err != nil {
		t.Log(err)
	}
	err = l.Node().Do(func() error {
		return exec.Command(nft, "add table inet tracks; add chain inet tracks c { type filter hook forward priority 0; }; "+
			"add rule inet tracks c ct state invalid drop").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(2000)
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		serve(t, pod, proto, netip.AddrPortFrom(netip.Addr{}, 8080), pod.Name)
		for i, a := range pod.Addrs {
			port++
			from := netip.AddrPortFrom(l.Client().Addrs[i], port)
			if lines, err := l.Node().Tracked(proto, from); len(lines) > 0 || err != nil {
				t.Errorf("%v from %v, before it is there: %q, %v", proto, from, lines, err)
			}
			got := l.Client().Probe(t.Context(), proto, netip.AddrPortFrom(a, 8080), ProbeOptions{Timeout: timeoutFor(Answered), SourcePort: port})
			if got.Outcome != Answered {
				t.Fatalf("%v from %v: %+v", proto, from, got)
			}
			lines, err := l.Node().Tracked(proto, from)
			if err != nil || len(lines) != 1 || !strings.Contains(lines[0], "dport=8080") {
				t.Errorf("%v from %v: %q, %v", proto, from, lines, err)
			}
		}
	}
}
