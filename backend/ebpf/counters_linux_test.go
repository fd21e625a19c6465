package ebpf

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// countKey is the frontend of a record that is made of n.
func countKey(n int) state.FrontendKey {
	return state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: clusterIP(n), Port: 80}
}

// inCounts is a frontend as the maps of counts have it.
func inCounts(key state.FrontendKey) []byte {
	k := make([]byte, map[state.Family]int{state.IPv4: 4, state.IPv6: 16}[key.Family])
	copy(k, key.Addr.AsSlice())
	return append(binary.BigEndian.AppendUint16(k, key.Port), uint8(key.Protocol), 0)
}

// takes counts connections on the last CPU, as a program does.
func (f *fixture) takes(m *ebpf.Map, key state.FrontendKey, connections uint64) {
	f.t.Helper()
	var perCPU []uint64
	f.check(m.Lookup(inCounts(key), &perCPU))
	perCPU[len(perCPU)-1] += connections
	f.check(m.Put(inCounts(key), perCPU))
}

func (f *fixture) counts() *ebpf.Map { return f.hooks.programs.Maps["counts4"] }

// wantCounts checks what the frontends of the first records have counted.
func (f *fixture) wantCounts(when string, want ...uint64) {
	f.t.Helper()
	var keys []state.FrontendKey
	for n := range want {
		keys = append(keys, countKey(n+1))
	}
	counts, err := f.Counts(keys)
	f.check(err)
	var got []uint64
	for _, c := range counts {
		got = append(got, c.Connections)
	}
	if !slices.Equal(got, want) {
		f.t.Errorf("%s: %v were counted, want %v", when, got, want)
	}
}

// elements are how many frontends have one in the map of counts.
func (f *fixture) elements() (n int) {
	f.t.Helper()
	var k [8]byte
	var perCPU []uint64
	entries := f.counts().Iterate()
	for entries.Next(&k, &perCPU) {
		n++
	}
	f.check(entries.Err())
	return n
}

func newCountingFixture(t *testing.T) *fixture {
	return newFixture(t, func(o *Options) { o.Counters = true })
}

// TestCountsGoOn: what was counted stays for as long as a record has the frontend, whatever hooks do with it.
func TestCountsGoOn(t *testing.T) {
	f := newCountingFixture(t)
	f.apply(full(record(1, 1), record(2, 1)))
	f.takes(f.counts(), countKey(1), 5)
	f.takes(f.counts(), countKey(2), 7)
	f.wantCounts("at first", 5, 7)
	f.apply(delta(record(1, 2)))
	f.apply(delta(record(1)))
	f.wants(On, 1)
	f.wantCounts("without endpoints", 5, 7)
	f.apply(delta(record(1, 1, 2)))
	f.wantCounts("with endpoints again", 5, 7)
	f.base.SetFailureRate(1)
	if _, err := f.Apply(t.Context(), removed(1, 2)); err == nil {
		t.Error("the base does not fail")
	}
	f.base.SetFailureRate(0)
	f.verify()
	f.wantCounts("after an update that has failed", 5, 7)
	f.base.Break(nameOf(1))
	f.apply(removed(1))
	f.wantCounts("when the base cannot remove it", 5, 7)
	f.base.Fix(nameOf(1))
	f.apply(delta(record(1, 1)))
	f.wantCounts("when the base has it again", 5, 7)
	moved := record(3, 1)
	moved.Ports[0].Frontends[0].Addr = clusterIP(1)
	u := delta(moved)
	u.Removed = removed(1).Removed
	f.apply(u)
	f.wantCounts("when the frontend has gone to another service", 5, 7)
	o := f.o
	o.NodeOnly = true
	f.Reconfigure(o)
	f.apply(full(moved, record(2, 1)))
	f.wantCounts("with other programs", 5, 7)
	f.check(f.unload())
	f.wantCounts("when hooks are off", 5, 7)
	f.verify()
	f.wants(On, 2)
	f.wantCounts("when hooks are on again", 5, 7)
	if r := f.verify(); r.Repaired != 0 {
		t.Errorf("%d were repaired", r.Repaired)
	}

	// Maps that are full grow. Programs that are about to be replaced still count in the old map.
	previous, err := f.counts().Clone()
	f.check(err)
	defer previous.Close()
	all := []*state.Service{moved, record(2, 1)}
	for n := range 5000 {
		all = append(all, record(10+n, 1))
	}
	f.apply(full(all...))
	f.wants(On, 5002)
	if was, is := previous.MaxEntries(), f.counts().MaxEntries(); is <= was {
		t.Errorf("the map of counts has room for %d frontends, as many as before", is)
	}
	f.takes(previous, countKey(1), 1)
	f.takes(f.counts(), countKey(1), 10)
	f.takes(f.counts(), countKey(5009), 4)
	f.wantCounts("in larger maps", 16, 7)
	if got, err := f.Counts([]state.FrontendKey{countKey(5009), {Family: state.IPv4, Protocol: state.UDP, Addr: clusterIP(1), Port: 80}}); err != nil || got[0].Connections != 4 || got[1].Connections != 0 {
		t.Errorf("the last frontend, and one of UDP: %+v, %v", got, err)
	}
	f.apply(full(record(2, 1)))
	f.wantCounts("when all others are gone", 0, 7)
	await.Until(f.t, "their elements are gone", func() bool { f.verify(); return f.elements() == 1 })
	if err := previous.Lookup(inCounts(countKey(1)), new([]uint64)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the previous map still has a frontend that is gone: %v", err)
	}
}

// TestCountsOfFrontendsThatGo: they count nothing from then on. A Service that gets the frontend, or its element, begins at 0.
func TestCountsOfFrontendsThatGo(t *testing.T) {
	f := newCountingFixture(t)
	f.apply(full(record(1, 1)))
	f.takes(f.counts(), countKey(1), 5)
	for range 3 { // before a grace period has passed, and a program that has found the element may still count there
		f.apply(removed(1))
		f.wantCounts("removed", 0)
		f.takes(f.counts(), countKey(1), 1)
		f.wantCounts("removed", 0)
		f.apply(delta(record(1, 1)))
		f.wantCounts("there again", 0)
		f.takes(f.counts(), countKey(1), 2)
		f.wantCounts("there again", 2)
	}
	// The grace periods of earlier removals say nothing about a frontend that is there again. Only the period of the last removal
	// counts.
	f.apply(delta(record(2, 1)))
	f.apply(removed(2))
	await.Until(f.t, "grace periods have passed", func() bool { f.verify(); return f.elements() == 1 })
	f.wantCounts("there again", 2)
	f.apply(removed(1))
	await.Until(f.t, "its element is gone", func() bool { f.verify(); return f.elements() == 0 })
	f.apply(delta(record(1, 1), record(2, 1)))
	f.wantCounts("of other elements", 0, 0)

	// As many as the map has room for go and others come, again and again.
	const many = 3000
	for round := range 4 {
		var all []*state.Service
		for n := range many {
			all = append(all, record(1+round*many+n, 1))
		}
		f.apply(full(all...))
		f.wants(On, many)
		f.takes(f.counts(), countKey(1+round*many), 9)
		if got, err := f.Counts([]state.FrontendKey{countKey(1 + round*many), countKey(many + round*many)}); err != nil || got[0].Connections != 9 || got[1].Connections != 0 {
			t.Errorf("round %d: %+v, %v", round, got, err)
		}
	}
	await.Until(f.t, "only those are left that are there", func() bool { f.verify(); return f.elements() == many })
}

// TestCountsAreRepaired: without its element, a frontend is left to the base, which counts it; so it gets a new one.
func TestCountsAreRepaired(t *testing.T) {
	f := newCountingFixture(t)
	f.apply(full(record(1, 1), record(2, 1)))
	f.takes(f.counts(), countKey(2), 7)
	f.check(f.counts().Delete(inCounts(countKey(1))))
	f.check(f.counts().Put(inCounts(countKey(9)), make([]uint64, ebpf.MustPossibleCPU())))
	if r := f.verify(); r.Repaired != 2 || f.elements() != 2 {
		t.Errorf("%d repaired, and %d elements, want 2 and 2", r.Repaired, f.elements())
	}
	f.takes(f.counts(), countKey(1), 1)
	f.wantCounts("after a repair", 1, 7)
}

// TestCountsOff: without Counters nothing is counted, and there is no map for it; when it is set while hooks run, they count from then on.
func TestCountsOff(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1)))
	if f.counts() != nil {
		t.Error("there is a map of counts")
	}
	f.wantCounts("off", 0)
	off := f.Status().Memory
	o := f.o
	for range 2 {
		o.Counters = true
		f.Reconfigure(o)
		f.apply(full(record(1, 1)))
		f.wantCounts("on", 0)
		f.takes(f.counts(), countKey(1), 3)
		f.wantCounts("on", 3)
		o.Counters = false
		f.Reconfigure(o)
		f.apply(full(record(1, 1)))
		f.wantCounts("off again", 0)
		if got := f.Status().Memory; got != off {
			t.Errorf("without counters the maps take %d bytes, and %d before there were any", got, off)
		}
	}
	o.Counters = true
	f.do(func() error { return Available(o) })
	f.check(f.Close())
	if got, err := f.HookCounts([]state.FrontendKey{countKey(1), {Family: state.IPv6, Addr: netip.IPv6Loopback()}}); err != nil || got[0].Connections != 0 {
		t.Errorf("after Close: %v, %v", got, err)
	}
}
