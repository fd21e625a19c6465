//go:build linux

package topology

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/usage"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: all tests need network namespaces: run them without -short")
		return
	}
	os.Exit(netns.Main(m))
}

// TestAllHostsReachEachOther connects all pairs of hosts, over all protocols and families. No address is translated.
func TestAllHostsReachEachOther(t *testing.T) {
	l := newLab(t, Options{ThirdPodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("fd00:10:244:3::/64")}})
	a := addPod(t, l, PodOptions{Name: "a"})
	b := addPod(t, l, PodOptions{Name: "b"})
	c := addPod(t, l, PodOptions{Name: "c", OtherNode: true})
	d := addPod(t, l, PodOptions{Name: "d", Node: l.Nodes()[2]})
	hosts := append(l.Nodes(), a, b, c, d, l.Client())
	protocols := []state.Protocol{state.TCP, state.UDP}
	if HasSCTP() {
		protocols = append(protocols, state.SCTP)
	}
	for _, proto := range protocols {
		for _, server := range hosts {
			serve(t, server, proto, netip.AddrPortFrom(netip.Addr{}, 8080), server.Name)
		}
		for _, from := range hosts {
			for _, to := range hosts {
				for i, addr := range to.Addrs {
					got := from.Probe(t.Context(), proto, netip.AddrPortFrom(addr, 8080), ProbeOptions{Timeout: timeoutFor(Answered)})
					if got.Outcome != Answered || got.Server != to.Name || got.Source.Addr() != from.Addrs[i] && from != to {
						t.Errorf("%s to %s %v %v: %+v", from.Name, to.Name, proto, addr, got)
					}
				}
			}
		}
	}
}

func TestOutcomes(t *testing.T) {
	l := newLab(t, Options{})
	a := addPod(t, l, PodOptions{Name: "a"})
	for i, nowhere := range []string{"10.96.0.1", "fd00:10:96::1"} {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			// The client has routes for everything; the node hands what it does not know back to the client, which drops it.
			for dst, want := range map[netip.AddrPort]Outcome{
				netip.AddrPortFrom(a.Addrs[i], 81):                       Refused,
				netip.AddrPortFrom(l.Node().Addrs[i], 81):                Refused,
				netip.AddrPortFrom(netip.MustParseAddr(nowhere), 80):     TimedOut,
				netip.AddrPortFrom(nth(l.options.NodePodCIDRs[i], 9), 8): TimedOut,
			} {
				start := time.Now()
				got := l.Client().Probe(t.Context(), proto, dst, ProbeOptions{Timeout: timeoutFor(want)})
				if got.Outcome != want || got.Err == nil || !strings.Contains(got.Err.Error(), dst.String()) && proto == state.TCP {
					t.Errorf("%v %v: %+v, want %v", proto, dst, got, want)
				}
				if took := time.Since(start); want == TimedOut && took < 200*time.Millisecond {
					t.Errorf("%v %v timed out after %v", proto, dst, took)
				}
			}
		}
	}
	island, err := NewHost("island", nil, hostSysctls)
	if err != nil {
		t.Fatal(err)
	}
	defer island.Close()
	got := island.Probe(t.Context(), state.TCP, netip.MustParseAddrPort("192.0.2.1:80"), ProbeOptions{})
	if got.Outcome != Unreachable {
		t.Errorf("without a route: %+v, want unreachable", got)
	}
}

// timeoutFor is short only where it is to be used up.
func timeoutFor(want Outcome) time.Duration {
	if want == TimedOut {
		return 200 * time.Millisecond
	}
	return time.Minute
}

func TestProbeStopsWithItsContext(t *testing.T) {
	l := newLab(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	got := l.Client().Probe(ctx, state.TCP, netip.MustParseAddrPort("10.96.0.1:80"), ProbeOptions{Timeout: time.Minute})
	if got.Outcome != TimedOut || got.Latency > 30*time.Second {
		t.Errorf("cancelled probe: %+v", got)
	}
}

// TestRejectsAreNotLimited sends more rejected datagrams at once than the kernel would answer by itself.
func TestRejectsAreNotLimited(t *testing.T) {
	refused := func(l *Lab, addr netip.Addr, timeout time.Duration) (n int) {
		for _, answer := range l.Client().ProbeMany(t.Context(), 50, 50, state.UDP, netip.AddrPortFrom(addr, 81), ProbeOptions{Timeout: timeout}) {
			if answer.Outcome == Refused {
				n++
			}
		}
		return n
	}
	for _, limited := range []bool{false, true} {
		l := newLab(t, Options{LimitICMP: limited})
		timeout := time.Minute
		if limited {
			timeout = time.Second // is used up
		}
		for _, addr := range l.Node().Addrs {
			if n := refused(l, addr, timeout); (n == 50) == limited {
				t.Errorf("LimitICMP %v: %d of 50 datagrams to %v were refused", limited, n, addr)
			}
		}
		for _, addr := range addPod(t, l, PodOptions{Name: "a"}).Addrs {
			if n := refused(l, addr, time.Minute); n != 50 {
				t.Errorf("LimitICMP %v: %d of 50 datagrams to a pod, %v, were refused", limited, n, addr)
			}
		}
	}
}

func TestSources(t *testing.T) {
	l := newLab(t, Options{})
	a := addPod(t, l, PodOptions{Name: "a"})
	serve(t, a, state.UDP, netip.AddrPortFrom(netip.Addr{}, 53), "a")
	serve(t, a, state.TCP, netip.AddrPortFrom(netip.Addr{}, 53), "a")
	extra := netip.MustParsePrefix("192.0.2.77/24")
	if err := l.Client().AddAddr(extra); err != nil {
		t.Fatal(err)
	}
	for _, proto := range []state.Protocol{state.UDP, state.TCP} {
		for range 3 { // the same port again and again, at once
			got := l.Client().Probe(t.Context(), proto, netip.AddrPortFrom(a.Addrs[0], 53), ProbeOptions{Timeout: timeoutFor(Answered), Source: extra.Addr(), SourcePort: 4242})
			if got.Source != netip.AddrPortFrom(extra.Addr(), 4242) {
				t.Errorf("%v: %+v, want source %v:4242", proto, got, extra.Addr())
			}
		}
	}
	if err := l.Client().RemoveAddr(extra); err != nil {
		t.Fatal(err)
	}
	got := l.Client().Probe(t.Context(), state.TCP, netip.AddrPortFrom(a.Addrs[0], 53), ProbeOptions{Source: extra.Addr()})
	if got.Outcome != Broken {
		t.Errorf("from an address that is gone: %+v", got)
	}
}

// TestPodWithManyAddresses: endpoints need not cost a namespace each.
func TestPodWithManyAddresses(t *testing.T) {
	l := newLab(t, Options{})
	var addrs []netip.Addr
	for i := range 50 {
		addrs = append(addrs, nth(l.options.NodePodCIDRs[i%2], byte(100+i)))
	}
	pod := addPod(t, l, PodOptions{Name: "many", Addrs: addrs})
	for i, addr := range addrs {
		serve(t, pod, state.TCP, netip.AddrPortFrom(addr, 80), fmt.Sprint(i))
		if got := l.Client().Probe(t.Context(), state.TCP, netip.AddrPortFrom(addr, 80), ProbeOptions{Timeout: timeoutFor(Answered)}); got.Server != fmt.Sprint(i) {
			t.Errorf("%v: %+v, want server %d", addr, got, i)
		}
	}
}

func TestStopServing(t *testing.T) {
	l := newLab(t, Options{})
	a := addPod(t, l, PodOptions{Name: "a"})
	port := netip.AddrPortFrom(netip.Addr{}, 80)
	serve(t, a, state.TCP, port, "a")
	dst := netip.AddrPortFrom(a.Addrs[0], 80)
	conn, err := l.Client().Dial(t.Context(), state.TCP, dst, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for range 3 {
		if got, err := ReadAnswer(lines); err != nil || got.Server != "a" {
			t.Fatalf("open connection: %+v, %v", got, err)
		}
		fmt.Fprintln(conn, "again")
	}
	if err := a.Serve(state.TCP, port, "b"); err == nil {
		t.Error("two servers on one port")
	}
	if err := a.StopServing(state.TCP, port); err != nil {
		t.Fatal(err)
	}
	if got := l.Client().Probe(t.Context(), state.TCP, dst, ProbeOptions{Timeout: timeoutFor(Refused)}); got.Outcome != Refused {
		t.Errorf("stopped server: %+v, want refused", got)
	}
	_, _ = ReadAnswer(lines) // what was on its way
	if _, err := ReadAnswer(lines); err == nil {
		t.Error("a connection outlives its server")
	}
	if err := a.StopServing(state.TCP, port); err == nil {
		t.Error("stopped a server that does not run")
	}
}

func TestRemovePod(t *testing.T) {
	l := newLab(t, Options{})
	a := addPod(t, l, PodOptions{Name: "a"})
	dev := a.NodeInterface
	if _, err := l.AddPod(PodOptions{Name: "a"}); err == nil {
		t.Error("two pods of one name")
	}
	if err := l.RemovePod("a"); err != nil {
		t.Fatal(err)
	}
	if names := interfaces(t, l.Node()); strings.Contains(names, dev) {
		t.Errorf("the node still has device %s among %s", dev, names)
	}
	if err := l.RemovePod("a"); err == nil {
		t.Error("removed a pod that does not exist")
	}
	if again := addPod(t, l, PodOptions{Name: "a"}); again.Addrs[0] == a.Addrs[0] {
		t.Errorf("the new pod has the old one's address %v", a.Addrs[0])
	}
}

// TestCloseLeavesNothing builds and closes labs and counts what the process holds open.
func TestCloseLeavesNothing(t *testing.T) {
	before := usage.Files(t)
	for range 3 {
		l, err := New(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		a := addPod(t, l, PodOptions{Name: "a"})
		serve(t, a, state.TCP, netip.AddrPortFrom(netip.Addr{}, 80), "a")
		serve(t, a, state.UDP, netip.AddrPortFrom(netip.Addr{}, 80), "a")
		conn, err := l.Client().Dial(t.Context(), state.TCP, netip.AddrPortFrom(a.Addrs[0], 80), netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadAnswer(bufio.NewReader(conn)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, 81), "a"); !errors.Is(err, os.ErrClosed) {
			t.Errorf("serve after Close: %v", err)
		}
	}
	// Servers end soon after, not during Close.
	await.Until(t, fmt.Sprintf("%d files are open", before), func() bool { return usage.Files(t) <= before }, func() any {
		out, _ := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", os.Getpid())).Output()
		return string(out)
	})
}

func TestManyProbesAtOnce(t *testing.T) {
	l := newLab(t, Options{})
	a := addPod(t, l, PodOptions{Name: "a"})
	serve(t, a, state.TCP, netip.AddrPortFrom(netip.Addr{}, 80), "a")
	for _, answer := range l.Client().ProbeMany(t.Context(), 2000, 500, state.TCP, netip.AddrPortFrom(a.Addrs[0], 80), ProbeOptions{Timeout: time.Minute}) {
		if answer.Outcome != Answered {
			t.Fatalf("%+v", answer)
		}
	}
}

func BenchmarkNew10Pods(b *testing.B) {
	for b.Loop() {
		l, err := New(b.Context(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		for i := range 10 {
			if _, err := l.AddPod(PodOptions{Name: fmt.Sprint(i), OtherNode: i%2 == 1}); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	l, err := New(b.Context(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	addr := netip.AddrPortFrom(l.Node().Addrs[0], 80)
	if err := l.Node().Serve(state.TCP, addr, "node"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if got := l.Client().Probe(b.Context(), state.TCP, addr, ProbeOptions{}); got.Outcome != Answered {
			b.Fatal(got)
		}
	}
}

func newLab(t *testing.T, options Options) *Lab {
	t.Helper()
	l, err := New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func addPod(t *testing.T, l *Lab, options PodOptions) *Host {
	t.Helper()
	pod, err := l.AddPod(options)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func serve(t *testing.T, h *Host, proto state.Protocol, addr netip.AddrPort, name string) {
	t.Helper()
	if err := h.Serve(proto, addr, name); err != nil {
		t.Fatal(err)
	}
}

func interfaces(t *testing.T, h *Host) string {
	t.Helper()
	var names []string
	err := h.Do(func() error {
		list, err := net.Interfaces()
		for _, i := range list {
			names = append(names, i.Name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// TestFirstPacketIsResent loses the first packet of a connection.
func TestFirstPacketIsResent(t *testing.T) {
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the nft tool is not installed")
	}
	l := newLab(t, Options{})
	a := addPod(t, l, PodOptions{Name: "a"})
	serve(t, a, state.TCP, netip.AddrPortFrom(netip.Addr{}, 8080), a.Name)
	dst := netip.AddrPortFrom(a.Addrs[0], 8080)
	if got := l.Client().Probe(t.Context(), state.TCP, dst, ProbeOptions{Timeout: timeoutFor(Answered)}); got.Outcome != Answered || got.Resent != 0 {
		t.Errorf("nothing was lost: %+v", got)
	}
	err = l.Node().Do(func() error {
		return exec.Command(path, "add table ip lossy; add chain ip lossy c { type filter hook prerouting priority 0; }; "+
			"add rule ip lossy c tcp dport 8080 tcp flags syn numgen inc mod 2 == 0 drop").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Client().Probe(t.Context(), state.TCP, dst, ProbeOptions{Timeout: timeoutFor(Answered)}); got.Outcome != Answered || got.Resent != 1 {
		t.Errorf("the first packet was lost: %+v", got)
	}
}
