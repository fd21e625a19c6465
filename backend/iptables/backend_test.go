//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

func newBackend(t testing.TB, ns *netns.NS, o Options) *Backend {
	t.Helper()
	var b *Backend
	o.TakeOver = time.Minute // a program that another test starts has our sockets, too, for a moment
	netnstest.Do(t, ns, func() (err error) { b, err = New(t.Context(), o); return err })
	t.Cleanup(func() { closeBackend(t, b) })
	return b
}

// closeBackend closes a dataplane, if it is not closed.
func closeBackend(t testing.TB, b *Backend) {
	t.Helper()
	if b.watcher == nil {
		return
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	b.watcher = nil
	reconcilers.Forget(b)
}

// run runs a program inside and returns what it writes. Programs of iptables wait for others: the lock of ip_tables is one for all network namespaces.
func run(t testing.TB, ns *netns.NS, program string, args ...string) string {
	t.Helper()
	if strings.Contains(program, "tables-") && !strings.HasSuffix(program, "-save") {
		args = append(slices.Clone(args), "--wait")
	}
	return netnstest.Output(t, ns, exec.Command(program, args...))
}

// tables lists all rules and sets, without comments and counters.
func tables(t testing.TB, ns *netns.NS, v Variant) string {
	t.Helper()
	var lines []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"nat", "filter"} {
			for line := range strings.Lines(run(t, ns, fmt.Sprintf("%s-%s-save", family, v), "-t", table)) {
				if !strings.HasPrefix(line, "#") {
					line, _, _ = strings.Cut(line, " [")
					lines = append(lines, family+" "+table+" "+strings.TrimSpace(line))
				}
			}
		}
	}
	for line := range strings.Lines(run(t, ns, "ipset", "save")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " bucketsize")
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var reconcilers backendtest.Reconcilers

func apply(t testing.TB, b *Backend, u *state.Update) backend.Result {
	t.Helper()
	r := reconcilers.Apply(t, b, u)
	if len(r.Failed) > 0 {
		t.Fatalf("services failed: %v", r.Failed)
	}
	return r
}

var verify = backendtest.Verify

// everything is a small cluster with everything in it.
func everything() []*state.Service {
	list := []*state.Service{
		recordtest.EveryKind("every", 1, 5, 0),
		recordtest.EveryKind("every-sticky", 2, 20, time.Hour),
		recordtest.EveryKind("every-nobody", 3, 0, 0),
		recordtest.Pinged(recordtest.EveryKind("every-pinged", 6, 2, 0)),
		recordtest.DualStack("nobody", 4, 0, 0),
		recordtest.DualStack("crowd", 5, 300, 0),
	}
	for n := 10; n < 50; n++ {
		list = append(list, recordtest.DualStack(fmt.Sprintf("s%d", n), n, n%7, 0))
	}
	return list
}

func forBothVariants(t *testing.T, test func(t *testing.T, v Variant)) {
	for _, v := range []Variant{Legacy, NFT} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			test(t, v)
		})
	}
}

// TestRestartWritesDifferences starts again with the same state, and then with another one.
func TestRestartWritesDifferences(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		for name, o := range map[string]Options{
			"no detector":  {},
			"cluster CIDR": {LocalDetector: state.LocalDetector{ClusterCIDRs: recordtest.PodCIDRs(state.IPv4, state.IPv6)}},
			"node CIDR":    {LocalDetector: state.LocalDetector{NodeCIDR: true}},
			"bridge":       {LocalDetector: state.LocalDetector{BridgeInterface: "cni0"}},
			"counters":     {Counters: true},
			"prefix":       {LocalDetector: state.LocalDetector{InterfacePrefix: "veth"}, MasqueradeBit: new(31)},
		} {
			ns := netnstest.New(t)
			o.Variant = v
			b := newBackend(t, ns, o)
			apply(t, b, recordtest.Full(everything()...))
			before := tables(t, ns, v)
			if r := verify(t, b); r.Written != 0 {
				t.Errorf("%s: a verification wrote %d objects", name, r.Written)
			}
			closeBackend(t, b)
			b = newBackend(t, ns, o)
			if r := apply(t, b, recordtest.Full(everything()...)); r.Written != 0 {
				t.Errorf("%s: a restart wrote %d objects", name, r.Written)
			}
			closeBackend(t, b)
			b = newBackend(t, ns, o)
			if r := apply(t, b, recordtest.Full(everything()[1:]...)); r.Written == 0 {
				t.Errorf("%s: a restart without a service wrote nothing", name)
			}
			apply(t, b, recordtest.Delta(everything()[0]))
			if after := tables(t, ns, v); after != before {
				t.Errorf("%s: the tables are not as before:\n%s", name, difference(before, after))
			}
			closeBackend(t, b)
		}
	})
}

func difference(before, after string) string {
	var out strings.Builder
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			out.WriteString("- " + line + "\n")
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			out.WriteString("+ " + line + "\n")
		}
	}
	return out.String()
}

// TestDrift changes the tables behind the dataplane's back. Verification repairs what is ours, and leaves what is not.
func TestDrift(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		chain := func(ns *netns.NS) string { return chainOf(t, ns, "iptables", v, "SWY-CI-") }
		for name, c := range map[string]struct {
			change func(iptables func(args ...string), ns *netns.NS)
			silent bool // the kernel has no sign of it
		}{
			"flushed chain": {change: func(iptables func(...string), ns *netns.NS) { iptables("-t", "nat", "-F", chain(ns)) }},
			"flushed table": {change: func(iptables func(...string), _ *netns.NS) {
				iptables("-t", "nat", "-F")
				iptables("-t", "nat", "-X")
			}},
			"lost jump": {change: func(iptables func(...string), _ *netns.NS) {
				iptables("-t", "nat", "-D", "PREROUTING", "-j", "SWY-SERVICES")
			}},
			"jump in filter twice": {change: func(iptables func(...string), _ *netns.NS) {
				iptables("-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW", "-j", "SWY-FILTER")
			}},
			"rule before ours": {change: func(iptables func(...string), ns *netns.NS) {
				iptables("-t", "nat", "-I", chain(ns), "1", "-j", "RETURN")
			}},
			"chain of our name": {change: func(iptables func(...string), _ *netns.NS) { iptables("-t", "nat", "-N", "SWY-INTRUDER") }},
			"element deleted": {silent: true, change: func(_ func(...string), ns *netns.NS) {
				run(t, ns, "ipset", "del", "SWY-4-FRONTENDS", "10.96.0.1,tcp:80")
			}},
			"element added": {silent: true, change: func(_ func(...string), ns *netns.NS) {
				run(t, ns, "ipset", "add", "SWY-4-FRONTENDS", "10.96.77.77,tcp:80")
			}},
			"set flushed": {silent: true, change: func(_ func(...string), ns *netns.NS) { run(t, ns, "ipset", "flush", "SWY-4-HAIRPIN") }},
			"set of our name": {silent: true, change: func(_ func(...string), ns *netns.NS) {
				run(t, ns, "ipset", "create", "SWY-4-INTRUDER", "hash:ip")
			}},
		} {
			ns := netnstest.New(t)
			iptables := func(args ...string) { run(t, ns, "iptables-"+string(v), args...) }
			iptables("-A", "FORWARD", "-s", "198.51.100.1", "-j", "DROP")
			b := newBackend(t, ns, Options{Variant: v})
			apply(t, b, recordtest.Full(everything()...))
			iptables("-t", "nat", "-N", "FOREIGN")
			iptables("-t", "nat", "-I", "OUTPUT", "1", "-s", "198.51.100.2", "-j", "FOREIGN")
			if name == "flushed table" { // that takes these away, too
				iptables("-t", "nat", "-D", "OUTPUT", "-s", "198.51.100.2", "-j", "FOREIGN")
				iptables("-t", "nat", "-X", "FOREIGN")
			}
			if r := verify(t, b); r.Written != 0 {
				t.Errorf("%s: %d objects were written because of rules of others", name, r.Written)
			}
			before := tables(t, ns, v)
			select {
			case <-b.Disturbed(): // others have rules now
			default:
			}
			c.change(iptables, ns)
			if !c.silent {
				await.Receive(t, name+" is noticed", b.Disturbed())
			}
			if r := verify(t, b); r.Repaired == 0 {
				t.Errorf("%s: nothing was repaired: %+v", name, r)
			}
			if after := tables(t, ns, v); after != before {
				t.Errorf("%s: the tables are not as before:\n%s", name, difference(before, after))
			}
			if r := verify(t, b); r.Written != 0 {
				t.Errorf("%s: %d objects were written again", name, r.Written)
			}
			closeBackend(t, b)
		}
	})
}

// chainOf returns the name of a chain that a variant of iptables has.
func chainOf(t *testing.T, ns *netns.NS, family string, v Variant, prefix string) string {
	t.Helper()
	save := run(t, ns, fmt.Sprintf("%s-%s-save", family, v), "-t", "nat")
	_, after, ok := strings.Cut(save, "\n:"+prefix)
	if !ok {
		t.Fatalf("no chain %s*:\n%s", prefix, save)
	}
	name, _, _ := strings.Cut(after, " ")
	return prefix + name
}

// TestCleanup removes everything that is ours, and nothing else.
func TestCleanup(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		iptables := func(args ...string) { run(t, ns, "iptables-"+string(v), args...) }
		iptables("-t", "nat", "-N", "FOREIGN")
		iptables("-t", "nat", "-A", "PREROUTING", "-s", "198.51.100.2", "-j", "FOREIGN")
		run(t, ns, "ipset", "create", "FOREIGN", "hash:ip")
		cleanup := func() (removed bool) {
			netnstest.Do(t, ns, func() (err error) { removed, err = Cleanup(t.Context()); return err })
			return removed
		}
		programmed := func() (held bool) {
			netnstest.Do(t, ns, func() (err error) { held, err = Programmed(); return err })
			return held
		}
		if programmed() || cleanup() {
			t.Error("there was something before the first Apply")
		}
		before := tables(t, ns, v)
		b := newBackend(t, ns, Options{Variant: v, NodePortAddresses: state.NodePortAddresses{CIDRs: recordtest.Prefixes("127.0.0.0/8")}})
		apply(t, b, recordtest.Full(everything()...))
		if !programmed() {
			t.Error("there is nothing after the first Apply")
		}
		err := ns.Do(func() error { _, err := Cleanup(t.Context()); return err })
		if _, inUse := errors.AsType[*nodelock.InUseError](err); !inUse {
			t.Errorf("a cleanup beside a running process: %v", err)
		}
		closeBackend(t, b)
		if !cleanup() {
			t.Error("nothing was removed")
		}
		if after := tables(t, ns, v); after != before {
			t.Errorf("the tables are not as before:\n%s", difference(before, after))
		}
		if programmed() || cleanup() {
			t.Error("something was left")
		}
	})
}

// TestForeignReference has a rule of somebody else lead to a chain of ours that is to go. The rule stays, and the chain is empty.
func TestForeignReference(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		b := newBackend(t, ns, Options{Variant: v})
		web := recordtest.DualStack("web", 1, 3, 0)
		apply(t, b, recordtest.Full(web))
		const family = "ip6tables"
		chain := chainOf(t, ns, family, v, "SWY-CI-")
		run(t, ns, family+"-"+string(v), "-t", "nat", "-A", "PREROUTING", "-j", chain)
		gone := &state.Update{Node: recordtest.Node(), Removed: []state.ServiceName{web.Name}}
		for range 2 {
			if _, err := reconcilers.Of(b).Apply(t.Context(), gone); err == nil {
				break
			}
		}
		save := run(t, ns, family+"-"+string(v)+"-save", "-t", "nat")
		if !strings.Contains(save, "-A PREROUTING -j "+chain) || strings.Contains(save, "-A "+chain) {
			t.Errorf("chain %s:\n%s", chain, save)
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("%d objects written for a chain that cannot go", r.Written)
		}
		apply(t, b, recordtest.Delta(web))
		if save := run(t, ns, family+"-"+string(v)+"-save", "-t", "nat"); !strings.Contains(save, "-A "+chain) {
			t.Errorf("the chain did not come back:\n%s", save)
		}
	})
}

// TestFailureLeavesThingsAsTheyWere lets iptables-restore fail. What was applied before is still desired, and the next attempt succeeds, also
// if the service that failed is gone by then.
func TestFailureLeavesThingsAsTheyWere(t *testing.T) {
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{Variant: NFT})
	web, api := recordtest.DualStack("web", 1, 3, 0), recordtest.EveryKind("api", 2, 20, time.Hour)
	apply(t, b, recordtest.Full(web))
	before := tables(t, ns, NFT)
	name := "ip6tables-nft-restore"
	path := b.tool.paths[name]
	b.tool.paths[name] = "/bin/false"
	if _, err := reconcilers.Of(b).Apply(t.Context(), recordtest.Delta(api)); err == nil || !strings.Contains(err.Error(), name) {
		t.Fatalf("Apply with a program that fails: %v", err)
	}
	b.tool.paths[name] = path
	if r, err := b.Verify(t.Context()); err != nil || r.Repaired > 0 {
		t.Errorf("Verify = %+v, %v", r, err)
	}
	if after := tables(t, ns, NFT); after != before {
		t.Errorf("the tables are not as before:\n%s", difference(before, after))
	}
	apply(t, b, recordtest.Delta(api))
	gone := &state.Update{Node: recordtest.Node(), Removed: []state.ServiceName{api.Name}}
	apply(t, b, gone)
	if after := tables(t, ns, NFT); after != before {
		t.Errorf("the tables are not as before:\n%s", difference(before, after))
	}
}

// TestUnknownValueKeepsWhatItHad gives a service a value of a later version. It keeps its frontends, but for one that another service gets, with
// the same update or later.
func TestUnknownValueKeepsWhatItHad(t *testing.T) {
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{Variant: NFT})
	web := recordtest.EveryKind("web", 1, 3, 0)
	apply(t, b, recordtest.Full(web))
	unknown := recordtest.EveryKind("web", 1, 3, 0)
	unknown.Ports[0].Internal.Inside.Verdict = 99
	thief := recordtest.DualStack("thief", 9, 2, 0)
	thief.Ports[0].Frontends = append(thief.Ports[0].Frontends, state.Frontend{Kind: state.NodePort, Port: 30001})
	thief.Ports[0].External = thief.Ports[0].Internal
	r, err := reconcilers.Of(b).Apply(t.Context(), recordtest.Delta(thief, unknown))
	if err != nil || r.Failed[web.Name] == nil {
		t.Fatalf("Apply = %+v, %v", r, err)
	}
	if got := len(b.service(web.Name).Ports[0].Frontends); got != 4 {
		t.Errorf("the service kept %d frontends of 5, want 4", got)
	}
	later := recordtest.DualStack("later", 1, 1, 0) // the ClusterIP of web
	apply(t, b, recordtest.Delta(later))
	if got := len(b.service(web.Name).Ports[0].Frontends); got != 3 {
		t.Errorf("the service kept %d frontends of 5, want 3", got)
	}
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("%d objects written", r.Written)
	}
}

// TestRulesAreCounted compares what OnRules reports with what iptables-save lists.
func TestRulesAreCounted(t *testing.T) {
	ns := netnstest.New(t)
	got := map[string]int{}
	b := newBackend(t, ns, Options{Variant: Legacy, OnRules: func(table string, f state.Family, total, _ int) {
		got[fmt.Sprint(f, table)] = total
	}})
	for _, services := range [][]*state.Service{everything(), everything()[3:], {}} {
		apply(t, b, recordtest.Full(services...))
		for f, family := range map[state.Family]string{state.IPv4: "iptables", state.IPv6: "ip6tables"} {
			for _, table := range []string{"nat", "filter"} {
				if want := strings.Count(run(t, ns, family+"-legacy-save", "-t", table), "\n-A SWY-"); got[fmt.Sprint(f, table)] != want {
					t.Errorf("%v %s: %d rules reported, want %d", f, table, got[fmt.Sprint(f, table)], want)
				}
			}
		}
	}
}

// TestOtherVariantIsLeft changes the variant with a restart. The rules of the first one go, and its clients with affinity stay.
func TestOtherVariantIsLeft(t *testing.T) {
	ns := netnstest.New(t)
	before := tables(t, ns, NFT)
	first := newBackend(t, ns, Options{Variant: NFT})
	apply(t, first, recordtest.Full(everything()...))
	run(t, ns, "ipset", "add", affinitySetOf(t, ns), "198.51.100.1", "timeout", "600")
	closeBackend(t, first)
	apply(t, newBackend(t, ns, Options{Variant: Legacy}), recordtest.Full(everything()...))
	for line := range strings.SplitSeq(difference(before, tables(t, ns, NFT)), "\n") {
		if strings.HasPrefix(line, "+ ip") {
			t.Errorf("left: %s", line)
		}
	}
	if !strings.Contains(run(t, ns, "ipset", "list", affinitySetOf(t, ns)), "198.51.100.1") {
		t.Error("a client with affinity was forgotten")
	}
}

// affinitySetOf returns the name of one of the sets of clients.
func affinitySetOf(t *testing.T, ns *netns.NS) string {
	t.Helper()
	for name := range strings.FieldsSeq(run(t, ns, "ipset", "list", "-n")) {
		if strings.HasPrefix(name, "SWY-4-C-") {
			return name
		}
	}
	t.Fatal("there is no set of clients")
	return ""
}

// TestReturningEndpoint has an endpoint leave and come back. A process that ended in between has left its set of clients, who have had another endpoint
// since: none of them is remembered.
func TestReturningEndpoint(t *testing.T) {
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{Variant: NFT})
	apply(t, b, recordtest.Full(recordtest.DualStack("sticky", 1, 1, time.Hour)))
	set := affinitySetOf(t, ns)
	apply(t, b, recordtest.Full(recordtest.DualStack("sticky", 1, 0, time.Hour)))
	closeBackend(t, b)
	run(t, ns, "ipset", "create", set, "hash:ip", "maxelem", "65536", "timeout", "3600", "hashsize", "64")
	run(t, ns, "ipset", "add", set, "198.51.100.1")
	b = newBackend(t, ns, Options{Variant: NFT})
	apply(t, b, recordtest.Full(recordtest.DualStack("sticky", 1, 1, time.Hour)))
	if list := run(t, ns, "ipset", "list", set); strings.Contains(list, "198.51.100.1") {
		t.Errorf("a client is remembered with an endpoint that was away:\n%s", list)
	}
	run(t, ns, "ipset", "add", set, "198.51.100.2")
	run(t, ns, "iptables-nft", "-t", "nat", "-F")
	if r := verify(t, b); r.Repaired == 0 {
		t.Error("deleted rules are not repaired")
	}
	if list := run(t, ns, "ipset", "list", set); !strings.Contains(list, "198.51.100.2") {
		t.Errorf("a client was forgotten because somebody had deleted the rules:\n%s", list)
	}
}

// TestStartIsVerified has a process start after another one, which may have been killed while a program of its was changing the tables.
func TestStartIsVerified(t *testing.T) {
	ns := netnstest.New(t)
	for _, wantVerify := range []bool{false, true} {
		b := newBackend(t, ns, Options{Variant: Legacy})
		apply(t, b, recordtest.Full(recordtest.DualStack("first", 1, 1, 0)))
		select {
		case <-b.Disturbed():
			if !wantVerify {
				t.Error("a start on an empty kernel asks for a verification")
			}
		default:
			if wantVerify {
				t.Error("a start that takes over tables asks for no verification")
			}
		}
		closeBackend(t, b)
	}
}

// TestRepairsAreNotLimited has somebody delete the rules twice in a row, as soon as they are there.
func TestRepairsAreNotLimited(t *testing.T) {
	ns := netnstest.New(t)
	for _, v := range []Variant{NFT, Legacy} {
		b := newBackend(t, ns, Options{Variant: v})
		apply(t, b, recordtest.Full(recordtest.DualStack("first", 1, 1, 0)))
		for range 2 {
			run(t, ns, fmt.Sprintf("iptables-%s", v), "-t", "nat", "-F")
			await.Receive(t, string(v)+": somebody notices that the rules are gone", b.Disturbed())
			verify(t, b)
		}
		closeBackend(t, b)
	}
}

// fewSets is a kernel that has room for a few more sets.
type fewSets struct {
	sets
	left int
}

func (f *fewSets) Create(s ipset.Set) error {
	if f.left == 0 {
		return fmt.Errorf("create %s: %w", s.Name, ipset.ErrFull)
	}
	f.left--
	return f.sets.Create(s)
}

func (f *fewSets) Destroy(name string) error {
	f.left++
	return f.sets.Destroy(name)
}

// TestNoRoomForAffinity lets the kernel run out of sets. Services with affinity fail, and the others are programmed, in the same update and later.
func TestNoRoomForAffinity(t *testing.T) {
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{Variant: NFT})
	apply(t, b, recordtest.Full(recordtest.DualStack("first", 1, 1, 0)))
	b.sets = &fewSets{b.sets, 8}
	sticky, plain := recordtest.DualStack("sticky", 2, 10, time.Hour), recordtest.DualStack("plain", 3, 10, 0)
	for range 2 {
		r, err := reconcilers.Of(b).Apply(t.Context(), recordtest.Delta(plain, sticky))
		if err != nil || len(r.Failed) != 1 || r.Failed[sticky.Name] == nil {
			t.Fatalf("Apply = %+v, %v", r, err)
		}
	}
	few := recordtest.DualStack("sticky", 2, 3, time.Hour)
	apply(t, b, recordtest.Delta(few))
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("%d objects were written by a verification", r.Written)
	}
	many := recordtest.DualStack("many", 4, 3000, time.Hour)
	r, err := reconcilers.Of(b).Apply(t.Context(), recordtest.Delta(many))
	if err != nil || r.Failed[many.Name] == nil || !strings.Contains(r.Failed[many.Name].Error(), "6000 endpoints") {
		t.Errorf("Apply of too much affinity = %+v, %v", r, err)
	}
}

// TestVariantIsPicked goes by the kubelet's hint, and by what has rules.
func TestVariantIsPicked(t *testing.T) {
	for name, c := range map[string]struct {
		prepare [][]string
		want    Variant
	}{
		"nothing":                {nil, NFT},
		"rules in legacy":        {[][]string{{"iptables-legacy", "-A", "FORWARD", "-j", "ACCEPT"}}, Legacy},
		"more rules in nft":      {[][]string{{"iptables-legacy", "-A", "FORWARD", "-j", "ACCEPT"}, {"iptables-nft", "-A", "FORWARD", "-j", "ACCEPT"}, {"iptables-nft", "-A", "INPUT", "-j", "ACCEPT"}}, NFT},
		"hint of legacy":         {[][]string{{"iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"}, {"iptables-nft", "-A", "INPUT", "-j", "ACCEPT"}}, Legacy},
		"hint of nft":            {[][]string{{"iptables-legacy", "-A", "FORWARD", "-j", "ACCEPT"}, {"iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"}}, NFT},
		"canary of an older one": {[][]string{{"iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"}}, Legacy},
	} {
		ns := netnstest.New(t)
		for _, command := range c.prepare {
			run(t, ns, command[0], command[1:]...)
		}
		if b := newBackend(t, ns, Options{}); b.tool.variant != c.want {
			t.Errorf("%s: picked %s, want %s", name, b.tool.variant, c.want)
		}
	}
}

func TestMissingPrograms(t *testing.T) {
	ns := netnstest.New(t)
	if err := ns.Do(Available); err != nil {
		t.Errorf("not available: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	for _, v := range []Variant{Automatic, Legacy, NFT} {
		err := ns.Do(func() error { _, err := New(context.Background(), Options{Variant: v}); return err })
		if err == nil || !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "install the package iptables") {
			t.Errorf("variant %q: %v", v, err)
		}
	}
	if err := ns.Do(Available); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("available without programs: %v", err)
	}
}

// TestRouteLocalnetGoes: the sysctl that NodePorts on loopback addresses take does not outlive the rules that keep others away from them.
func TestRouteLocalnetGoes(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		netnstest.Do(t, ns, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		})
		b := newBackend(t, ns, Options{Variant: v})
		for _, step := range []struct{ nodePorts, want string }{{"127.0.0.0/8", "1"}, {"192.0.2.0/24", "0"}, {"127.0.0.0/8", "1"}} {
			on := &state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix(step.nodePorts)}}
			apply(t, b, &state.Update{Full: true, Node: &state.Node{NodePorts: on}, Changed: []*state.Service{recordtest.EveryKind("web", 1, 2, 0)}})
			if got := strings.TrimSpace(run(t, ns, "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")); got != step.want {
				t.Errorf("with NodePorts on %s, route_localnet is %s, want %s", step.nodePorts, got, step.want)
			}
		}
	})
}

// TestRemovalLeavesPacketsToOthers: a packet that is not translated belongs to another dataplane, at each moment of the removal. Here
// the other one is a server at the very address of the frontend.
func TestRemovalLeavesPacketsToOthers(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		web := recordtest.Service("web", recordtest.ClusterIPPort(state.IPv4, state.TCP, 1, recordtest.Endpoints(state.IPv4, 1, 1)))
		frontend := netip.AddrPortFrom(web.Ports[0].Frontends[0].Addr, web.Ports[0].Frontends[0].Port)
		netnstest.Do(t, ns, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			errs := []error{netlink.LinkSetUp(lo)}
			for _, at := range []netip.AddrPort{frontend, web.Ports[0].Internal.Inside.Endpoints[0].Addr} {
				errs = append(errs, netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: at.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}}))
				l, err := net.Listen("tcp", at.String())
				if errs = append(errs, err); err == nil {
					t.Cleanup(func() { l.Close() })
				}
			}
			return errors.Join(errs...)
		})
		b := newBackend(t, ns, Options{Variant: v})
		apply(t, b, recordtest.Full(web))
		held := rules.NewHeld()
		for _, table := range []rules.Table{rules.NAT, rules.Filter} {
			save, err := b.tool.save(t.Context(), state.IPv4, table)
			if err == nil {
				err = held.AddTable(table, save)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		connect := func(when string) {
			err := ns.Do(func() error {
				conn, err := net.DialTimeout("tcp", frontend.String(), 5*time.Second)
				if err == nil {
					err = conn.Close()
				}
				return err
			})
			if err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		connect("before")
		for transaction := range strings.SplitAfterSeq(held.Clear().Restore, "COMMIT\n") {
			if err := b.tool.restore(t.Context(), state.IPv4, transaction); err != nil {
				t.Fatal(err)
			}
			connect("after " + transaction)
		}
	})
}
