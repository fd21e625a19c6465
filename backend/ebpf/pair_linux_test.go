package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/usage"
)

var nodeIP, nodeIP6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")

// TestHooksLetGoFirst looks into the maps while the base works: what the hooks have then is in the state before and in the one after.
func TestHooksLetGoFirst(t *testing.T) {
	f := newFixture(t)
	f.setAddr(nodeIP, true)
	rejecting, moved := record(3), record(4, 1)
	moved.Ports[0].Frontends[0].Addr = clusterIP(5)
	f.apply(full(record(1, 1, 2), record(2, 1), record(3, 1), record(4, 1), external(record(6, 1), nodePort(30006))))
	f.wants(On, 6)
	ports := full()
	ports.Node.NodePorts = &state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	interfaces := full()
	interfaces.Node.LocalDetector = &state.LocalDetector{InterfacePrefix: "veth"}
	node := delta()
	node.Node = interfaces.Node
	both, one := describe(plan.Pods|plan.Node, []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080"), netip.MustParseAddrPort("10.244.0.2:8080")}),
		describe(plan.Pods|plan.Node, []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080")})
	at := func(n int) key { return key{state.IPv4, plan.Frontend{Addr: clusterIP(n), Port: 80}} }
	np := key{state.IPv4, plan.Frontend{Port: 30006}}
	all := content{at(1): both, at(2): one, at(3): one, at(4): one, at(6): one, np: one}
	without := func(keys ...key) content {
		c := maps.Clone(all)
		for _, k := range keys {
			delete(c, k)
		}
		return c
	}
	with := func(k key, route string) content {
		c := maps.Clone(all)
		c[k] = route
		return c
	}
	forNode := content{}
	for k, v := range all {
		forNode[k] = strings.Replace(v, "3", "2", 1)
	}
	for _, c := range []struct {
		name   string
		update *state.Update
		during content
		// Whether NodePorts are served on the node's address during the step.
		nodePorts bool
	}{
		{"added", delta(record(7, 1)), all, true},
		{"endpoint added", delta(record(2, 1, 3)), all, true},
		{"endpoints change", delta(record(1, 1, 3)), with(at(1), one), true},
		{"all endpoints change", delta(record(1, 3)), without(at(1)), true},
		{"removed", removed(2), without(at(2)), true},
		{"rejects", delta(rejecting), without(at(3)), true},
		{"frontend changes", delta(moved), without(at(4)), true},
		{"frontend goes to another service", delta(&state.Service{Name: nameOf(1)}, func() *state.Service {
			s := record(2, 1)
			s.Ports[0].Frontends[0].Addr = clusterIP(1)
			return s
		}()), without(at(1), at(2)), true},
		{"full without all others", full(record(1, 1, 2)), content{at(1): both}, true},
		{"pods cannot be seen any longer", node, forNode, true},
		{"NodePorts elsewhere", func() *state.Update { u := delta(); u.Node = ports.Node; return u }(), all, false},
		{"a load balancer takes the node's address", delta(external(record(2, 1), loadBalancer(nodeIP, 80))), all, false},
	} {
		for _, fails := range []bool{true, false} {
			f.base.SetFailureRate(0)
			f.apply(full(record(1, 1, 2), record(2, 1), record(3, 1), record(4, 1), external(record(6, 1), nodePort(30006))))
			f.base.before = func(*state.Update) {
				if got := f.content(); !reflect.DeepEqual(got, c.during) {
					t.Errorf("%s: while the base works the maps have %v, want %v", c.name, got, c.during)
				}
				if _, serves := f.nodePortAddrs()[nodeIP]; serves != c.nodePorts {
					t.Errorf("%s: while the base works NodePorts are served on the node's address: %v", c.name, serves)
				}
			}
			f.base.after = f.base.before
			if fails {
				f.base.SetFailureRate(1)
			}
			_, err := f.Apply(context.Background(), c.update)
			if fails != errors.Is(err, backendtest.ErrInjected) {
				t.Errorf("%s: %v", c.name, err)
			}
			if fails { // the hooks have what both states have
				f.base.before(nil)
			}
			f.base.before, f.base.after = func(*state.Update) {}, func(*state.Update) {}
		}
	}
	f.base.SetFailureRate(0)
}

// TestFailedServices: hooks leave a failed service to the base until an update has the service again, or a Verify has repaired it.
func TestFailedServices(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1), record(2, 1), record(3, 1)))
	f.base.Break(nameOf(1))
	f.base.Break(nameOf(2))
	f.base.Break(nameOf(9))
	u := delta(record(1, 2), record(3, 2), record(9, 1))
	u.Removed = removed(2).Removed
	if r := f.apply(u); len(r.Failed) != 3 {
		t.Fatalf("failed: %v", r.Failed)
	}
	f.wants(On, 1)
	f.verify()
	f.wants(On, 1)
	f.base.Fix(nameOf(1))
	f.apply(delta(record(1, 2)))
	f.wants(On, 2)
	f.base.Fix(nameOf(2))
	f.base.Fix(nameOf(9))
	f.verify()
	f.wants(On, 3)
	f.apply(u)
	f.wants(On, 3)
	if got, want := f.content(), planned(f.services.settings, record(1, 2), record(3, 2), record(9, 1)); !reflect.DeepEqual(got, want) {
		t.Errorf("maps have %v, want %v", got, want)
	}
	// In a full update, what is missing may fail, too.
	f.base.Break(nameOf(9))
	f.apply(full(record(1, 2)))
	f.wants(On, 1)
	f.base.Fix(nameOf(9))
	f.verify()
	f.wants(On, 1)
	f.apply(removed(9))
	f.wants(On, 1)
	if n := len(f.services.byName); n != 1 {
		t.Errorf("%d services are kept, want 1", n)
	}
}

// TestLostServices: what the base has lost and cannot repair is left to it, until a Verify has repaired it.
func TestLostServices(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1), record(2, 1)))
	f.base.Break(nameOf(1))
	if f.base.Drift(2) != 2 {
		t.Fatal("nothing has drifted")
	}
	if r := f.verify(); len(r.Failed) != 1 {
		t.Fatalf("failed: %v", r.Failed)
	}
	f.wants(On, 1)
	f.apply(delta(record(2, 3))) // about another one
	f.wants(On, 1)
	f.base.Fix(nameOf(1))
	f.verify()
	f.wants(On, 2)
}

// TestOwnedAddresses: at an address where a service has frontends of its own NodePorts are left to the base.
func TestOwnedAddresses(t *testing.T) {
	f := newFixture(t)
	f.setAddr(nodeIP, true)
	f.setAddr(nodeIP6, true)
	web, lb := external(record(1, 1), nodePort(30001)), external(record(2, 1), loadBalancer(nodeIP, 30001))
	serves := func(want ...netip.Addr) {
		t.Helper()
		got := f.nodePortAddrs()
		if len(got) != len(want) {
			t.Errorf("NodePorts are served on %v, want %v", got, want)
		}
		for _, addr := range want {
			if _, is := got[addr]; !is {
				t.Errorf("NodePorts are served on %v, want %v", got, want)
			}
		}
	}
	f.apply(full(web))
	serves(nodeIP, nodeIP6)
	f.apply(delta(lb))
	serves(nodeIP6)
	f.verify()
	serves(nodeIP6)
	// As long as the base may show it.
	f.base.Break(lb.Name)
	f.apply(removed(2))
	serves(nodeIP6)
	f.apply(delta(record(2, 1)))
	serves(nodeIP6)
	f.base.Fix(lb.Name)
	f.apply(delta(record(2, 1)))
	serves(nodeIP, nodeIP6)
	// An address that comes later.
	vip := netip.MustParseAddr("192.0.2.7")
	f.apply(delta(external(record(2, 1), loadBalancer(vip, 80))))
	f.setAddr(vip, true)
	f.verify()
	serves(nodeIP, nodeIP6)
	f.apply(full(web))
	serves(nodeIP, nodeIP6, vip)
	f.setAddr(vip, false)
	f.setAddr(nodeIP6, false)
	f.verify()
	serves(nodeIP)
}

// TestAddressOfTheNode: a frontend on an address of the node is left to the base while it is one.
func TestAddressOfTheNode(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1), record(2, 1)))
	f.wants(On, 2)
	f.setAddr(clusterIP(1), true)
	f.base.before = func(*state.Update) {
		if len(f.content()) != 1 {
			t.Errorf("while the base is verified the maps have %v", f.content())
		}
	}
	await.Until(f.t, "a disturbance", func() bool { return len(f.Disturbed()) == 1 })
	f.verify()
	f.wants(On, 1)
	f.setAddr(clusterIP(1), false)
	f.verify()
	f.wants(On, 2)
	<-f.Disturbed()
	f.base.Disturb()
	await.Until(f.t, "a disturbance of the base", func() bool { return len(f.Disturbed()) == 1 })
}

// TestNodePortAddresses: loopback addresses are for the node only, damage is repaired, and a Verify that finds none changes nothing.
func TestNodePortAddresses(t *testing.T) {
	all := state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("192.0.2.0/24")}}
	f := newFixture(t, func(o *Options) { o.NodePortAddresses = all })
	f.setAddr(nodeIP, true)
	await.Until(f.t, "loopback addresses", func() bool { return len(f.addrs.Addrs()) == 3 })
	f.apply(full(external(record(1, 1), nodePort(30001))))
	want := map[netip.Addr]bool{netip.MustParseAddr("127.0.0.1"): true, netip.IPv6Loopback(): true, nodeIP: false}
	right := func() {
		t.Helper()
		if got := f.nodePortAddrs(); !maps.Equal(got, want) {
			t.Errorf("NodePorts are served on %v, want %v", got, want)
		}
	}
	right()
	m := f.hooks.programs.Maps
	stranger, loopback := netip.MustParseAddr("198.51.100.1").As4(), netip.MustParseAddr("127.0.0.1").As4()
	for name, damage := range map[string]func() error{
		"none":             func() error { return nil },
		"added":            func() error { return m["node_ports4"].Put(stranger, uint32(0)) },
		"deleted":          func() error { return m["node_ports6"].Delete(netip.IPv6Loopback().As16()) },
		"given to pods":    func() error { return m["node_ports4"].Put(loopback, uint32(0)) },
		"frontend deleted": func() error { return m["frontends4"].Delete([]byte{10, 96, 0, 1, 0, 80, 6, 0}) },
	} {
		f.check(damage())
		n := 1
		if name == "none" {
			n = 0
		}
		before := f.hooks
		if r := f.verify(); r.Repaired != n || r.Written != n {
			t.Errorf("%s: repaired %d, written %d", name, r.Repaired, r.Written)
		}
		if f.hooks != before {
			t.Errorf("%s: Verify has made new hooks", name)
		}
		right()
	}
	f.wants(On, 2)
	// The state goes before the options.
	u := delta()
	u.Node.NodePorts = &state.NodePortAddresses{}
	f.apply(u)
	want = map[netip.Addr]bool{nodeIP: false}
	right()
}

// TestSeveredHooks: when their cgroup is gone the base does everything, and Verify attaches the hooks again when it is back.
func TestSeveredHooks(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1)))
	f.check(os.Remove(f.cgroup))
	await.Until(f.t, "it is noticed", func() bool { return f.hooks.attached.Check() != nil })
	f.verify()
	f.wants(Off, 0)
	f.apply(delta(record(2, 1))) // not tried again each time
	f.wants(Off, 0)
	f.check(os.Mkdir(f.cgroup, 0o755))
	f.verify()
	f.wants(On, 2)
	f.check(os.Remove(f.cgroup))
	await.Until(f.t, "it is noticed", func() bool { return f.hooks.attached.Check() != nil })
	f.check(os.Mkdir(f.cgroup, 0o755))
	f.verify()
	f.wants(On, 2)
	f.check(f.hooks.attached.Check())
}

// TestGrowth: more services than there was room for, in one step and in many.
func TestGrowth(t *testing.T) {
	f := newFixture(t)
	const many = 4200
	var all []*state.Service
	for n := range many {
		all = append(all, record(n, n%100))
	}
	f.apply(full(all[:4000]...))
	f.wants(On, 4000)
	before := f.Status().Memory
	f.setAddr(nodeIP, true)
	f.apply(delta(external(record(1, 1), nodePort(30001))))
	f.verify()
	for _, s := range all[4000:] {
		f.apply(delta(s))
	}
	f.wants(On, many+1)
	if now := f.Status().Memory; now <= before {
		t.Errorf("maps take %d bytes, and took %d before they have grown", now, before)
	}
	if r := f.verify(); r.Repaired != 0 {
		t.Errorf("%d were repaired", r.Repaired)
	}
	if _, serves := f.nodePortAddrs()[nodeIP]; !serves {
		t.Error("NodePorts are not served any longer")
	}
	all[1] = external(record(1, 1), nodePort(30001))
	if got, want := f.content(), planned(f.services.settings, all...); !reflect.DeepEqual(got, want) {
		t.Error("the maps differ from what was applied")
	}
	f.apply(full(all[:2]...))
	f.wants(On, 3)
}

// TestNoRoom: whatever fails when larger maps are to be made, the hooks do what they did, the rest is left to the base, and comes back.
func TestNoRoom(t *testing.T) {
	f := newFixture(t)
	var all []*state.Service
	for n := range 4096 {
		all = append(all, record(n, n%100))
	}
	f.apply(full(all...))
	f.wants(On, 4096)
	var limit unix.Rlimit
	f.check(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	defer func() { f.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	files, failures := usage.Files(t), 0
	for more := uint64(0); ; more += 3 { // each step makes hooks once more
		// Files get the lowest number that is free.
		next, err := unix.Dup(0)
		f.check(err)
		f.check(unix.Close(next))
		f.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + more, Max: limit.Max}))
		f.apply(delta(record(5000, 1), record(1, 7)))
		f.verify() // an update that comes right after a failure does not try again
		f.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		if f.Status().State == On {
			break
		}
		failures++
		if now := f.Status(); now.State != Degraded || now.Reason == nil {
			t.Fatalf("after %d files: %v, %v", more, now.State, now.Reason)
		}
		// Which of the two has the room of the other is not said.
		if n := f.Status().Frontends; n != 4095 && n != 4096 || len(f.content()) != n {
			t.Fatalf("after %d files: %d frontends, maps have %d", more, n, len(f.content()))
		}
		await.Until(f.t, fmt.Sprintf("no more files are open than before there were %d for new hooks", more), func() bool { return usage.Files(t) <= files })
		f.apply(delta(record(2, 2))) // the same as before: other endpoints would need room until a grace period is over
		if now := f.Status(); now.State != Degraded {
			t.Fatalf("an update that needs no more room has made %v of degraded", now.State)
		}
	}
	if failures < 10 {
		t.Errorf("making hooks has failed at %d files only", failures)
	}
	f.wants(On, 4097)
	if r := f.verify(); r.Repaired != 0 {
		t.Errorf("%d were repaired", r.Repaired)
	}
	t.Logf("%d ways to fail", failures)
}

// TestDegraded: what there is no room for is left to the base until it is gone, or until a Verify finds the room.
func TestDegraded(t *testing.T) {
	f := newFixture(t)
	var all []*state.Service
	for n := range 4096 {
		all = append(all, record(n, 1))
	}
	f.apply(full(all...))
	var limit unix.Rlimit
	f.check(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	without := func(do func()) { // new files
		next, err := unix.Dup(0)
		f.check(err)
		f.check(unix.Close(next))
		f.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: limit.Max}))
		defer func() { f.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
		do()
	}
	without(func() { f.apply(delta(record(5000, 1))) })
	f.wants(Degraded, 4096)
	f.apply(removed(5000))
	f.wants(On, 4096)
	without(func() { f.apply(delta(record(5000, 1))) })
	without(func() { f.verify() })
	f.wants(Degraded, 4096)
	f.apply(removed(5)) // there is room, and nobody has looked yet
	f.wants(Degraded, 4095)
	f.verify()
	f.wants(On, 4096)
}

// TestUnknownNamespace: hooks that cannot distinguish the node from pods are not attached, also not later.
func TestUnknownNamespace(t *testing.T) {
	f := newFixture(t)
	f.check(f.unload())
	f.cookie = 0
	f.apply(full(record(1, 1)))
	f.verify()
	f.wants(Off, 0)
}

// TestFailedUpdateIsTakenBack: what the hooks have let go of for an update that failed comes back, also if the update never does.
func TestFailedUpdateIsTakenBack(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1), record(2, 1)))
	f.base.SetFailureRate(1)
	for _, u := range []*state.Update{removed(1), {Node: &state.Node{Name: "node", LocalDetector: &state.LocalDetector{InterfacePrefix: "veth"}}}} {
		if _, err := f.Apply(context.Background(), u); !errors.Is(err, backendtest.ErrInjected) {
			t.Fatal(err)
		}
	}
	if n := len(f.content()); n != 1 {
		t.Errorf("%d frontends are left, want 1", n)
	}
	f.base.SetFailureRate(0)
	f.apply(delta(record(3, 1)))
	if got, want := f.content(), planned(f.services.settings, record(1, 1), record(2, 1), record(3, 1)); !reflect.DeepEqual(got, want) {
		t.Errorf("maps have %v, want %v", got, want)
	}
}

// TestReconfigure: the programs get other constants, and links another cgroup, with the next update.
func TestReconfigure(t *testing.T) {
	f := newFixture(t)
	f.setAddr(nodeIP, true)
	f.apply(full(external(record(1, 1), nodePort(30001))))
	old := f.hooks
	o := f.o
	o.NodeOnly, o.MeshPorts, o.LocalDetector, o.Logger = true, []uint16{15001}, state.LocalDetector{InterfacePrefix: "veth"}, nil
	f.Reconfigure(o)
	if f.hooks != old || f.o.Logger == nil {
		t.Error("something has changed before the next update")
	}
	f.base.SetFailureRate(1)
	if _, err := f.Apply(context.Background(), full(external(record(1, 1), nodePort(30001)))); err == nil || f.hooks != old {
		t.Errorf("the programs were replaced although the base has failed: %v", err)
	}
	f.base.SetFailureRate(0)
	attached := f.hooks.attached
	f.apply(full(external(record(1, 1), nodePort(30001))))
	if f.hooks == old || f.hooks.attached != attached {
		t.Error("the programs were not replaced, or detached meanwhile")
	}
	f.wants(On, 2)
	if got := f.content()[key{state.IPv4, plan.Frontend{Port: 30001}}]; got[0] != '2' {
		t.Errorf("the NodePort leads to %s, want the node alone", got)
	}
	if r := f.verify(); r.Repaired != 0 {
		t.Errorf("%d were repaired", r.Repaired)
	}
	o.CgroupPath = newCgroup(t)
	f.Reconfigure(o)
	f.apply(full(record(2, 1)))
	f.wants(On, 1)
	f.check(os.Remove(f.cgroup)) // nothing needs it from here on
	f.verify()
	f.wants(On, 1)
	// One that does not exist: the hooks are off, and come back with one that does.
	good := o.CgroupPath
	o.CgroupPath += "-missing"
	f.Reconfigure(o)
	f.apply(full(record(2, 1)))
	f.wants(Off, 0)
	o.CgroupPath = good
	f.Reconfigure(o)
	f.apply(full(record(2, 1), record(3, 1)))
	f.wants(On, 2)
}

// TestBaseServesWithoutHooks: the base does everything where hooks cannot be attached, and the reason has the remedy.
func TestBaseServesWithoutHooks(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*Options)
		want string
	}{
		"another node's namespace":      {func(o *Options) { o.CgroupPath = "" }, "set ebpf.cgroupPath"},
		"no such cgroup":                {func(o *Options) { o.CgroupPath += "-missing" }, "no such file"},
		"a directory that is no cgroup": {func(o *Options) { o.CgroupPath = os.TempDir() }, "cgroup2 file system"},
		"too many mesh ports":           {func(o *Options) { o.MeshPorts = make([]uint16, 5) }, "at most 4"},
	} {
		f := newFixture(t, c.set)
		f.apply(full(record(1, 1)))
		f.verify()
		f.apply(removed(1))
		f.wants(Off, 0)
		if reason := f.Status().Reason; !strings.Contains(reason.Error(), c.want) {
			t.Errorf("%s: %v", name, reason)
		}
		if n := strings.Count(f.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%s: %d warnings, want one:\n%s", name, n, f.log.String())
		}
		if f.base.Breaches() != nil {
			t.Errorf("%s: %v", name, f.base.Breaches())
		}
	}
}

// TestClose: nothing is left in the kernel, nor in this process.
func TestClose(t *testing.T) {
	once := newFixture(t) // what is opened once
	once.check(once.Close())
	once.leave()
	before := usage.Files(t)
	f := newFixture(t)
	f.apply(full(record(1, 1)))
	f.setAddr(nodeIP, true)
	f.verify()
	attached := func() (n int) {
		for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername} {
			dir, err := os.Open(f.cgroup)
			f.check(err)
			result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: at})
			f.check(err)
			n += len(result.Programs)
			dir.Close()
		}
		return n
	}
	if n := attached(); n != 4 {
		t.Errorf("%d programs are attached, want 4", n)
	}
	f.check(f.Close())
	if n := attached(); n != 0 {
		t.Errorf("%d programs are attached after Close", n)
	}
	if s := f.Status(); s.Memory != 0 {
		t.Errorf("status of closed hooks is %+v", s)
	}
	f.leave()
	// Files of earlier tests may have been open before, too.
	await.Until(f.t, "no more files are open than before", func() bool { return usage.Files(t) <= before })
}

// TestStatusAtAnyTime asks, also for counts, while hooks come, grow and go.
func TestStatusAtAnyTime(t *testing.T) {
	f := newFixture(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = f.Status().State.String()
				_, _ = f.Counts([]state.FrontendKey{countKey(1)})
			}
		}
	}()
	o := f.o
	for n := range 10 {
		o.NodeOnly, o.Counters = n%2 == 0, n%4 < 2
		f.Reconfigure(o)
		f.apply(full(record(n, 1)))
		f.verify()
	}
	f.check(f.Close())
	close(stop)
	<-done
}
