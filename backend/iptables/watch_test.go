//go:build linux

package iptables

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// moments counts the moments at which the dataplane asks the kernel something between two programs of iptables, and has another program change the tables
// at one of them.
type moments struct {
	kernel
	sets
	count, at int
	intrude   func()
}

func (m *moments) pass() {
	if m.count++; m.count == m.at {
		m.intrude()
	}
}

func (m *moments) mark(h held) (string, error) {
	m.pass()
	defer m.pass()
	return m.kernel.mark(h)
}

func (m *moments) Sets(prefix string) ([]ipset.Set, error) {
	m.pass()
	return m.sets.Sets(prefix)
}

func (m *moments) Add(s ipset.Set, elements []ipset.Element) error {
	m.pass()
	return m.sets.Add(s, elements)
}

func (m *moments) Delete(s ipset.Set, elements []ipset.Element) error {
	m.pass()
	return m.sets.Delete(s, elements)
}

func (m *moments) close() error { return m.kernel.close() }
func (m *moments) Close()       { m.sets.Close() }

// TestCount: a change of ours by somebody else is told from all that others do in the same tables, by how many rules chains have and lead to them.
func TestCount(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		b := newBackend(t, ns, Options{Variant: v, Counters: true, NodePortAddresses: state.NodePortAddresses{CIDRs: recordtest.Prefixes("127.0.0.0/8")}})
		netnstest.Do(t, ns, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		})
		apply(t, b, recordtest.Full(everything()...))
		right := func() bool {
			b.watcher.mu.Lock()
			defer b.watcher.mu.Unlock()
			right, err := b.watcher.count()
			if err != nil {
				t.Fatal(err)
			}
			return right
		}
		if !right() {
			t.Fatal("what was just written is not counted right")
		}
		for _, family := range []string{"iptables", "ip6tables"} {
			iptables := func(args ...string) { run(t, ns, fmt.Sprintf("%s-%s", family, v), args...) }
			chain := chainOf(t, ns, family, v, "SWY-CI-")
			iptables("-t", "nat", "-N", "FOREIGN")
			iptables("-t", "nat", "-A", "FOREIGN", "-j", "RETURN")
			iptables("-t", "nat", "-I", "OUTPUT", "1", "-p", "tcp", "-g", "FOREIGN")
			iptables("-I", "FORWARD", "1") // without a target
			if !right() {
				t.Errorf("%s: rules of others count", family)
			}
			iptables("-t", "nat", "-A", "FOREIGN", "-j", chain)
			if verify(t, b); !right() {
				t.Errorf("%s: a rule of others that leads to a chain of ours counts once it is known", family)
			}
			for _, change := range [][]string{
				{"-t", "nat", "-A", chain, "-j", "RETURN"},
				{"-t", "nat", "-F", chain},
				{"-t", "nat", "-D", "PREROUTING", "-j", "SWY-SERVICES"},
				{"-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW", "-j", "SWY-FILTER"},
				{"-t", "nat", "-N", "SWY-INTRUDER"},
			} {
				if iptables(change...); right() {
					t.Errorf("%s %v is not noticed", family, change)
				}
				verify(t, b)
			}
		}
		if run(t, ns, fmt.Sprintf("iptables-%s", v), "-t", "raw", "-F"); right() {
			t.Error("it is not noticed that nothing keeps others away from loopback addresses")
		}
	})
}

// TestOddTable: what is not laid out as expected is an error.
func TestOddTable(t *testing.T) {
	ns := netnstest.New(t)
	b := newBackend(t, ns, Options{Variant: Legacy})
	apply(t, b, recordtest.Full(everything()[0]))
	b.watcher.mu.Lock()
	defer b.watcher.mu.Unlock()
	for _, f := range families {
		entries, err := b.watcher.kernel.(sizes).entries(f, rules.NAT)
		if err != nil {
			t.Fatal(err)
		}
		for n := range entries {
			uses := map[rules.ChainID]int{}
			if err := countUses(f, rules.NAT, entries[:n], uses); err == nil && maps.Equal(uses, b.tables[f].ChainUses()) {
				t.Errorf("%d bytes of %d pass for the table", n, len(entries))
			}
		}
	}
}

// TestForeignChangeAtAnyMoment has another program flush the chains at each moment of an Apply, of a Verify that finds nothing and of one that repairs,
// such as between our last change and the look at what it has made of the tables. It is noticed, and repaired.
func TestForeignChangeAtAnyMoment(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		ns := netnstest.New(t)
		flush := func() { run(t, ns, fmt.Sprintf("iptables-%s", v), "-t", "nat", "-F") }
		b := newBackend(t, ns, Options{Variant: v})
		m := &moments{kernel: b.watcher.kernel, sets: b.sets, intrude: flush}
		close(b.watcher.stop)
		b.watcher.done.Wait() // it looks at the tables only when we say so
		b.watcher.stop, b.watcher.kernel = make(chan struct{}), m
		b.sets = m
		web := func(n int) *state.Update {
			return recordtest.Delta(recordtest.Service("web", recordtest.ClusterIPPort(state.IPv4, state.TCP, 1, recordtest.Endpoints(state.IPv4, n, 3))))
		}
		apply(t, b, recordtest.Full(web(1).Changed...))
		// notices looks at the tables, when all pauses are over.
		notices := func() bool {
			select {
			case <-b.Disturbed(): // of before
			default:
			}
			b.watcher.look(time.Now().Add(time.Hour))
			select {
			case <-b.Disturbed():
				return true
			default:
				return false
			}
		}
		round := 0
		for name, do := range map[string]func(){
			"Apply":               func() { apply(t, b, web(1+3*(round%2))) },
			"Verify":              func() { verify(t, b) },
			"Verify that repairs": func() { flush(); verify(t, b) },
		} {
			for at, more := 1, true; more; at++ {
				round++
				m.count, m.at = 0, at
				do()
				more, m.at = m.count > at, 0
				for notices() {
					verify(t, b)
				}
				if r := verify(t, b); r.Written > 0 {
					t.Errorf("%s: a change at moment %d was not noticed, and %d objects were missing", name, at, r.Written)
				}
			}
		}
	})
}

// TestRest: a Verify that repaired something lets the next one follow as soon as it took itself. Only Verifies that find
// nothing lengthen the pause before wrong numbers lead to another one, and numbers that are right end that.
func TestRest(t *testing.T) {
	const took = 300 * time.Millisecond // of a Verify with 2,500 Services
	now := time.Now()
	w := &watcher{vain: repairCost}
	for i, step := range []struct {
		useful         bool
		repair, verify time.Duration // times took
	}{{true, 1, 1}, {true, 1, 1}, {false, 1, 50}, {false, 2, 50}, {false, 4, 50}, {true, 1, 1}, {false, 1, 50}} {
		w.rest(now, took, step.useful)
		if repair, verify := w.nextRepair.Sub(now)/took, w.nextVerify.Sub(now)/took; repair != step.repair || verify != step.verify {
			t.Errorf("step %d: a repair waits for %d times as long as a Verify took, and a Verify %d times; want %d and %d", i, repair, verify, step.repair, step.verify)
		}
	}
	for range 10 {
		w.rest(now, took, false)
	}
	if repair := w.nextRepair.Sub(now) / took; repair != verifyCost {
		t.Errorf("after many Verifies that found nothing, a repair waits for %d times as long as one took; want %d", repair, verifyCost)
	}
}
