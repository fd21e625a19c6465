//go:build linux

package topology

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// TestRecorderExplainsWhatIsLost: of connections that are answered, refused and lost, those that are lost are explained.
func TestRecorderExplainsWhatIsLost(t *testing.T) {
	l := newLab(t, Options{})
	pod, err := l.AddPod(PodOptions{Name: "pod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		if err := pod.Serve(proto, netip.AddrPortFrom(netip.Addr{}, 80), "pod"); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.Node().Record()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	nowhere := []netip.Addr{nth(l.options.NodePodCIDRs[0], 9), nth(l.options.NodePodCIDRs[1], 9)}
	port := uint16(2000)
	probe := func(proto state.Protocol, to netip.AddrPort, want Outcome) {
		t.Helper()
		port++
		got := l.Client().Probe(t.Context(), proto, to, ProbeOptions{Timeout: timeoutFor(want), SourcePort: port})
		if got.Outcome != want {
			t.Fatalf("%v to %v: %v (%v), want %v", proto, to, got.Outcome, got.Err, want)
		}
	}
	for i := range pod.Addrs {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			probe(proto, netip.AddrPortFrom(pod.Addrs[i], 80), Answered)
			probe(proto, netip.AddrPortFrom(pod.Addrs[i], 81), Refused)
			probe(proto, netip.AddrPortFrom(nowhere[i], 80), TimedOut)
		}
	}
	text := r.Explain()
	t.Log(text)
	lines := map[string]int{}
	for line := range strings.Lines(text) {
		if _, ends, ok := strings.Cut(line, " > "); ok {
			lines[strings.Fields(ends)[0]]++
		}
	}
	for i := range pod.Addrs {
		lost, fine := netip.AddrPortFrom(nowhere[i], 80).String(), netip.AddrPortFrom(pod.Addrs[i], 80).String()
		if lines[lost] < 4 { // of TCP and UDP, as they come in and as they go out
			t.Errorf("%d packets to %s, which are lost, are explained", lines[lost], lost)
		}
		if lines[fine] > 0 {
			t.Errorf("%d packets to %s, which are answered, are explained", lines[fine], fine)
		}
	}
}

// TestRecorderCountsTrouble: the kernel's counters of that time are part of the explanation.
func TestRecorderCountsTrouble(t *testing.T) {
	l := newLab(t, Options{})
	r, err := l.Node().Record()
	if err != nil {
		t.Fatal(err)
	}
	l.Client().Probe(t.Context(), state.UDP, netip.AddrPortFrom(l.Node().Addrs[0], 81), ProbeOptions{Timeout: timeoutFor(Refused)})
	if text := r.Explain(); !strings.Contains(text, "Udp:NoPorts+1") {
		t.Errorf("a datagram to a port without a server is not counted: %s", text)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestParseShortPackets: whatever passes a host, a recorder does not stumble over it.
func TestParseShortPackets(t *testing.T) {
	whole := make([]byte, 80)
	for _, first := range []byte{0x45, 0x4f, 0x60, 0} {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, 0} {
			whole[0], whole[9], whole[6] = first, proto, proto
			copy(whole[28:], whole[:28])
			for n := range whole {
				new(recordedPacket).parse(whole[:n])
			}
		}
	}
}

// A recorder of a host that is gone is an error.
func TestRecordNowhere(t *testing.T) {
	h, err := NewHost("gone", nil, []netns.Sysctl{})
	if err != nil {
		t.Skip(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Record(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("it fails with %v", err)
	}
}
