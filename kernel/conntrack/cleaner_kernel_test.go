//go:build linux

package conntrack

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// kernel is the connection tracking table of a new network namespace.
type kernel struct {
	*Conn
	handle *netlink.Handle
}

func newKernel(t *testing.T) kernel {
	t.Helper()
	ns := netnstest.New(t)
	var k kernel
	if err := ns.Do(func() (err error) {
		if k.Conn, err = Open(); err != nil {
			return err
		}
		k.handle, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.handle.Close(); k.Conn.Close() })
	return k
}

// Flows lists flows as if rules had translated them: what is made by netlink has no mark of that.
func (k kernel) Flows(f Filter, each func([]Flow) error) error {
	return k.Conn.Flows(f, func(flows []Flow) error {
		for i := range flows {
			flows[i].Scheduled = false
		}
		return each(flows)
	})
}

func (k kernel) create(t *testing.T, flow Flow) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if flow.Family == state.IPv6 {
		family = unix.AF_INET6
	}
	tuple := func(u Tuple) netlink.IPTuple {
		return netlink.IPTuple{
			SrcIP: u.Src.Addr().AsSlice(), SrcPort: u.Src.Port(), DstIP: u.Dst.Addr().AsSlice(), DstPort: u.Dst.Port(),
			Protocol: uint8(flow.Protocol),
		}
	}
	if err := k.handle.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family), Forward: tuple(flow.Orig), Reverse: tuple(flow.Reply), TimeOut: 600,
	}); err != nil {
		t.Fatalf("create %v: %v", flow, err)
	}
}

// TestKernel cleans the kernel's own table, with a listing for one frontend of each family and with one for all.
func TestKernel(t *testing.T) {
	for _, frontends := range []int{1, 16} {
		t.Run(strconv.Itoa(frontends), func(t *testing.T) {
			k := newKernel(t)
			c := newCleaner(k)
			var left []Flow
			clients := uint16(1000)
			add := func(dst, from string, stays bool) {
				clients++
				f := flow(dst, from)
				f.Orig.Src = netip.AddrPortFrom(f.Orig.Src.Addr(), clients)
				f.Reply.Dst = f.Orig.Src
				k.create(t, f)
				if stays {
					left = append(left, f)
				}
			}
			wrong := 0
			for i := range frontends {
				n := strconv.Itoa(i)
				v4, v6, port := "10.96.0."+n+":53", "[fd96::"+n+"]:53", ":"+strconv.Itoa(30000+i)
				add(v4, "10.0.0.1:53", true)
				add(v4, "10.0.0.2:53", false)
				add(v6, "[fd01::1]:53", true)
				add(v6, "[fd01::2]:53", false)
				add("192.168.0.1"+port, "10.0.0.1:53", true)
				add("192.168.0.1"+port, "10.0.0.2:53", false)
				add("192.168.0.2"+port, "10.0.0.2:53", true)
				wrong += 3
				c.Note(service("v4"+n, v4+" "+port, "10.0.0.1:53 10.0.0.2:53"), service("v4"+n, v4+" "+port, "10.0.0.1:53"))
				c.Note(service("v6"+n, v6, "[fd01::1]:53 [fd01::2]:53"), service("v6"+n, v6, "[fd01::1]:53"))
			}
			add("10.97.0.1:53", "10.0.0.2:53", true)
			mustClean(t, c, wrong)
			if got := k.list(t, Filter{}); !slices.Equal(got, byClient(left)) {
				t.Errorf("left\n%v\nwant\n%v", got, left)
			}
		})
	}
}

// bothTables does everything with the kernel's table and with one in memory, which must agree but for flows of TCP: the kernel has
// none.
type bothTables struct {
	t      *testing.T
	kernel kernel
	fake   *fakeTable
}

func (b *bothTables) Flows(f Filter, each func([]Flow) error) error {
	want := slices.DeleteFunc(b.udp(), func(flow Flow) bool { return !f.Match(flow) })
	if got := b.kernel.list(b.t, f); !slices.Equal(got, want) {
		b.t.Errorf("%+v: listed\n%v\nwant\n%v", f, got, want)
	}
	return b.kernel.Flows(f, each)
}

func (b *bothTables) Delete(flows ...Flow) (int, error) {
	_, err := b.fake.Delete(flows...)
	deleted, failed := b.kernel.Delete(flows...)
	return deleted, errors.Join(err, failed)
}

func (b *bothTables) DeleteAll(f Filter) (int, error) {
	deleted, err := b.kernel.DeleteAll(f)
	if err == nil {
		_, err = b.fake.DeleteAll(f)
	}
	return deleted, err
}

func (b *bothTables) udp() []Flow {
	return byClient(slices.DeleteFunc(slices.Clone(b.fake.flows), func(f Flow) bool { return f.Protocol != state.UDP }))
}

// list returns the flows that f admits, in the order of byClient.
func (k kernel) list(t *testing.T, f Filter) []Flow {
	var all []Flow
	if err := k.Flows(f, func(some []Flow) error {
		all = append(all, some...)
		return nil
	}); err != nil {
		t.Error(err)
	}
	return byClient(all)
}

func byClient(flows []Flow) []Flow {
	slices.SortFunc(flows, func(a, b Flow) int { return a.Orig.Src.Compare(b.Orig.Src) })
	return flows
}

// TestKernelAgainstModel is TestAgainstModel with the kernel's own table.
func TestKernelAgainstModel(t *testing.T) {
	for seed := range uint64(5) {
		w := newWorld(seed)
		w.table.old = false
		both := &bothTables{t, newKernel(t), w.table}
		w.cleaner = newCleaner(both)
		for round := range 10 {
			w.commit(1 + w.r.IntN(1+w.r.IntN(10)))
			w.note()
			want := w.right()
			if _, err := clean(t.Context(), w.cleaner); err != nil {
				t.Fatal(err)
			}
			w.check(t, seed, round, want)
			if got, want := both.kernel.list(t, Filter{}), both.udp(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, round %d: the kernel has\n%v\nwant\n%v", seed, round, got, want)
			}
			before := len(w.table.flows)
			w.send(true)
			for _, f := range w.table.flows[before:] {
				if f.Protocol == state.UDP {
					both.kernel.create(t, f)
				}
			}
		}
	}
}
