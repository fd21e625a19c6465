// Package ruleset works out the content of the nftables dataplane's tables, and the changes that lead to it. A table has a fixed skeleton
// of rules, and a few elements for each service and endpoint. The package is pure. It reads the kernel's content through a [Reader], and
// puts the changes into an [nft.Batch], which the caller commits.
//
// A [Mirror] shows the content of the kernel. Two methods make a [Plan] from it. [Mirror.Change] looks only at the few services that have
// changed. [Mirror.Compare] reads the kernel, and does not trust the mirror. Once the plan is carried out, [Plan.Commit] returns the next
// mirror.
//
// layout.go names the sets, skeleton.go has the rules, edge.go has the rules of the edge, and render.go turns a record into elements. place.go and numbers.go decide on slots
// and numbers. The dataplane's README.md shows the whole.
package ruleset

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// TableName is the name of our table in each family.
const TableName = "switchyard"

// Tables returns our tables, for IPv4 and for IPv6.
func Tables() []nft.Table { return []nft.Table{table(state.IPv4), table(state.IPv6)} }

// Listener is where a relay takes connections of one family and protocol, from clients outside or from others.
type Listener struct {
	Family   state.Family
	Protocol state.Protocol
	Outside  bool
	At       netip.AddrPort
}

// Settings are what the tables depend on in addition to the state. A plan refers to them: they must not be changed.
type Settings struct {
	// LocalDetector recognizes connections of pods.
	LocalDetector state.LocalDetector
	// MasqueradeMark is the bit of packet marks that marks connections for masquerading between two hooks, for example 0x4000. Other
	// bits of the mark are left alone.
	MasqueradeMark uint32
	// UpstreamMark is the mark bit of connections that bypass Services, except for cluster IPs. 0: there are none.
	UpstreamMark uint32
	// MaxAffinityClients is how many clients with affinity are remembered in each family. If it changes, they are forgotten.
	MaxAffinityClients uint32
	// Counters has the rules count new connections to each frontend.
	Counters bool
	// Whole are the records of Services that a dataplane above this one serves in part. With Counters, the rules also count connections to the
	// frontends of that dataplane, and otherwise ignore them.
	Whole map[state.ServiceName]*state.Service
	// Listeners are the listeners of a relay above this dataplane. RelayMark is the bit of packet marks by which connections are led
	// there.
	Listeners []Listener
	RelayMark uint32
	// Edge is the bit of packet marks by which the edge marks packets of connections that this node serves for all nodes. 0: there is no edge.
	Edge uint32
	// Shares returns a record with weights that are numbers of slots, for routes that have shares of their own ([least.Controller.Shares]). It may be nil.
	Shares func(*state.Service) *state.Service
	// TableFlags are those that the tables have. A table with others is replaced.
	TableFlags nft.TableFlags
	// Ejected are endpoints that get no new connections for now.
	Ejected *Ejected
}
