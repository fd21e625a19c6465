package ruleset

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// Mirror is what the kernel's tables hold, as far as this process put it there. Elements are not stored but rendered again when
// they are needed: a record and its placements determine them. A mirror refers to the records of the updates that were planned, which
// must not be changed. It is for one goroutine at a time.
type Mirror struct {
	services map[state.ServiceName]applied
	// refs counts the users of elements that services may have in common.
	refs map[sharedKey]int32
	// pings counts the users of elements about echo requests, likewise. It is nil if there are none.
	pings map[elementKey]int32
	// numbers are the numbers of lists and ports, of the state's services and of preserved elements.
	numbers map[uint32]struct{}
	// slots are how many slots are taken by weights and hashes, and lacking the services that have no room for theirs. retried is the index of the one that
	// was tried again last.
	slots   apportion.Room
	lacking []state.ServiceName
	// crowded are services with more endpoints than their balance can be for, and counting those whose shares follow from their connections.
	crowded, counting []state.ServiceName
	retried           int
	// nodePorts are the addresses that serve NodePorts, sorted.
	nodePorts []netip.Addr
	node      *state.Node
	shape     shape
	ejected   *Ejected
	// Preserved is what the kernel holds in addition, from before this process. The caller may replace it.
	Preserved Preserved
}

// NewMirror returns a mirror that knows nothing of the kernel yet.
func NewMirror() *Mirror {
	return &Mirror{
		services: map[state.ServiceName]applied{}, refs: map[sharedKey]int32{}, numbers: map[uint32]struct{}{}, slots: apportion.Room{},
		node: &state.Node{},
	}
}

// Record returns what a service has, or is to have again after it was lost. It is nil if the mirror does not know.
func (m *Mirror) Record(name state.ServiceName) *state.Service {
	if m.Preserved.Lost[name] != nil {
		return m.Preserved.Services[name]
	}
	a := m.services[name]
	return a.desired()
}

// StillLost takes over which services were lost before, up to those that are programmed now.
func (m *Mirror) StillLost(before Preserved) {
	m.Preserved.frontends = nil
	for name, err := range before.Lost {
		if m.services[name].record == nil {
			m.Preserved.Services[name], m.Preserved.Lost[name] = before.Services[name], err
		}
	}
}

// Node returns the node whose ranges the rules have.
func (m *Mirror) Node() *state.Node { return m.node }

// NodePorts returns the addresses that serve NodePorts, sorted. On ::1 a relay serves them.
func (m *Mirror) NodePorts() []netip.Addr { return m.nodePorts }

// Ejected returns the endpoints that are ejected, nil if none are.
func (m *Mirror) Ejected() *Ejected { return m.ejected }

// Records returns the services that are programmed, in a map of the caller's own. Those that are preserved are not among them.
func (m *Mirror) Records() map[state.ServiceName]*state.Service {
	records := make(map[state.ServiceName]*state.Service, len(m.services))
	for name, a := range m.services {
		records[name] = a.desired()
	}
	return records
}

// ServesLoopback reports whether NodePorts are served on IPv4 loopback addresses, which takes route_localnet.
func (m *Mirror) ServesLoopback() bool { return m.shape.loopback }

// applied is a record as it is programmed.
type applied struct {
	record *state.Service
	places []placement // of record.Ports
	// numbers are the numbers of the record's lists and ports, nil if there are none.
	numbers map[owner]uint32
	// above are the frontends that are counted in addition to the frontends of the record.
	above []frontendAbove
	// slots are how many slots its weights and hashes take.
	slots int
	// asked is the record of the state if record differs from it. A record lacks ejected endpoints, and weights and hashes that have no room. It has shares
	// instead of its weights if these follow from connections.
	asked *state.Service
	// lacks is how many slots it wants if there is no room for them.
	lacks int
	// crowded is set if a port has more endpoints than its balance can be for, and counts if shares follow from connections.
	crowded, counts bool
}

// desired returns the record of the state, nil if there is none.
func (a *applied) desired() *state.Service {
	if a.asked != nil {
		return a.asked
	}
	return a.record
}
