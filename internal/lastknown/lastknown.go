// Package lastknown keeps the last known values of Nodes while one of their fields, or the whole Node, is missing for a
// while.
//
// An unreachable cloud provider takes the addresses from a Node. A Node that is deleted and created again has no
// addresses or pod CIDRs at first. The machine is the same, and so are the connections to it. docs/operate.md has the
// rule of each field and its source.
package lastknown

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// Options is what [Nodes] need.
type Options struct {
	// Sink gets the objects. Required.
	Sink model.Sink
	// Node is the name of this node: others pass as they are. Empty: the rules are for all Nodes, and the deletion of one is no problem.
	Node string
	// Needs are the fields whose absence is a problem.
	Needs Needs
	// Previous knows the same Nodes already, by another source. It may be nil.
	Previous *Nodes
	// Logger gets problems when they begin and end. Required.
	Logger *slog.Logger
	// OnProblem is called when a problem begins, one call at a time. It must return soon. It may be nil.
	OnProblem func(Problem)
}

// Needs are the fields that the configuration relies on. The absence of other fields is no problem.
type Needs struct {
	// Addresses: NodePorts are served on the primary addresses of the Node.
	Addresses bool
	// PodCIDRs: pods are told from other clients by them.
	PodCIDRs bool
}

// Problem is a field of a Node that is missing.
type Problem struct {
	Node   string
	Reason Reason
	// Field is the field of the Node, Note what its absence means, and Remedy what to do about it.
	Field, Note, Remedy string
}

// Error names the node, the field and the remedy.
func (p Problem) Error() string {
	return fmt.Sprintf("node %s: %s: %s; %s", p.Node, p.Field, p.Note, p.Remedy)
}

// Reason is a word for the kind of a [Problem].
type Reason string

// The reasons. A lost field was there before, and stays in effect. A missing field never was, and counts once the
// source is complete.
const (
	NodeLost         Reason = "NodeLost"
	AddressesLost    Reason = "NodeAddressesLost"
	AddressesMissing Reason = "NodeAddressesMissing"
	PodCIDRsLost     Reason = "PodCIDRsLost"
	PodCIDRsMissing  Reason = "PodCIDRsMissing"
)

// Nodes is a [model.Sink] that passes Nodes on, completed with their last known values.
type Nodes struct {
	model.Sink
	o Options

	mu       sync.Mutex // guards all below, and keeps the order of the passed objects
	needs    Needs
	complete bool
	of       map[string]*node
	// gone are the names of deleted Nodes other than this node, the earliest deleted first.
	gone []gone

	// listing guards listed alone, so that those who ask do not wait for the sink.
	listing sync.Mutex
	// listed are the problems of the nodes that have any.
	listed map[string][]Problem
}

// node has the known values of one Node.
type node struct {
	// object is the object that was passed on last, nil if there never was one. last has the last known values.
	object, last *model.Node
	// deletedAt is when its object was deleted, zero if it was not.
	deletedAt time.Time
	// lostAddresses and lostPodCIDRs report that object has fields that are no longer in the Node.
	lostAddresses, lostPodCIDRs bool
	problems                    []Problem
}

// gone is a deletion that has not been handed on yet.
type gone struct {
	name string
	at   time.Time
}

// A deleted Node of another machine is remembered for goneFor, and at most maxGone Nodes are, because each machine may
// get a new Node name. This node is remembered until the process ends.
const (
	goneFor = 10 * time.Minute
	maxGone = 1000
)

// New returns a sink in front of another one.
func New(o Options) *Nodes {
	n := &Nodes{Sink: o.Sink, o: o, needs: o.Needs, of: make(map[string]*node), listed: make(map[string][]Problem)}
	if o.Previous != nil {
		n.inherit(o.Previous)
		n.o.Previous = nil
	}
	return n
}

// inherit takes over the known values of existing Nodes. They are not passed on before their objects arrive.
func (n *Nodes) inherit(previous *Nodes) {
	previous.mu.Lock()
	defer previous.mu.Unlock()
	for name, of := range previous.of {
		if of.last != nil && (of.deletedAt.IsZero() || name == n.o.Node) {
			n.of[name] = &node{last: of.last}
		}
	}
}

// Update implements [model.Sink].
func (n *Nodes) Update(set []model.Object, deleted []model.Ref) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if slices.ContainsFunc(deleted, n.keeps) {
		kept := make([]model.Ref, 0, len(deleted))
		for _, ref := range deleted {
			if n.keeps(ref) {
				n.delete(ref.Name, now)
			} else {
				kept = append(kept, ref)
			}
		}
		deleted = kept
	}
	own := false // whether set is a copy
	for i, o := range set {
		now, ok := o.(*model.Node)
		if !ok || !n.keeps(now.Ref()) {
			continue
		}
		if next := n.put(now); next != now {
			if !own {
				set, own = slices.Clone(set), true
			}
			set[i] = next
		}
	}
	if deleted = n.expire(now, deleted); len(set)+len(deleted) > 0 {
		n.Sink.Update(set, deleted)
	}
}

// Complete implements [model.Sink].
func (n *Nodes) Complete() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.complete = true
	if n.o.Node != "" {
		n.node(n.o.Node) // there may be no Node
	}
	for name, of := range n.of {
		n.judge(name, of)
	}
	n.Sink.Complete()
}

// SetNeeds changes the needed fields.
func (n *Nodes) SetNeeds(needs Needs) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.needs == needs {
		return
	}
	n.needs = needs
	for name, of := range n.of {
		n.judge(name, of)
	}
}

// maxListed bounds how many nodes are listed at once.
const maxListed = 20

// Problems returns the missing fields, in the order of the nodes' names, up to a limit of nodes. It does not wait for
// the sink.
func (n *Nodes) Problems() (list []error) {
	n.listing.Lock()
	defer n.listing.Unlock()
	for i, name := range slices.Sorted(maps.Keys(n.listed)) {
		if i == maxListed {
			return append(list, fmt.Errorf("%d more nodes lack fields; the log names some of them", len(n.listed)-maxListed))
		}
		for _, p := range n.listed[name] {
			list = append(list, p)
		}
	}
	return list
}

// Count returns how many nodes have a problem. It does not wait for the sink.
func (n *Nodes) Count() int {
	n.listing.Lock()
	defer n.listing.Unlock()
	return len(n.listed)
}

// keeps reports whether the rules are for an object.
func (n *Nodes) keeps(ref model.Ref) bool {
	return ref.Kind == model.KindNode && (n.o.Node == "" || ref.Name == n.o.Node)
}

func (n *Nodes) node(name string) *node {
	if n.of[name] == nil {
		n.of[name] = &node{}
	}
	return n.of[name]
}

// put returns what to hand on for a Node.
func (n *Nodes) put(now *model.Node) *model.Node {
	of := n.node(now.Name)
	next := now
	of.lostAddresses, of.lostPodCIDRs, of.deletedAt = false, false, time.Time{}
	if last := of.last; last != nil {
		addrs, internal := Addresses(last, now)
		of.lostAddresses = len(addrs) != len(now.Addresses)
		of.lostPodCIDRs = len(now.PodCIDRs) == 0 && len(last.PodCIDRs) > 0
		if of.lostAddresses || of.lostPodCIDRs {
			next = new(*now)
			next.Addresses, next.Internal = addrs, internal
			if of.lostPodCIDRs {
				next.PodCIDRs = last.PodCIDRs
			}
		}
	}
	of.object, of.last = next, next
	n.judge(now.Name, of)
	return next
}

// delete notes that a Node is gone, whose object stays in effect.
func (n *Nodes) delete(name string, now time.Time) {
	of := n.of[name]
	if of == nil || of.object == nil || !of.deletedAt.IsZero() {
		return
	}
	of.deletedAt = now
	if name != n.o.Node {
		n.gone = append(n.gone, gone{name, now})
	}
	n.judge(name, of)
}

// expire appends Nodes to deleted that are no longer remembered. Either there are too many, or the Node was deleted
// long ago. Then a new Node of the same name may be another machine's.
func (n *Nodes) expire(now time.Time, deleted []model.Ref) []model.Ref {
	due := 0
	for ; due < len(n.gone) && (len(n.gone)-due > maxGone || now.Sub(n.gone[due].at) >= goneFor); due++ {
		g := n.gone[due]
		of := n.of[g.name]
		if of == nil || !of.deletedAt.Equal(g.at) {
			continue // it came back
		}
		n.list(g.name, nil)
		delete(n.of, g.name)
		deleted = append(slices.Clip(deleted), model.Ref{Kind: model.KindNode, Name: g.name})
	}
	n.gone = slices.Delete(n.gone, 0, due)
	return deleted
}

// Addresses returns the addresses of a Node, and how many of them are internal, given the last known and the current
// Node.
//
// If the Node has no address of a family left, it keeps its last addresses of the family. If only external addresses
// are left, it keeps its last internal addresses. So its primary address changes only to an address that is new, or
// that is also internal.
func Addresses(last, now *model.Node) (addrs []netip.Addr, internal int) {
	var in, ex []netip.Addr
	for _, is4 := range []bool{true, false} {
		of := func(list []netip.Addr) []netip.Addr {
			return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.Is4() != is4 })
		}
		lastIn, lastEx := of(last.Addresses[:last.Internal]), of(last.Addresses[last.Internal:])
		nowIn, nowEx := of(now.Addresses[:now.Internal]), of(now.Addresses[now.Internal:])
		switch {
		case len(nowIn)+len(nowEx) == 0:
			nowIn, nowEx = lastIn, lastEx
		case len(nowIn) == 0:
			nowIn = lastIn
		}
		in, ex = append(in, nowIn...), append(ex, nowEx...)
	}
	if len(in)+len(ex) == len(now.Addresses) {
		return now.Addresses, now.Internal // nothing was lost, and the order is its own
	}
	// The family that came first does so still.
	first := func(a, b netip.Addr) int {
		return cmp.Compare(rank(a, last.Addresses[0]), rank(b, last.Addresses[0]))
	}
	slices.SortStableFunc(in, first)
	slices.SortStableFunc(ex, first)
	return append(in, ex...), len(in)
}

// rank is 0 for the family of first, and 1 for the other one.
func rank(a, first netip.Addr) int {
	if a.Is4() == first.Is4() {
		return 0
	}
	return 1
}

// judge works out the problems of a node, and reports those that begin or end.
func (n *Nodes) judge(name string, of *node) {
	before := of.problems
	of.problems = n.problems(name, of)
	n.list(name, of.problems)
	for _, p := range of.problems {
		if hasReason(before, p.Reason) {
			continue
		}
		n.o.Logger.Warn("the Node lacks what it should have", "node", name, "reason", string(p.Reason), "field", p.Field, "problem", p.Note, "remedy", p.Remedy)
		if n.o.OnProblem != nil {
			n.o.OnProblem(p)
		}
	}
	for _, p := range before {
		if !hasReason(of.problems, p.Reason) {
			n.o.Logger.Info("the Node no longer lacks a field", "node", name, "reason", string(p.Reason), "field", p.Field)
		}
	}
}

// list publishes the problems of a node, none if it is empty.
func (n *Nodes) list(name string, problems []Problem) {
	n.listing.Lock()
	defer n.listing.Unlock()
	if len(problems) > 0 {
		n.listed[name] = problems
	} else {
		delete(n.listed, name)
	}
}

func hasReason(list []Problem, r Reason) bool {
	return slices.ContainsFunc(list, func(p Problem) bool { return p.Reason == r })
}

const (
	whatSetsAddresses = "see what sets them: the kubelet (--node-ip) or the cloud controller manager"
	remedyPodCIDRs    = "see what sets them: the controller manager (--allocate-node-cidrs) or the network plugin; or choose another detectLocalMode"
)

func (n *Nodes) problems(name string, of *node) (list []Problem) {
	add := func(reason Reason, field, note, remedy string) {
		list = append(list, Problem{name, reason, field, note, remedy})
	}
	if n.o.Node == "" && !of.deletedAt.IsZero() {
		return nil // a machine that is taken away is no problem of a relay
	}
	switch {
	case !of.deletedAt.IsZero():
		add(NodeLost, "metadata.name", "the Node has been deleted; what was known of it last stays in effect", "see whether the kubelet runs and registers it; "+
			"if the machine is to go, stop this process")
	case of.lostAddresses:
		add(AddressesLost, "status.addresses", fmt.Sprintf("addresses that it had are missing; the last known ones stay in effect: %v", of.object.Addresses), whatSetsAddresses+"; if it is meant so, restart this process")
	}
	switch {
	case !n.complete || !n.needs.Addresses || of.object != nil && len(of.object.Addresses) > 0:
	case of.object == nil:
		add(AddressesMissing, "status.addresses", "there is no such Node; NodePorts are served nowhere, because nodePortAddresses says primary", "see whether the kubelet registers it, "+
			"and whether hostnameOverride is its name")
	default:
		add(AddressesMissing, "status.addresses", "it has no address; NodePorts are served nowhere, because nodePortAddresses says primary", whatSetsAddresses+"; or set nodePortAddresses or nodeIPOverride")
	}
	switch {
	case !n.needs.PodCIDRs:
	case of.lostPodCIDRs:
		add(PodCIDRsLost, "spec.podCIDRs", fmt.Sprintf("they are missing; the last known ones stay in effect: %v", of.object.PodCIDRs), remedyPodCIDRs)
	case n.complete && (of.object == nil || len(of.object.PodCIDRs) == 0):
		add(PodCIDRsMissing, "spec.podCIDRs", "they are missing; pods count as clients from outside, because detectLocalMode is NodeCIDR", remedyPodCIDRs)
	}
	return list
}
