package ruleset

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// Mirror is what the kernel's tables hold, as far as this process put it there. Elements are not stored but rendered again when
// they are needed: a record and its placements determine them. A mirror refers to the records of the updates that were planned, which
// must not be changed. It is for one goroutine at a time.
type Mirror struct {
	services map[state.ServiceName]applied
	// refs counts the users of elements that services may have in common.
	refs map[sharedKey]int32
	// numbers are those that lists and ports have, of services of the state or of what is preserved.
	numbers map[uint32]struct{}
	// nodePorts are the elements of node-port-ips, sorted.
	nodePorts []netip.Addr
	node      *state.Node
	shape     shape
	// Preserved is what the kernel holds beside that, from before this process. The caller may replace it.
	Preserved Preserved
}

// Preserved are elements that stay though no service of the state has them, because the kernel does not take what would replace them.
// They are not written again if something else deletes them.
type Preserved struct {
	// Services are records that the kernel refuses. What it holds of their frontends stays.
	Services map[state.ServiceName]*state.Service
	// Lost are those of services that the state has as they are here, but for which there is no room when something else has deleted
	// what they had. Each comparison tries them again.
	Lost map[state.ServiceName]error
	// All is set if all elements stay, except those of frontends that services of the state have. The mirror is incomplete then:
	// whatever comes next compares it with the kernel.
	All bool
}

// none reports whether nothing is preserved.
func (s *Preserved) none() bool { return !s.All && len(s.Services) == 0 }

// After returns what is still preserved once u is applied: nothing, if u is full. The maps are new ones.
func (s *Preserved) After(u *state.Update) Preserved {
	next := Preserved{Services: map[state.ServiceName]*state.Service{}, Lost: map[state.ServiceName]error{}}
	if u.Full {
		return next
	}
	next.All = s.All
	maps.Copy(next.Services, s.Services)
	maps.Copy(next.Lost, s.Lost)
	forget := func(name state.ServiceName) {
		delete(next.Services, name)
		delete(next.Lost, name)
	}
	for _, s := range u.Changed {
		forget(s.Name)
	}
	for _, name := range u.Removed {
		forget(name)
	}
	return next
}

// Record returns what a service has, or is to have again after it was lost. It is nil if the mirror does not know.
func (m *Mirror) Record(name state.ServiceName) *state.Service {
	if m.Preserved.Lost[name] != nil {
		return m.Preserved.Services[name]
	}
	return m.services[name].record
}

// StillLost takes over which services were lost before, up to those that are programmed now.
func (m *Mirror) StillLost(before Preserved) {
	for name, err := range before.Lost {
		if m.services[name].record == nil {
			m.Preserved.Services[name], m.Preserved.Lost[name] = before.Services[name], err
		}
	}
}

// Concerns reports whether an update is about what is preserved, so that the mirror does not show what it changes.
func (s *Preserved) Concerns(u *state.Update) bool {
	if s.All {
		return true
	}
	if len(s.Services) == 0 {
		return false
	}
	frontends := map[elementKey]bool{}
	for _, service := range s.Services {
		addFrontends(frontends, service)
	}
	for _, name := range u.Removed {
		if s.Services[name] != nil {
			return true
		}
	}
	for _, service := range u.Changed {
		theirs := map[elementKey]bool{}
		addFrontends(theirs, service)
		for k := range theirs {
			if frontends[k] {
				return true
			}
		}
		if s.Services[service.Name] != nil {
			return true
		}
	}
	return false
}

func addFrontends(set map[elementKey]bool, s *state.Service) {
	for i := range s.Ports {
		p := &s.Ports[i]
		for j := range p.Frontends {
			set[frontendKey(p, &p.Frontends[j])] = true
		}
	}
}

// applied is a record as it is programmed.
type applied struct {
	record *state.Service
	places []placement // of record.Ports
	// numbers are those of the record's lists and ports, nil if there are none.
	numbers map[owner]uint32
}

// NewMirror returns the mirror of a kernel of which nothing is known.
func NewMirror() *Mirror {
	return &Mirror{
		services: map[state.ServiceName]applied{}, refs: map[sharedKey]int32{}, numbers: map[uint32]struct{}{}, node: &state.Node{},
	}
}

// sharedKey is an element of a set whose keys consist of one address (twice, in the hairpin set).
type sharedKey struct {
	family state.Family
	kind   kind
	addr   [16]byte
}

func (s sharedKey) compare(o sharedKey) int {
	return cmp.Or(cmp.Compare(s.family, o.family), cmp.Compare(s.kind, o.kind), bytes.Compare(s.addr[:], o.addr[:]))
}

func newSharedKey(k kind, addr netip.Addr) sharedKey {
	s := sharedKey{family: state.FamilyOf(addr), kind: k}
	copy(s.addr[:], addr.AsSlice())
	return s
}

// sharedOf is the reverse of sharedKey.element.
func sharedOf(e *element) sharedKey {
	s := sharedKey{family: e.family, kind: e.set.kind}
	copy(s.addr[:], e.key[:addrLen(e.family)])
	return s
}

func (s sharedKey) element() element {
	e := element{family: s.family, set: setID{kind: s.kind}}
	n := copy(e.key[:], s.addr[:addrLen(s.family)])
	if s.kind == hairpin {
		copy(e.key[n:], s.addr[:n])
	}
	return e
}

// Node returns the node whose ranges the rules have.
func (m *Mirror) Node() *state.Node { return m.node }

// NodePorts returns the addresses that serve NodePorts, sorted.
func (m *Mirror) NodePorts() []netip.Addr { return m.nodePorts }

// Records returns the services as they are programmed, in a map of the caller's own. Those that are preserved are not among them.
func (m *Mirror) Records() map[state.ServiceName]*state.Service {
	records := make(map[state.ServiceName]*state.Service, len(m.services))
	for name, a := range m.services {
		records[name] = a.record
	}
	return records
}

// ServesLoopback reports whether NodePorts are served on IPv4 loopback addresses, which takes route_localnet.
func (m *Mirror) ServesLoopback() bool { return m.shape.loopback }

// placeService lays out the routes of a record, close to how those of the former record are.
func placeService(former applied, s *state.Service) []placement {
	places := make([]placement, len(s.Ports))
	for i := range s.Ports {
		p := &s.Ports[i]
		old := former.place(p, i)
		for j, r := range routes(p) {
			if r != nil {
				places[i][j] = placeRoute(old[j], r)
			}
		}
	}
	return places
}

// place returns the placement of the port with p's identity, which most likely stands at index hint.
func (a *applied) place(p *state.Port, hint int) placement {
	if a.record == nil {
		return placement{}
	}
	same := func(i int) bool { return a.record.Ports[i].Compare(p) == 0 }
	if hint < len(a.record.Ports) && same(hint) {
		return a.places[hint]
	}
	for i := range a.record.Ports {
		if same(i) {
			return a.places[i]
		}
	}
	return placement{}
}
