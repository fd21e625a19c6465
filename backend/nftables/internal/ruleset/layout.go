package ruleset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

var families = []state.Family{state.IPv4, state.IPv6}

func table(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: TableName} }

// space is a key space of frontends. Each has the same sets, prefixed with its name.
type space uint8

const (
	global    space = iota // sets that are not about single frontends
	service                // frontends with an address: address . protocol . port
	nodePort               // NodePorts: protocol . port, on any of the addresses in node-port-ips
	ranges                 // ranges of ports: the number of the frontend, which the blocks of its ports lead to
	numSpaces = 4
)

func (s space) prefix() string {
	switch s {
	case service:
		return "service-"
	case nodePort:
		return "node-port-"
	case ranges:
		return "range-"
	}
	return ""
}

// view is which of a frontend's routes a connection takes. A frontend is either split or not, and its views in these two states share no
// element. A commit may split a frontend just after a packet found it unsplit. Such a packet must not find the endpoints for inside clients
// only. It finds nothing, and looks again.
type view uint8

const (
	common   view = iota // of all clients, for frontends that are not split
	outside              // of outside clients, for split frontends
	inside               // of all other clients, for split frontends
	edge                 // of connections that nodes hand over to each other (edge.go), split or not
	numViews = 4
	// clientViews are how many views there are without the edge. They come first.
	clientViews = 3
)

// slotOffset separates the slots of the views in the same map.
func (v view) slotOffset() uint32 { return uint32(v) << 16 }

// numberedSlots separates the slots at the numbers of endpoints from the slots to draw from, and the slots of the views from each
// other. Frontends with
// affinity have them.
func (v view) numberedSlots() uint32 { return 1<<31 | uint32(v)<<endpointNumberBits }

// endpointNumberBits is how many bits the numbers of endpoints have.
const endpointNumberBits = 28

var viewNames = [numViews]string{"", "outside", "inside", "edge"}

func (v view) infix() string {
	if v == common {
		return ""
	}
	return viewNames[v] + "-"
}

// kind is what a set is for.
type kind uint8

const (
	// Global sets.
	clusterIPs      kind = iota + 1 // addresses of ClusterIP frontends
	externalIPs                     // addresses of LoadBalancer and ExternalIP frontends
	nodePortIPs                     // local addresses that serve NodePorts
	hairpin                         // address . address, for each address of an endpoint
	allowed                         // number of a list . client range of prefix length arg
	endpointNumbers                 // number of a port with affinity . endpoint : number of the endpoint
	affinity                        // number of a port with affinity . client : number of an endpoint. Filled by rules.

	// Sets of both spaces. F is the space's key.
	restricted // F : number of the list of clients; only these may connect
	split      // F: outside clients take the outside view, others the inside one, and no client the common one
	masquerade // F: masquerade rule arg (a state.Masquerade) applies, not the space's usual one
	endpoints  // F: the view has more than one and at most arg endpoints
	slots      // F . index : endpoint
	reject     // F: the view has no endpoint
	drop       // F: likewise
	sticky     // F : number of its port, which has client affinity
	stickyFor  // F: client affinity of arg seconds

	// Sets of both spaces whose elements count packets, for every frontend, if that is set. F is the space's key.
	counts       // F: new connections to the frontend, wherever they go
	rejectCounts // F: connections that were rejected
	dropCounts   // F: connections that were dropped

	unserved     // F, of NodePorts over IPv6 alone: refused on ::1, because the relay there serves TCP only
	localRejects // global: protocol. Counts packets to NodePorts on loopback addresses that were refused; empty unless NodePorts are served there

	// A set of both spaces, in use only for routes with weights.
	shares // F: the view has arg slots, and connections that draw an empty one are rejected

	// Sets of both spaces, and a global one, in use only for routes whose connections are hashed.
	hashed          // F: the view has one of the next two
	hashClients     // F : number of a table with arg slots, by the client's address
	hashConnections // F : likewise, by the client's address and port
	hashRefuses     // F: connections whose slot is empty are rejected
	hashSlots       // global: number of a table . index : endpoint

	// Global sets, in use only for addresses that answer echo requests. They have views, too.
	pingIPs     // addresses that answer all clients
	pingAllowed // address . client range of prefix length arg
	pingDropIPs // addresses that do not answer all clients, without a view
	// Sets in use only for ranges of ports.
	blocks   // of the space service: address . protocol . first of the ports that have their first arg bits in common : number of the frontend
	rangeIPs // global: addresses of ranges

	// A set of the spaces with an edge view.
	handedOver // F: this node hands connections over, so that it may not know their packets
)

// isByLength reports whether there is one such set for each length of prefixes or blocks. The rules for a new length are committed first: [Plan.WriteAhead].
func (k kind) isByLength() bool { return k == allowed || k == pingAllowed || k == blocks }

// countKinds are the kinds of sets whose elements count.
var countKinds = [...]kind{counts, rejectCounts, dropCounts}

// setID identifies a set within a table.
type setID struct {
	space space
	view  view
	kind  kind
	arg   uint32
}

var kindNames = map[kind]string{
	clusterIPs: "cluster-ips", externalIPs: "external-ips", nodePortIPs: "node-port-ips", hairpin: "hairpin", allowed: "allowed",
	endpointNumbers: "endpoint-numbers", affinity: "affinity", restricted: "restricted", split: "split", masquerade: "masquerade",
	endpoints: "endpoints", slots: "slots", reject: "reject", drop: "drop", sticky: "sticky", stickyFor: "sticky",
	counts: "counts", rejectCounts: "reject-counts", dropCounts: "drop-counts", unserved: "localhost-unserved", localRejects: "localhost-rejects",
	shares: "shares", hashed: "hashed", hashClients: "hash", hashConnections: "hash-ports", hashRefuses: "hash-refuses", hashSlots: "hash-slots",
	pingIPs: "ping-ips", pingAllowed: "ping-allowed", pingDropIPs: "ping-drop-ips",
	blocks: "ranges", rangeIPs: "range-ips", handedOver: "handed-over",
}

var masqueradeNames = [...]string{
	state.MasqueradeNever:     "never",
	state.MasqueradeAlways:    "always",
	state.MasqueradeUnlessPod: "unless-pod",
	state.MasqueradeNode:      "node",
}

func (id setID) name() string {
	name := id.space.prefix() + id.view.infix() + kindNames[id.kind]
	switch id.kind {
	case masquerade:
		name += "-" + masqueradeNames[id.arg]
	case endpoints, shares, stickyFor, allowed, hashClients, hashConnections, pingAllowed, blocks:
		name += "-" + strconv.Itoa(int(id.arg))
	}
	return name
}

func addrType(f state.Family) nft.Type {
	if f == state.IPv6 {
		return nft.TypeIPv6
	}
	return nft.TypeIPv4
}

func (s space) keyTypes(f state.Family) []nft.Type {
	switch s {
	case service:
		return []nft.Type{addrType(f), nft.TypeProto, nft.TypePort}
	case nodePort:
		return []nft.Type{nft.TypeProto, nft.TypePort}
	case ranges:
		return []nft.Type{nft.TypeMark}
	}
	return nil
}

// set returns the set as any settings make it, but for the size of that which rules fill.
func (id setID) set(f state.Family) nft.Set {
	addr := addrType(f)
	key := id.space.keyTypes(f)
	s := nft.Set{Name: id.name(), Key: key}
	switch id.kind {
	case clusterIPs, externalIPs, nodePortIPs, pingIPs, pingDropIPs, rangeIPs:
		s.Key = []nft.Type{addr}
	case hairpin, pingAllowed:
		s.Key = []nft.Type{addr, addr}
	case allowed:
		s.Key = []nft.Type{nft.TypeMark, addr}
	case endpointNumbers:
		s.Key = []nft.Type{nft.TypeMark, addr, nft.TypePort}
		s.Data = []nft.Type{nft.TypeMark}
	case affinity:
		s.Key = []nft.Type{nft.TypeMark, addr}
		s.Data = []nft.Type{nft.TypeMark}
		s.Dynamic = true
	case slots:
		s.Key = append(key, nft.TypeMark)
		s.Data = []nft.Type{addr, nft.TypePort}
		if id.space == ranges {
			s.Data = s.Data[:1] // connections keep their port
		}
	case hashSlots:
		s.Key = []nft.Type{nft.TypeMark, nft.TypeMark}
		s.Data = []nft.Type{addr, nft.TypePort}
	case restricted, sticky, hashClients, hashConnections, blocks:
		s.Data = []nft.Type{nft.TypeMark}
	case counts, rejectCounts, dropCounts:
		s.Counted = true
	case localRejects:
		s.Key = []nft.Type{nft.TypeProto}
		s.Counted = true
	}
	return s
}

// classes are the sizes that endpoint lists are rounded up to. A frontend with n endpoints picks one of so many slots at random. Classes up
// to 16 are exact. In larger ones, at least two thirds of the slots are filled, and a pick of an empty slot is repeated. So the rounding
// wastes little and keeps the distribution even.
var classes = func() []uint32 {
	var c []uint32
	for k := uint32(2); k <= exactClass; k++ {
		c = append(c, k)
	}
	for k := uint32(exactClass); k < maxEndpoints; k *= 2 {
		c = append(c, k+k/2, 2*k)
	}
	return c
}()

// shareClasses are the classes of routes with weights. There are few, because each costs other connections a lookup. The largest ones are for
// routes to many endpoints.
var shareClasses = []uint32{64, 256, 1024, 4096, maxEndpoints}

// classesOf has the classes of the kinds of sets that have any.
var classesOf = map[kind][]uint32{endpoints: classes, shares: shareClasses}

const (
	exactClass = 16
	// maxEndpoints is how many endpoints (by weight) one frontend can have. The slots of a view must stay below 1<<16.
	maxEndpoints = 1 << 14
	// tries is how often a pick is made in a class that is not exact. With a third of the slots empty, 1 pick in 729 finds
	// none, and goes to slot 0.
	tries = 6
)

// classOf returns the smallest class for n endpoints, 0 for 1 (slot 0 needs no class) and none.
func classOf(n int) uint32 {
	if n < 2 {
		return 0
	}
	i, _ := slices.BinarySearch(classes, uint32(n))
	return classes[i]
}

// shape is what the skeleton depends on in addition to the settings. Apart from what the settings decide, it only grows while the
// dataplane is up.
type shape struct {
	// counted is set if connections are counted, and edge if there is an edge view. The settings decide.
	counted, edge bool
	// class is the largest class in use, by space and view; 0 if none is.
	class [numSpaces][numViews]uint32
	// share is the largest class in use of routes with weights, likewise.
	share [numSpaces][numViews]uint32
	// hash has which rules of hashing are in use, likewise.
	hash [numSpaces][numViews]hashRules
	// blocks are the lengths of blocks of ports in use.
	blocks blockLengths
	// lengths are the prefix lengths of allowed clients in use, by family.
	lengths [2]lengths
	// ping has which addresses answer echo requests, likewise.
	ping [2]pingShape
	// timeouts are the affinity timeouts in use, in seconds, sorted.
	timeouts []uint32
	// loopback is set if NodePorts are served on IPv4 loopback addresses, which takes a guard.
	loopback bool
}

// lengths is a set of prefix lengths, 0 to 128.
type lengths [129]bool

func (l *lengths) needs(n uint32) (isNew bool) {
	isNew = !l[n]
	l[n] = true
	return isNew
}

// of returns the prefix lengths of a family.
func (s *shape) of(f state.Family) *lengths {
	if f == state.IPv6 {
		return &s.lengths[1]
	}
	return &s.lengths[0]
}

func (s shape) clone() shape {
	s.timeouts = slices.Clone(s.timeouts)
	return s
}

func (s *shape) equal(o *shape) bool {
	return s.counted == o.counted && s.edge == o.edge && s.class == o.class && s.share == o.share && s.hash == o.hash && s.blocks == o.blocks && s.lengths == o.lengths &&
		s.ping == o.ping && s.loopback == o.loopback && slices.Equal(s.timeouts, o.timeouts)
}

// needs makes sure that the shape has room for a set of a family. It reports whether the shape had none before.
func (s *shape) needs(f state.Family, id setID) (isNew bool) {
	switch id.kind {
	case endpoints:
		return grow(&s.class[id.space][id.view], id.arg)
	case shares:
		return grow(&s.share[id.space][id.view], id.arg)
	case hashClients, hashConnections, hashRefuses:
		rules := &s.hash[id.space][id.view]
		isNew = *rules&hashRule(id) == 0
		*rules |= hashRule(id)
	case allowed:
		return s.of(f).needs(id.arg)
	case pingIPs, pingAllowed, pingDropIPs:
		return s.ping[index(f)].needs(id)
	case blocks:
		isNew = !s.blocks.has(id.arg)
		s.blocks |= 1 << id.arg
	case stickyFor:
		i, found := slices.BinarySearch(s.timeouts, id.arg)
		if isNew = !found; isNew {
			s.timeouts = slices.Insert(s.timeouts, i, id.arg)
		}
	}
	return isNew
}

// grow makes sure that a class is the largest one in use.
func grow(largest *uint32, class uint32) (isNew bool) {
	isNew = class > *largest
	*largest = max(*largest, class)
	return isNew
}

// maxExactTimeouts is how many different affinity timeouts are kept as they are: each takes rules that all connections with
// affinity pass. Further ones are rounded up to one of timeoutSteps.
const maxExactTimeouts = 64

// timeoutSteps grow by a second, later by a fifth, up to Kubernetes' longest timeout, a day.
var timeoutSteps = func() []uint32 {
	const longest = 86_400
	var steps []uint32
	for t := uint32(1); t < longest; t += max(1, t/5) {
		steps = append(steps, t)
	}
	return append(steps, longest)
}()

// timeout returns the timeout that represents so many seconds. A timeout that is in use stays unchanged.
func (s *shape) timeout(seconds uint32) uint32 {
	if _, ok := slices.BinarySearch(s.timeouts, seconds); ok {
		return seconds
	}
	step, isStep := slices.BinarySearch(timeoutSteps, seconds)
	exact := 0
	for _, t := range s.timeouts {
		if _, ok := slices.BinarySearch(timeoutSteps, t); !ok {
			exact++
		}
	}
	if isStep || exact < maxExactTimeouts {
		return seconds
	}
	return timeoutSteps[min(step, len(timeoutSteps)-1)]
}

// merge makes sure that the shape has room for all that another has room for, up to what the settings decide.
func (s *shape) merge(o shape) {
	for sp := range s.class {
		for v := range s.class[sp] {
			s.class[sp][v] = max(s.class[sp][v], o.class[sp][v])
			s.share[sp][v] = max(s.share[sp][v], o.share[sp][v])
			s.hash[sp][v] |= o.hash[sp][v]
		}
	}
	s.blocks |= o.blocks
	for f := range s.lengths {
		for n, used := range o.lengths[f] {
			s.lengths[f][n] = s.lengths[f][n] || used
		}
	}
	for f := range s.ping {
		s.ping[f].merge(&o.ping[f])
	}
	for _, t := range o.timeouts {
		s.needs(0, setID{kind: stickyFor, arg: t})
	}
	s.loopback = s.loopback || o.loopback
}

// shapeOf reads the shape off the names of the sets of a family's table.
func shapeOf(f state.Family, names []string) shape {
	var s shape
	for _, name := range names {
		if n, ok := suffixNumber(name, kindNames[allowed]+"-"); ok && int(n) <= 8*addrLen(f) {
			s.needs(f, setID{kind: allowed, arg: n})
		}
		s.ping[index(f)].read(f, name)
		if n, ok := suffixNumber(name, service.prefix()+kindNames[blocks]+"-"); ok && n <= portBits {
			s.needs(f, setID{space: service, kind: blocks, arg: n})
		}
		for _, sp := range []space{service, nodePort, ranges} {
			for _, k := range countKinds {
				s.counted = s.counted || name == setID{space: sp, kind: k}.name()
			}
			s.edge = s.edge || name == setID{space: sp, kind: handedOver}.name()
			for v := range view(numViews) {
				for k, in := range classesOf {
					if n, ok := suffixNumber(name, sp.prefix()+v.infix()+kindNames[k]+"-"); ok && slices.Contains(in, n) {
						s.needs(f, setID{space: sp, view: v, kind: k, arg: n})
					}
				}
				if !strings.Contains(name, "hash") { // the names of all sets that hash contain it
					continue
				}
				for _, id := range allHashRules.sets(sp, v) {
					if name == id.name() {
						s.needs(f, id)
					}
				}
			}
			if n, ok := suffixNumber(name, sp.prefix()+kindNames[stickyFor]+"-"); ok {
				s.needs(f, setID{space: sp, kind: stickyFor, arg: n})
			}
		}
	}
	return s
}

func suffixNumber(name, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && fmt.Sprint(n) == digits
}

// usualMasquerade is the rule for frontends that are in no masquerade set.
func (s *Settings) usualMasquerade(sp space, f state.Family) state.Masquerade {
	switch {
	case sp == nodePort:
		return state.MasqueradeAlways
	case s.LocalDetector.Detects(f):
		return state.MasqueradeUnlessPod
	}
	return state.MasqueradeNever
}

// AffinitySet is the name of the set that rules fill.
func AffinitySet() string { return setID{kind: affinity}.name() }

// sets returns all sets of a table of the given shape.
func (s *Settings) sets(f state.Family, sh *shape) []nft.Set {
	ids := setIDs(f, sh)
	sets := make([]nft.Set, len(ids))
	for i, id := range ids {
		sets[i] = id.set(f)
		if id.kind == affinity {
			sets[i].MaxSize = s.MaxAffinityClients
		}
	}
	return sets
}

// setIDs returns all sets of a table of the given shape. They depend on nothing else in the settings, so that a table can be kept when
// the settings change.
func setIDs(f state.Family, sh *shape) []setID {
	ids := []setID{{kind: clusterIPs}, {kind: externalIPs}, {kind: nodePortIPs}, {kind: hairpin}, {kind: endpointNumbers},
		{kind: affinity}, {kind: localRejects}, {space: service, kind: restricted}}
	if sh.hashes() {
		ids = append(ids, setID{kind: hashSlots})
	}
	if sh.blocks != 0 {
		ids = append(ids, setID{kind: rangeIPs}, setID{space: ranges, kind: restricted})
	}
	for length := range sh.blocks.each {
		ids = append(ids, setID{space: service, kind: blocks, arg: uint32(length)})
	}
	if f == state.IPv6 {
		ids = append(ids, setID{space: nodePort, kind: unserved})
	}
	for n, used := range sh.of(f) {
		if used {
			ids = append(ids, setID{kind: allowed, arg: uint32(n)})
		}
	}
	ids = append(ids, sh.ping[index(f)].sets()...)
	for _, s := range sh.spaces() {
		ids = append(ids, setID{space: s, kind: split}, setID{space: s, kind: slots}, setID{space: s, kind: sticky})
		for m := range masqueradeNames {
			ids = append(ids, setID{space: s, kind: masquerade, arg: uint32(m)})
		}
		for _, t := range sh.timeouts {
			ids = append(ids, setID{space: s, kind: stickyFor, arg: t})
		}
		if sh.counted {
			for _, k := range countKinds {
				ids = append(ids, setID{space: s, kind: k})
			}
		}
		if sh.hasEdge(s) {
			ids = append(ids, setID{space: s, kind: handedOver})
		}
		for _, v := range sh.views(s) {
			ids = append(ids, setID{space: s, view: v, kind: reject}, setID{space: s, view: v, kind: drop})
			for _, k := range classes {
				if k <= sh.class[s][v] {
					ids = append(ids, setID{space: s, view: v, kind: endpoints, arg: k})
				}
			}
			for _, k := range shareClasses {
				if k <= sh.share[s][v] {
					ids = append(ids, setID{space: s, view: v, kind: shares, arg: k})
				}
			}
			if rules := sh.hash[s][v]; rules != 0 {
				ids = append(append(ids, setID{space: s, view: v, kind: hashed}), rules.sets(s, v)...)
			}
		}
	}
	return ids
}
