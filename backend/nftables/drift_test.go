//go:build linux

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// disturbed waits for the dataplane to say that something has happened.
func disturbed(t *testing.T, b *Backend) {
	t.Helper()
	await.Receive(t, "disturbed", b.Disturbed())
}

func undisturbed(t *testing.T, b *Backend) {
	t.Helper()
	select {
	case <-b.Disturbed():
		t.Fatal("disturbed")
	case <-time.After(4 * guardPeriod):
	}
}

// anElement returns an element of a set of ours.
func anElement(t *testing.T, c *nft.Conn, f state.Family, set string) nft.Elem {
	t.Helper()
	elems, err := c.Elems(table(f), set)
	if err != nil || len(elems) == 0 {
		t.Fatalf("set %s: %d elements, %v", set, len(elems), err)
	}
	return elems[0]
}

func TestDrift(t *testing.T) {
	const slotSet = "service-slots"
	edit := func(fill func(t *testing.T, c *nft.Conn, f state.Family, b *nft.Batch)) func(*testing.T, *nft.Conn, func(...string)) {
		return func(t *testing.T, c *nft.Conn, _ func(...string)) {
			commitRaw(t, c, func(b *nft.Batch) {
				for _, f := range families {
					fill(t, c, f, b)
				}
			})
		}
	}
	tool := func(args ...string) func(*testing.T, *nft.Conn, func(...string)) {
		return func(_ *testing.T, _ *nft.Conn, run func(...string)) { run(args...) }
	}
	for _, c := range []struct {
		name    string
		disturb func(t *testing.T, c *nft.Conn, run func(...string))
		gone    bool // the foreign tables, too
	}{
		{"deleted element", edit(func(t *testing.T, c *nft.Conn, f state.Family, b *nft.Batch) {
			b.DeleteElem(table(f), slotSet, anElement(t, c, f, slotSet))
		}), false},
		{"added element", edit(func(_ *testing.T, _ *nft.Conn, f state.Family, b *nft.Batch) {
			b.AddElem(table(f), "cluster-ips", nft.Elem{Key: nodeAddr(f).AsSlice()})
		}), false},
		{"added slot out of range", edit(func(t *testing.T, c *nft.Conn, f state.Family, b *nft.Batch) {
			e := anElement(t, c, f, slotSet)
			e.Key[len(e.Key)-2] = 0xff
			b.AddElem(table(f), slotSet, e)
		}), false},
		{"changed slot", edit(func(t *testing.T, c *nft.Conn, f state.Family, b *nft.Batch) {
			e := anElement(t, c, f, slotSet)
			b.DeleteElem(table(f), slotSet, e)
			e.Data = slices.Clone(e.Data)
			e.Data[0]++
			b.AddElem(table(f), slotSet, e)
		}), false},
		{"exchanged element", edit(func(t *testing.T, c *nft.Conn, f state.Family, b *nft.Batch) {
			e := anElement(t, c, f, slotSet)
			b.DeleteElem(table(f), slotSet, e)
			e.Key = slices.Clone(e.Key)
			e.Key[len(e.Key)-2] = 0xff
			b.AddElem(table(f), slotSet, e)
		}), false},
		{"flushed set", tool("flush", "map", "ip6", tableName, slotSet), false},
		{"flushed chain", tool("flush", "chain", "ip", tableName, "services"), false},
		{"added rule", tool("insert", "rule", "ip", tableName, "services", "accept"), false},
		{"added chain", tool("add", "chain", "ip", tableName, "more"), false},
		{"added set", tool("add", "set", "ip", tableName, "more", "{ type mark; }"), false},
		{"changed policy", tool("chain ip switchyard prerouting { policy drop; }"), false},
		{"dormant table", tool("add table ip switchyard { flags dormant; }"), false},
		{"deleted rule", nil, false},
		{"deleted table", tool("delete", "table", "ip", tableName), false},
		{"both tables deleted", tool("delete table ip switchyard; delete table ip6 switchyard"), false},
		{"flushed table", tool("flush", "table", "ip", tableName), false},
		{"flushed ruleset", tool("flush", "ruleset"), true},
	} {
		for way, limits := range waysToRead {
			t.Run(c.name+", "+way, func(t *testing.T) {
				ns := netnstest.New(t)
				conn := dial(t, ns)
				netnstest.NFT(t, ns, `add table ip foreign; add set ip foreign s { type ipv4_addr; elements = { 10.0.0.1 } };`+
					`add chain ip foreign c { type filter hook input priority 0; }; add rule ip foreign c ip saddr @s accept;`+
					`add table inet switchyard; add chain inet switchyard c;`)
				foreign := func() string {
					return netnstest.NFT(t, ns, "list", "table", "ip", "foreign") + netnstest.NFT(t, ns, "list", "table", "inet", tableName)
				}
				foreignBefore := foreign()
				b := newSharedBackend(t, ns, Options{LocalDetector: detectPods(families...)})
				b.limits = limits
				apply(t, b, full(someServices()...))
				undisturbed(t, b)
				before := dump(t, conn)
				if c.disturb == nil {
					deleteARule(t, func(args ...string) string { return netnstest.NFT(t, ns, args...) })
				} else {
					c.disturb(t, conn, func(args ...string) { netnstest.NFT(t, ns, args...) })
				}
				disturbed(t, b)
				if r := verify(t, b); r.Repaired == 0 || r.Repaired != r.Written {
					t.Errorf("Verify: %+v", r)
				}
				if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
					t.Errorf("not repaired: %v", diff)
				}
				foreignCommit(t, conn) // the next alarm may take a while, which is a matter of cost, but it is not needed
				if r := verify(t, b); r.Written != 0 || r.Repaired != 0 {
					t.Errorf("the next Verify: %+v", r)
				}
				closeBackend(b)
				next := newSharedBackend(t, ns, Options{LocalDetector: detectPods(families...)})
				next.limits = limits
				if r := apply(t, next, full(someServices()...)); r.Written != 0 {
					t.Errorf("a fresh start writes %d objects", r.Written)
				}
				if !c.gone && foreign() != foreignBefore {
					t.Errorf("foreign tables have changed:\n%s\n%s", foreignBefore, foreign())
				}
			})
		}
	}
}

// deleteARule deletes the only rule of a chain by its handle.
func deleteARule(t *testing.T, run func(...string) string) {
	t.Helper()
	_, after, found := strings.Cut(run("-a", "list", "chain", "ip", tableName, "prerouting"), "jump services # handle ")
	handle, _, _ := strings.Cut(after, "\n")
	if !found {
		t.Fatal("the rule is not there")
	}
	run("delete", "rule", "ip", tableName, "prerouting", "handle", handle)
}

// TestForeignChanges is about commits to other tables alone: each is looked into, and nothing is repaired.
func TestForeignChanges(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	counting := &countingKernel{}
	b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { counting.kernel = sharedKernel{c}; return counting })
	apply(t, b, full(someServices()...))
	apply(t, b, delta(dualStack("sticky", 3, 2, time.Hour)))
	undisturbed(t, b)
	reads := counting.skeletons
	if r := verify(t, b); r.Written != 0 || counting.skeletons != reads {
		t.Errorf("Verify without a reason: %+v, and the tables were read", r)
	}
	foreignCommit(t, conn)
	disturbed(t, b)
	if r := verify(t, b); r.Written != 0 || r.Repaired != 0 {
		t.Errorf("Verify: %+v", r)
	}
	if counting.skeletons == reads {
		t.Error("a foreign commit was not looked into")
	}
	// Our own commits are none of that, also after it.
	reads = counting.skeletons
	apply(t, b, delta(dualStack("sticky", 3, 1, time.Hour)))
	undisturbed(t, b)
	if verify(t, b); counting.skeletons != reads {
		t.Error("the tables were read after a commit of our own")
	}
}

// countingKernel counts how often a table's skeleton is read.
type countingKernel struct {
	kernel
	skeletons int
}

func (k *countingKernel) ReadSkeleton(t nft.Table) (*nft.Skeleton, error) {
	k.skeletons++
	return k.kernel.ReadSkeleton(t)
}

// TestNodePortAddressesFollow changes the addresses of an interface.
func TestNodePortAddressesFollow(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	counting := &countingKernel{}
	b := openBackend(t, ns, Options{NodePortAddresses: state.NodePortAddresses{
		CIDRs: []netip.Prefix{prefix("192.0.2.0/24"), prefix("2001:db8::/64")},
	}}, func(c *nft.Conn) kernel { counting.kernel = c; return counting })
	apply(t, b, full(everyKind("every", 1, 3, 0)))
	reads := counting.skeletons
	check := func(want ...string) {
		t.Helper()
		var got []string
		await.Until(t, fmt.Sprintf("the node port addresses are %v", want), func() bool {
			disturbed(t, b)
			verify(t, b)
			got = nil
			for _, f := range families {
				elems, err := conn.Elems(table(f), "node-port-ips")
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range elems {
					a, _ := netip.AddrFromSlice(e.Key)
					got = append(got, a.String())
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		}, func() any { return got })
	}
	h, dev := addDevice(t, ns)
	for _, step := range []struct {
		add, del string
		want     []string
	}{
		{"192.0.2.7/24", "", []string{"192.0.2.7"}},
		{"2001:db8::7/64", "", []string{"192.0.2.7", "2001:db8::7"}},
		{"192.0.2.8/24", "", []string{"192.0.2.7", "192.0.2.8", "2001:db8::7"}},
		{"", "192.0.2.8/24", []string{"192.0.2.7", "2001:db8::7"}},
		{"", "192.0.2.7/24", []string{"2001:db8::7"}},
		{"", "2001:db8::7/64", nil},
	} {
		var err error
		if step.add != "" {
			err = h.AddrAdd(dev, deviceAddr(t, step.add))
		} else {
			err = h.AddrDel(dev, deviceAddr(t, step.del))
		}
		if err != nil {
			t.Fatal(err)
		}
		check(step.want...)
	}
	if counting.skeletons != reads {
		t.Error("the tables were read because of an address")
	}
}

// TestNodePortAddressesKept: the addresses are selected again only once something is another that they follow from, so that a change of a Service
// costs the same on a node with many. Whatever changes, they are right.
func TestNodePortAddressesKept(t *testing.T) {
	ns := netnstest.New(t)
	addDevice(t, ns, "192.0.2.7/24", "198.51.100.7/24", "2001:db8::7/64")
	b := newBackend(t, ns, Options{NodePortAddresses: state.NodePortAddresses{CIDRs: []netip.Prefix{prefix("192.0.2.0/24")}}})
	apply(t, b, full(everyKind("every", 1, 3, 0)))
	first := b.mirror.NodePorts()
	if !slices.Equal(first, []netip.Addr{addr("192.0.2.7")}) {
		t.Fatalf("node ports are served on %v", first)
	}
	u := delta(everyKind("every", 1, 4, 0))
	apply(t, b, u)
	other := *u.Node
	for _, n := range []*state.Node{u.Node, &other} {
		if again := b.selectNodePorts(n); !ruleset.SameMemory(again, first) {
			t.Errorf("%v is not the memory of before", again)
		}
	}
	if allocs := testing.AllocsPerRun(10, func() { translating(b.selectNodePorts(&other)) }); allocs > 0 {
		t.Errorf("selecting the same addresses allocates %v times", allocs)
	}
	chosen, chooser := *u, *u.Node
	chooser.NodePorts = &state.NodePortAddresses{CIDRs: []netip.Prefix{prefix("198.51.100.0/24")}}
	chosen.Node = &chooser
	apply(t, b, &chosen)
	if got, want := b.mirror.NodePorts(), []netip.Addr{addr("198.51.100.7")}; !slices.Equal(got, want) {
		t.Errorf("by the node's choice, node ports are served on %v, want %v", got, want)
	}
	if err := b.Reconfigure(Options{NodePortAddresses: state.NodePortAddresses{CIDRs: []netip.Prefix{prefix("2001:db8::/64")}}}); err != nil {
		t.Fatal(err)
	}
	apply(t, b, full(everyKind("every", 1, 3, 0)))
	if got, want := b.mirror.NodePorts(), []netip.Addr{addr("2001:db8::7")}; !slices.Equal(got, want) {
		t.Errorf("with other options, node ports are served on %v, want %v", got, want)
	}
}

// TestTranslating: of the addresses, ::1 alone is left out, and the list stays as it is.
func TestTranslating(t *testing.T) {
	all := []netip.Addr{addr("127.0.0.1"), addr("192.0.2.7"), netip.IPv6Loopback(), addr("2001:db8::7")}
	if got, want := translating(all), []netip.Addr{all[0], all[1], all[3]}; !slices.Equal(got, want) || all[2] != netip.IPv6Loopback() {
		t.Errorf("%v are translated, want %v, and all are still %v", got, want, all)
	}
	if got := translating(all[:2]); !ruleset.SameMemory(got, all[:2]) {
		t.Errorf("%v is not the memory of all", got)
	}
}
