package ruleset

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// leaves cuts a part into parts of one unit.
func leaves(p Part) []Part {
	switch p.Size() {
	case 0:
		return nil
	case 1:
		return []Part{p}
	}
	first, second := p.Halves()
	return append(leaves(first), leaves(second)...)
}

// kindsOf returns the kinds of the elements that a part of a frontend deletes one by one.
func kindsOf(p Part) (kinds []kind) {
	for _, leaf := range leaves(p) {
		kinds = append(kinds, leaf.pieces[0].set.set.kind)
	}
	return kinds
}

// TestDivide cuts a plan into its smallest parts: new rules come before the services that need them, each service is whole, what is deleted
// of those that are gone comes last, what keeps clients out after all that lets them in, and together the parts write what the plan does.
func TestDivide(t *testing.T) {
	m := NewMirror()
	m.node = testNode
	var gone []state.ServiceName
	for n := range 3 {
		s := recordtest.EveryKind(fmt.Sprintf("gone-%d", n), 20+n, 2, time.Hour)
		planned(m, delta(s))
		gone = append(gone, s.Name)
	}
	var want []state.ServiceName
	u := delta()
	for n := range 5 {
		s := recordtest.EveryKind(fmt.Sprintf("new-%d", n), n, 20, time.Minute) // a new class and a new timeout
		u.Changed, want = append(u.Changed, s), append(want, s.Name)
	}
	u.Removed = gone
	p := m.Change(testSettings(), u, nil)
	if !p.Divisible() {
		t.Fatal("not divisible")
	}
	var whole nft.Batch
	p.Write(&whole)
	first, last := p.Divide()
	var services []state.ServiceName
	written, size := 0, 0
	for i, part := range leaves(first) {
		var b nft.Batch
		part.Write(&b)
		written += b.Len()
		if b.Len() == 0 {
			t.Errorf("part %d is empty", i)
		}
		name, ok := part.Service()
		if (i < len(p.tables)) != (part.units[0].stage == tableChanges) {
			t.Errorf("part %d is of stage %d, and %d tables change", i, part.units[0].stage, len(p.tables))
		}
		if ok {
			services = append(services, name)
			if size = max(size, b.Len()); size != b.Len() || size < 100 {
				t.Errorf("%v has %d elements, and another one %d", name, b.Len(), size)
			}
		}
	}
	if !slices.Equal(services, want) || len(p.tables) != 2 {
		t.Errorf("parts of %v, want %v; %d tables change", services, want, len(p.tables))
	}
	orphans, firewalled := 0, 0
	for _, part := range leaves(last) {
		var b nft.Batch
		part.Write(&b)
		written += b.Len()
		if leads, slots, ok := part.Orphan(); ok {
			orphans++
			if leads.Size() == 0 || slots.Size() == 0 || leads.Size()+slots.Size() != b.Len() || len(leaves(slots)) != slots.Size() {
				t.Errorf("a frontend of %d elements is cut into %d and %d", b.Len(), leads.Size(), slots.Size())
			}
			order := append(kindsOf(leads), kindsOf(slots)...)
			if at := slices.Index(order, restricted); at >= 0 {
				firewalled++
				if rest := order[at:]; slices.ContainsFunc(rest, func(k kind) bool { return k != restricted && k != masquerade }) {
					t.Errorf("elements of kinds %v are deleted after the firewall's", rest)
				}
			}
		}
		if name, ok := part.Service(); ok {
			t.Errorf("%v is written last", name)
		}
	}
	if orphans == 0 || firewalled == 0 {
		t.Errorf("there are %d frontends that no service has any longer, %d of them with a firewall", orphans, firewalled)
	}
	if written != whole.Len() {
		t.Errorf("the parts write %d objects, the plan %d", written, whole.Len())
	}
}
