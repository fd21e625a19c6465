//go:build linux

package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// TestDeleteAll deletes from random tables what random filters admit, which must be what Match says.
func TestDeleteAll(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := open(t)
		pick := func(from ...string) netip.AddrPort { return ap(from[rng.IntN(len(from))]) }
		vip4 := func() netip.AddrPort { return pick("10.96.0.1:53", "10.96.0.1:54", "10.96.0.2:53", "10.96.0.2:54") }
		from4 := func() netip.AddrPort { return pick("10.244.0.1:53", "10.244.0.1:54", "10.244.0.2:53", "10.96.0.1:53") }
		for i := range 200 {
			vip, from := vip4().String(), from4().String()
			client := fmt.Sprintf("10.0.0.1:%d", 1000+i)
			if rng.IntN(4) == 0 {
				vip, client = "[fd00::1]:53", fmt.Sprintf("[fd00:1::1]:%d", 1000+i)
				from = pick("[fd00::1]:53", "[fd00::2]:53").String()
			}
			flow := dnat(state.UDP, client, vip, from)
			if rng.IntN(4) == 0 {
				flow.Zone = uint16(rng.IntN(3))
			}
			if rng.IntN(4) == 0 {
				flow.Protocol = state.TCP
			}
			create(t, c, flow)
		}
		for range 6 {
			dst := vip4()
			f := Filter{Family: state.IPv4, Protocol: state.UDP, Dst: dst.Addr(), DstPort: dst.Port()}
			if rng.IntN(3) > 0 {
				f.From = from4()
			}
			before := list(t, c, Filter{})
			want := slices.DeleteFunc(slices.Clone(before), f.Match)
			deleted, err := c.DeleteAll(f)
			if errors.Is(err, errors.ErrUnsupported) {
				if got := list(t, c, Filter{}); !slices.Equal(got, before) {
					t.Fatalf("%v, and left %v of %v", err, got, before)
				}
				t.Skip(err)
			}
			if err != nil || deleted != len(before)-len(want) {
				t.Errorf("seed %d, %+v: deleted %d, %v; want %d", seed, f, deleted, err, len(before)-len(want))
			}
			if got := list(t, c, Filter{}); !slices.Equal(got, want) {
				t.Fatalf("seed %d, %+v:\ngot  %v\nwant %v", seed, f, got, want)
			}
		}
	}
}

// TestDeleteAllNeedsAFrontend: what the kernel might understand as more than the flows of a frontend is not sent to it.
func TestDeleteAllNeedsAFrontend(t *testing.T) {
	good := Filter{Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.1"), DstPort: 53}
	for name, change := range map[string]func(*Filter){
		"nothing":               func(f *Filter) { *f = Filter{} },
		"no family":             func(f *Filter) { f.Family = 0 },
		"no protocol":           func(f *Filter) { f.Protocol = 0 },
		"no address":            func(f *Filter) { f.Dst = netip.Addr{} },
		"no port":               func(f *Filter) { f.DstPort = 0 },
		"TCP":                   func(f *Filter) { f.Protocol = state.TCP },
		"IPv6":                  func(f *Filter) { f.Family, f.Dst = state.IPv6, netip.MustParseAddr("fd00::1") },
		"an address of IPv6":    func(f *Filter) { f.Dst = netip.MustParseAddr("fd00::1") },
		"unconnected":           func(f *Filter) { f.Unconnected = true },
		"unanswered":            func(f *Filter) { f.Unanswered = true },
		"from IPv6":             func(f *Filter) { f.From = ap("[fd00::1]:53") },
		"from no port":          func(f *Filter) { f.From = ap("10.0.0.1:0") },
		"from an address of v6": func(f *Filter) { f.From = ap("[::ffff:10.0.0.1]:53") },
	} {
		f := good
		change(&f)
		if b, err := encodeDeleteAll(f); err == nil {
			t.Errorf("%s: %x, want an error", name, b)
		}
	}
	if _, err := encodeDeleteAll(good); err != nil {
		t.Error(err)
	}
}

// translated returns an entry of a flow that a rule has translated.
func translated(flow Flow, answered bool) []byte {
	const (
		ctaNatDst, minIP, natProto, minPort = 13, 1, 3, 1
		confirmed                           = 1 << 3
	)
	to := flow.Reply.Src
	flow.Reply.Src = flow.Orig.Dst // until the kernel translates it
	b := appendState(encodeFlow(flow), ctaProtoInfoTCP, tcpSynSent)
	b = appendNested(b, ctaNatDst, func(b []byte) []byte {
		b = appendAttr(b, minIP, to.Addr().AsSlice())
		return appendNested(b, natProto, func(b []byte) []byte { return appendAttr(b, minPort, binary.BigEndian.AppendUint16(nil, to.Port())) })
	})
	status := uint32(confirmed)
	if answered {
		status |= statusSeenReply
	}
	return appendAttr(b, ctaStatus, binary.BigEndian.AppendUint32(nil, status))
}

// TestDeleteUnanswered deletes translated flows to an endpoint that it has not answered, and no others.
func TestDeleteUnanswered(t *testing.T) {
	c := open(t)
	const endpoint, other, vip = "10.244.0.1:80", "10.244.0.2:80", "10.96.0.1:80"
	client := func(n int) string { return fmt.Sprintf("10.0.0.1:%d", 1000+n) }
	n := 0
	for _, to := range []string{endpoint, other, "10.244.0.1:81"} {
		for _, answered := range []bool{false, true} {
			for range 3 {
				createEntry(t, c, translated(dnat(state.TCP, client(n), vip, to), answered))
				n++
			}
		}
	}
	createEntry(t, c, appendState(encodeFlow(dnat(state.TCP, client(n), endpoint, endpoint)), ctaProtoInfoTCP, tcpSynSent)) // not translated
	create(t, c, dnat(state.UDP, client(n+1), vip, endpoint))
	before := list(t, c, Filter{})
	unanswered := Filter{Family: state.IPv4, Protocol: state.TCP, Unanswered: true}
	for _, useFilter := range []bool{true, false} {
		if got, err := flows(c, unanswered, useFilter); len(got) != 9 || err != nil {
			t.Errorf("%d unanswered flows are listed (%v), with the kernel's filter %v; want 9", len(got), err, useFilter)
		}
	}
	f := unanswered
	f.From = ap(endpoint)
	want := slices.DeleteFunc(slices.Clone(before), f.Match)
	deleted, err := c.DeleteAll(f)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if got := list(t, c, Filter{}); deleted != 3 || len(before)-len(want) != 3 || err != nil || !slices.Equal(got, want) {
		t.Errorf("deleted %d, %v; want 3\ngot  %v\nwant %v", deleted, err, got, want)
	}
	for name, change := range map[string]func(*Filter){
		"all endpoints": func(f *Filter) { f.From = netip.AddrPort{} }, "no port": func(f *Filter) { f.From = ap("10.244.0.2:0") },
		"IPv6":       func(f *Filter) { f.Family, f.From = state.IPv6, ap("[fd00::1]:80") },
		"a frontend": func(f *Filter) { f.Dst, f.DstPort = ap(vip).Addr(), 80 }, "also answered": func(f *Filter) { f.Unanswered = false },
	} {
		bad := f
		change(&bad)
		if b, err := encodeDeleteAll(bad); err == nil {
			t.Errorf("%s: %x, want an error", name, b)
		}
	}
}

// TestUnknownFilterDeletesNothing sends what a kernel sees that does not know filters, which are those before Linux 6.12.
func TestUnknownFilterDeletesNothing(t *testing.T) {
	c := open(t)
	for _, f := range table {
		create(t, c, f)
	}
	before := list(t, c, Filter{})
	dst, from := table[0].Orig.Dst, table[0].Reply.Src
	for _, filter := range []Filter{
		{Family: state.IPv4, Protocol: state.UDP, Dst: dst.Addr(), DstPort: dst.Port()},
		{Family: state.IPv4, Protocol: state.UDP, Dst: dst.Addr(), DstPort: dst.Port(), From: from},
		{Family: state.IPv4, Protocol: state.TCP, From: from, Unanswered: true},
	} {
		request, err := encodeDeleteAll(filter)
		if err != nil {
			t.Fatal(err)
		}
		known := request[:nfgenLen:nfgenLen]
		for typ, data := range attrs(request[nfgenLen:]) {
			switch typ {
			case ctaFilter:
			case ctaStatus, ctaStatusMask:
				known = appendAttr(known, typ, data)
			default:
				known = appendAttr(known, typ|unix.NLA_F_NESTED, data)
			}
		}
		if err := c.changes.sock.request(msgDelete, known, nil); !errors.Is(err, unix.EINVAL) {
			t.Errorf("error %v, want EINVAL", err)
		}
		if left := list(t, c, Filter{}); !slices.Equal(left, before) {
			t.Errorf("left %v of %v", left, before)
		}
	}
}

// TestListingOfCrowdedTable: a listing of a crowded table has the same flows.
func TestListingOfCrowdedTable(t *testing.T) {
	c := open(t)
	lone := dnat(state.UDP, "[fd00::1]:1000", "[fd00:96::10]:53", "[fd00:244::2]:53")
	create(t, c, lone)
	for _, want := range []bool{false, true} {
		if crowded, err := c.tooCrowded(); crowded != want || err != nil {
			t.Errorf("crowded: %v (%v), want %v", crowded, err, want)
		}
		if got := list(t, c, Filter{Family: state.IPv6, Protocol: state.UDP, DstPort: 53}); !slices.Equal(got, []Flow{lone}) {
			t.Errorf("crowded %v: got %v, want %v", want, got, lone)
		}
		if !want {
			fill(t, c, crowd)
		}
	}
}

// TestFlowsEnd ends a listing in the middle. The next listing is not disturbed, and listed flows can be deleted
// during it.
func TestFlowsEnd(t *testing.T) {
	c := open(t)
	const n = 3000
	fill(t, c, n)
	enough, got := errors.New("enough"), 0
	err := c.Flows(Filter{Family: state.IPv4}, func(flows []Flow) error {
		if got += len(flows); got > 1000 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || got < 1000 || got > 1000+batchSize {
		t.Errorf("%d flows and error %v, want a little more than 1000, and the error of the caller", got, err)
	}
	deleted := map[Flow]bool{}
	if err := c.Flows(Filter{Family: state.IPv4}, func(flows []Flow) error {
		n, err := c.Delete(flows...)
		if n != len(flows) {
			t.Errorf("deleted %d of %d flows", n, len(flows))
		}
		for _, f := range flows {
			deleted[f] = true
		}
		return err
	}); err != nil || len(deleted) != n {
		t.Errorf("listed and deleted %d flows (%v), want %d", len(deleted), err, n)
	}
	if left := list(t, c, Filter{}); len(left) > 0 {
		t.Errorf("%d flows are left", len(left))
	}
}
