//go:build linux

package conntrack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// open returns a Conn to the table of a new network namespace.
func open(t testing.TB) *Conn {
	t.Helper()
	ns := netnstest.New(t)
	var c *Conn
	if err := ns.Do(func() (err error) { c, err = Open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func create(t testing.TB, c *Conn, flow Flow) {
	t.Helper()
	createEntry(t, c, encodeFlow(flow))
}

func createEntry(t testing.TB, c *Conn, entry []byte) {
	t.Helper()
	const (
		msgNew     = unix.NFNL_SUBSYS_CTNETLINK << 8
		ctaTimeout = 7
	)
	request := appendAttr(entry, ctaTimeout, binary.BigEndian.AppendUint32(nil, 600))
	sock := c.changes.sock
	if err := sock.send(msgNew, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, request); err != nil {
		t.Fatal(err)
	}
	b, err := sock.recv()
	if err == nil {
		_, err = parse(b, sock.seq, func([]byte) {})
	}
	if err != nil {
		t.Fatalf("create %x: %v", entry, err)
	}
}

// flows returns the flows that f admits, with or without a filter in the kernel.
func flows(c *Conn, f Filter, useFilter bool) (all []Flow, err error) {
	err = c.flows(f, useFilter, func(some []Flow) error {
		if len(some) > batchSize {
			return fmt.Errorf("%d flows at once", len(some))
		}
		all = append(all, some...)
		return nil
	})
	return all, err
}

// list returns the flows that f admits, ordered.
func list(t testing.TB, c *Conn, f Filter) []Flow {
	t.Helper()
	var all []Flow
	if err := c.Flows(f, func(some []Flow) error {
		all = append(all, some...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return sorted(all)
}

func sorted(flows []Flow) []Flow {
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(a.Orig.Src.Compare(b.Orig.Src), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Protocol, b.Protocol))
	})
	return flows
}

func zoned(f Flow, zone uint16) Flow {
	f.Zone = zone
	return f
}

var table = []Flow{
	dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.244.0.2:53"),
	dnat(state.UDP, "10.0.0.1:1001", "10.96.0.10:53", "10.244.0.3:53"),
	dnat(state.UDP, "10.0.0.1:1002", "10.96.0.10:54", "10.244.0.2:53"),
	dnat(state.UDP, "10.0.0.1:1003", "10.96.0.11:53", "10.244.0.2:53"),
	dnat(state.TCP, "10.0.0.1:1004", "10.96.0.10:53", "10.244.0.2:53"),
	zoned(dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.244.0.4:53"), 9),
	dnat(state.UDP, "[fd00::1]:1000", "[fd00:96::10]:53", "[fd00:244::2]:53"),
	dnat(state.UDP, "[fd00::1]:1001", "[fd00:96::11]:53", "[fd00:244::2]:53"),
}

func filters() map[string]Filter {
	return map[string]Filter{
		"all":                   {},
		"IPv4":                  {Family: state.IPv4},
		"IPv6 UDP":              {Family: state.IPv6, Protocol: state.UDP},
		"frontend":              {Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.10"), DstPort: 53},
		"IPv6 frontend":         {Family: state.IPv6, Protocol: state.UDP, Dst: netip.MustParseAddr("fd00:96::10"), DstPort: 53},
		"port":                  {Family: state.IPv4, Protocol: state.UDP, DstPort: 53},
		"address":               {Family: state.IPv4, Dst: netip.MustParseAddr("10.96.0.10")},
		"no family":             {Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.10")},
		"no protocol":           {Family: state.IPv4, DstPort: 54},
		"address of the other":  {Family: state.IPv6, Dst: netip.MustParseAddr("10.96.0.10")},
		"nothing to be found":   {Family: state.IPv4, Protocol: state.SCTP},
		"endpoint":              {Family: state.IPv4, Protocol: state.UDP, From: table[0].Reply.Src},
		"frontend and endpoint": {Family: state.IPv4, Protocol: state.UDP, Dst: table[0].Orig.Dst.Addr(), DstPort: 53, From: table[0].Reply.Src},
		"end of any protocol":   {Family: state.IPv4, From: table[0].Reply.Src},
		"IPv6 endpoint":         {Family: state.IPv6, Protocol: state.UDP, From: ap("[fd00:244::2]:53")},
		"frontend without flow": {Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.12"), DstPort: 53},
	}
}

func TestFlows(t *testing.T) {
	c := open(t)
	for _, f := range table {
		create(t, c, f)
	}
	for name, f := range filters() {
		var want []Flow
		for _, flow := range table {
			if f.Match(flow) {
				want = append(want, flow)
			}
		}
		sorted(want)
		if got := list(t, c, f); !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, want)
		}
		got, err := flows(c, f, false)
		if err != nil || !slices.Equal(sorted(got), want) {
			t.Errorf("%s, without the kernel's filter:\ngot  %v, %v\nwant %v", name, got, err, want)
		}
	}
}

// TestUnconnected distinguishes entries by their state, each as the kernel has it. The last acknowledgement, the time after it and a reset are an end.
func TestUnconnected(t *testing.T) {
	const confirmed, answered = 1 << 3, 1 << 1
	conn := open(t)
	for _, c := range []struct {
		name   string
		vip    string
		state  byte
		status uint32
		want   bool
	}{
		{"a SYN", "10.96.0.10:80", 1, confirmed, true},
		{"a SYN over IPv6", "[fd00:96::10]:80", 1, confirmed, true},
		{"a SYN after a reset", "10.96.0.10:80", 1, confirmed | answered, true},
		{"a SYN and its answer", "10.96.0.10:80", 2, confirmed | answered, false},
		{"a connection", "10.96.0.10:80", 3, confirmed | answered | statusAssured, false},
		{"a connection seen from the middle on", "10.96.0.10:80", 3, confirmed, false},
		{"a connection seen from the middle on over IPv6", "[fd00:96::10]:80", 3, confirmed, false},
		{"a connection that ends", "10.96.0.10:80", 4, confirmed | answered | statusAssured, false},
		{"a connection whose server ends it", "10.96.0.10:80", 5, confirmed | answered | statusAssured, false},
		{"a connection that both sides have ended", "10.96.0.10:80", 6, confirmed | answered | statusAssured, false},
		{"an ended connection", "10.96.0.10:80", 7, confirmed | answered | statusAssured, false},
		{"an ended connection seen from the middle on", "10.96.0.10:80", 7, confirmed | answered, false},
		{"a SYN and a reset", "10.96.0.10:80", 8, confirmed | answered, true},
		{"a connection that was reset", "10.96.0.10:80", 8, confirmed | answered | statusAssured, false},
		{"two SYN that cross", "10.96.0.10:80", 9, confirmed | answered, false},
	} {
		want := dnat(state.TCP, "10.0.0.1:1000", c.vip, c.vip)
		if want.Family == state.IPv6 {
			want = dnat(state.TCP, "[fd00::1]:1000", c.vip, c.vip)
		}
		entry := appendState(encodeFlow(want), ctaProtoInfoTCP, c.state)
		createEntry(t, conn, appendAttr(entry, ctaStatus, binary.BigEndian.AppendUint32(nil, c.status)))
		want.Unconnected, want.Ended = c.want, c.state >= 6 && c.state <= 8
		if got := list(t, conn, Filter{Family: want.Family}); !slices.Equal(got, []Flow{want}) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, want)
		}
		for _, useFilter := range []bool{true, false} {
			got, err := flows(conn, Filter{Family: want.Family, Unconnected: true}, useFilter)
			if err != nil || (len(got) == 1) != c.want {
				t.Errorf("%s: %d flows are unconnected (%v, filter of the kernel %v), want %v", c.name, len(got), err, useFilter, c.want)
			}
		}
		if n, err := conn.Delete(want); n != 1 || err != nil || len(list(t, conn, Filter{})) > 0 {
			t.Errorf("%s: not deleted (%v)", c.name, err)
		}
	}
}

// TestKernelFiltersAssured shows that it is the kernel that leaves out connections.
func TestKernelFiltersAssured(t *testing.T) {
	c := open(t)
	const confirmed, answered = 1 << 3, 1 << 1
	for i := range 10 {
		entry := encodeFlow(dnat(state.TCP, fmt.Sprintf("10.0.0.1:%d", 1000+i), "10.96.0.10:80", "10.96.0.10:80"))
		entry = appendAttr(appendState(entry, ctaProtoInfoTCP, 3), ctaStatus, binary.BigEndian.AppendUint32(nil, confirmed|answered|statusAssured))
		createEntry(t, c, entry)
	}
	got := 0
	if err := c.lists.sock.dump(msgGet, encodeDump(Filter{Family: state.IPv4, Unconnected: true}, true), func([]byte) { got++ }); err != nil {
		t.Fatal(err)
	}
	if got == 10 {
		t.Skip("this kernel ignores CTA_STATUS_MASK")
	}
	if got != 0 {
		t.Errorf("the kernel sends %d flows, want none", got)
	}
}

// TestKernelFilters shows that it is the kernel that leaves flows out, where the filter can be said to it.
func TestKernelFilters(t *testing.T) {
	c := open(t)
	for _, f := range table {
		create(t, c, f)
	}
	for name, want := range map[string]int{
		"frontend": 3, "IPv6 frontend": 2, "port": 4, "address": 5, "IPv6 UDP": 2, "endpoint": 3, "frontend and endpoint": 1, "end of any protocol": 4,
	} {
		got := 0
		if err := c.lists.sock.dump(msgGet, encodeDump(filters()[name], true), func([]byte) { got++ }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got == len(table) {
			t.Skip("this kernel ignores CTA_FILTER (known from Linux 5.8 on)")
		}
		if got != want {
			t.Errorf("%s: the kernel sends %d flows, want %d", name, got, want)
		}
	}
}

// TestKernelRejectsFilter takes a filter for a family that the kernel lists nothing of, and refuses to filter by.
func TestKernelRejectsFilter(t *testing.T) {
	c := open(t)
	create(t, c, table[0])
	f := Filter{Family: 99, Protocol: state.UDP}
	if _, err := flows(c, f, true); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("error %v for family 99: this kernel does not refuse the filter", err)
	}
	if got := list(t, c, f); len(got) != 0 {
		t.Errorf("got %v, want no flow", got)
	}
	if got := list(t, c, Filter{Family: state.IPv4, Protocol: state.UDP}); !slices.Equal(got, table[:1]) {
		t.Errorf("after a refused dump: %v, want %v", got, table[:1])
	}
}

func TestDelete(t *testing.T) {
	c := open(t)
	for _, f := range table {
		create(t, c, f)
	}
	all := list(t, c, Filter{})
	for len(all) > 0 {
		gone := all[0]
		all = all[1:]
		for want := 1; want >= 0; want-- { // the second time it is gone already
			if n, err := c.Delete(gone); n != want || err != nil {
				t.Fatalf("deleted %d of %v (%v), want %d", n, gone, err, want)
			}
		}
		if left := list(t, c, Filter{}); !slices.Equal(left, all) {
			t.Fatalf("after deleting %v zone %d:\ngot  %v\nwant %v", gone, gone.Zone, left, all)
		}
	}
}

// TestDeleteMany deletes more flows than go into one message, some of which are gone, and one that cannot be named.
func TestDeleteMany(t *testing.T) {
	c := open(t)
	const n = 3*batchSize + 7
	fill(t, c, n)
	all := list(t, c, Filter{})
	gone, rest := all[:batchSize+1], all[batchSize+1:]
	if n, err := c.Delete(gone...); n != len(gone) || err != nil {
		t.Errorf("deleted %d flows (%v), want %d", n, err, len(gone))
	}
	if left := list(t, c, Filter{}); !slices.Equal(left, rest) {
		t.Errorf("%d flows are left, want %d", len(left), len(rest))
	}
	bad := Flow{Family: state.IPv4, Protocol: state.UDP}
	mixed := slices.Concat(gone, []Flow{bad}, rest[1:])
	if n, err := c.Delete(mixed...); n != len(rest)-1 || err == nil || !strings.Contains(err.Error(), bad.String()) {
		t.Errorf("deleted %d flows and error %v, want %d and an error about %v", n, err, len(rest)-1, bad)
	}
	if left := list(t, c, Filter{}); !slices.Equal(left, rest[:1]) {
		t.Errorf("%v are left, want %v", left, rest[:1])
	}
	if n, err := c.Delete(bad); n != 0 || err == nil {
		t.Errorf("deleted %d flows and error %v of one that cannot be named", n, err)
	}
	if n, err := c.Delete(); n != 0 || err != nil {
		t.Errorf("deleted %d flows of none (%v)", n, err)
	}
}

// BenchmarkDelete deletes flows one by one, and as many at once as a listing hands out.
func BenchmarkDelete(b *testing.B) {
	for _, at := range []int{1, batchSize} {
		b.Run(fmt.Sprint(at), func(b *testing.B) {
			c := open(b)
			const n = 4096
			var took time.Duration
			for b.Loop() {
				b.StopTimer()
				fill(b, c, n)
				all := list(b, c, Filter{})
				b.StartTimer()
				began := time.Now()
				for some := range slices.Chunk(all, at) {
					if _, err := c.Delete(some...); err != nil {
						b.Fatal(err)
					}
				}
				took += time.Since(began)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*n), "ns/flow")
		})
	}
}

// TestManyFlows makes the answer longer than a datagram and a socket buffer, while other goroutines use the same Conn.
func TestManyFlows(t *testing.T) {
	c := open(t)
	const n = 5000
	fill(t, c, n)
	done := make(chan error)
	for range 4 {
		go func() {
			flows, err := flows(c, Filter{Family: state.IPv4, Protocol: state.UDP}, true)
			if err == nil && len(flows) != n {
				err = fmt.Errorf("%d flows, want %d", len(flows), n)
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// fill makes n flows to 256 frontends.
func fill(t testing.TB, c *Conn, n int) {
	for i := range n {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 14), 1}), uint16(1024+i%(1<<14)))
		vip := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 53)
		create(t, c, dnat(state.UDP, client.String(), vip.String(), "10.244.0.2:53"))
	}
}

func TestClosed(t *testing.T) {
	c := open(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.DeleteAll(Filter{Family: state.IPv4, Protocol: state.UDP, Dst: table[0].Orig.Dst.Addr(), DstPort: 53})
	_, err2 := c.Delete(table[0])
	for _, err := range []error{c.Flows(Filter{}, nil), err, err2, c.Close()} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("error %v on a closed Conn, want os.ErrClosed", err)
		}
	}
}

// manyFlows are what the kernel's table holds in benchmarks: usual numbers, and as many as fit into it by default.
var manyFlows = []int{1000, 30000, 262000}

func BenchmarkFlows(b *testing.B) {
	for _, n := range manyFlows {
		c := open(b)
		fill(b, c, n)
		for name, f := range map[string]Filter{
			"frontend": {Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.10"), DstPort: 53},
			"all":      {Family: state.IPv4, Protocol: state.UDP},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := c.Flows(f, func([]Flow) error { return nil }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		c.Close()
	}
}

// BenchmarkDeleteAll walks through the table and finds nothing to delete.
func BenchmarkDeleteAll(b *testing.B) {
	for _, n := range manyFlows {
		c := open(b)
		fill(b, c, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := Filter{Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.97.0.10"), DstPort: 53}
			for b.Loop() {
				if _, err := c.DeleteAll(f); err != nil {
					b.Fatal(err)
				}
			}
		})
		c.Close()
	}
}
