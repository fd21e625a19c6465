package ebpf

import (
	"reflect"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// linkIDs are the links of the hooks, as everybody sees them who may.
func (f *fixture) linkIDs() (list []link.ID) {
	f.t.Helper()
	programs := map[ebpf.ProgramID]bool{}
	for _, p := range f.hooks.programs.Programs {
		info, err := p.Info()
		f.check(err)
		id, _ := info.ID()
		programs[id] = true
	}
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		info, err := all.Link.Info()
		f.check(err)
		if programs[info.Program] {
			list = append(list, info.ID)
		}
	}
	f.check(all.Err())
	return list
}

// TestDetachedLinks: what somebody has detached, one hook alone too, is attached again.
func TestDetachedLinks(t *testing.T) {
	f := newFixture(t)
	f.apply(full(record(1, 1)))
	if n := len(f.linkIDs()); n != 4 {
		t.Fatalf("there are %d links", n)
	}
	for i := range 4 {
		l, err := link.NewFromID(f.linkIDs()[i])
		f.check(err)
		f.check(l.Detach())
		f.check(l.Close())
		if f.hooks.attached.Check() == nil {
			t.Fatalf("hook %d is not detached", i)
		}
		f.verify()
		f.wants(On, 1)
		f.check(f.hooks.attached.Check())
	}
}

// TestEmptiedMaps: what somebody has deleted from the maps is put back.
func TestEmptiedMaps(t *testing.T) {
	f := newFixture(t)
	f.setAddr(nodeIP, true)
	f.apply(full(record(1, 1, 2), record(2, 1), external(record(3, 1), nodePort(30003))))
	want, ports := f.content(), f.nodePortAddrs()
	for name, m := range f.hooks.programs.Maps {
		if m.Type() != ebpf.Hash {
			continue
		}
		key, keys := make([]byte, m.KeySize()), [][]byte{}
		for entries := m.Iterate(); entries.Next(&key, new([]byte)); {
			keys = append(keys, append([]byte(nil), key...))
		}
		for _, key := range keys {
			f.check(m.Delete(key))
		}
		f.verify()
		if got := f.content(); !reflect.DeepEqual(got, want) {
			t.Errorf("after %s was emptied, the maps have %v, want %v", name, got, want)
		}
		if got := f.nodePortAddrs(); !reflect.DeepEqual(got, ports) {
			t.Errorf("after %s was emptied, NodePorts are served on %v, want %v", name, got, ports)
		}
	}
}
