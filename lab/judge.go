//go:build linux

package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// sourceSeen is whose address the endpoint saw.
type sourceSeen uint8

const (
	sourceNone sourceSeen = iota
	// sourceKept is the client's own address.
	sourceKept
	// sourceNode is an address of the node under test: the connection was masqueraded.
	sourceNode
	// sourceMixed: hairpin connections are masqueraded and those to other endpoints are not.
	sourceMixed
)

func (s sourceSeen) String() string { return [...]string{"", "kept", "node", "mixed"}[s] }

// result is the outcome of the connections of one call.
type result struct {
	call
	// connections is how many were made.
	connections int
	// outcome is what most of them came to.
	outcome topology.Outcome
	// servers counts the answers by server.
	servers map[string]int
	source  sourceSeen
	// handedOver is how many connections the edge has handed over to other nodes.
	handedOver int
	// p50 is the median time to the outcome.
	p50 time.Duration
	// surprises are sentences about deviations from the oracle, none if there are none.
	surprises []string
}

// directory names the servers: by the address of the endpoint and the protocol.
type directory map[endpointKey]string

type endpointKey struct {
	protocol string
	addr     netip.AddrPort
}

func (d directory) name(c *call, addr netip.AddrPort) string {
	if name, ok := d[endpointKey{c.packet.Protocol.String(), addr}]; ok {
		return name
	}
	return addr.String()
}

// judge sums up the answers of one call and compares them with the expected ones.
func judge(c call, answers []topology.Answer, servers directory, nodeAddrs []netip.Addr) result {
	r := result{call: c, connections: len(answers), servers: make(map[string]int)}
	outcomes := make(map[topology.Outcome]int)
	var times []time.Duration
	for _, a := range answers {
		outcomes[a.Outcome]++
		times = append(times, a.Latency)
		if a.Outcome == topology.Answered {
			r.servers[a.Server]++
			r.see(sourceOf(&c, a.Source.Addr(), nodeAddrs))
		}
	}
	if len(times) > 0 {
		slices.Sort(times)
		r.p50 = times[len(times)/2]
	}
	for _, o := range slices.Sorted(maps.Keys(outcomes)) {
		if outcomes[o] > outcomes[r.outcome] || outcomes[r.outcome] == 0 {
			r.outcome = o
		}
	}
	want := map[probe.Outcome]topology.Outcome{probe.Forward: topology.Answered, probe.Reject: topology.Refused, probe.Drop: topology.TimedOut}[c.expect.Outcome]
	for _, o := range slices.Sorted(maps.Keys(outcomes)) {
		if o != want {
			r.surprise("%d of %d connections: %v, want %v%s", outcomes[o], len(answers), o, want, detail(answers, o))
		}
	}
	if want == topology.Answered && outcomes[topology.Answered] > 0 {
		r.judgeServers(servers)
		r.judgeSources(answers, servers, nodeAddrs)
		r.countHandedOver(answers, servers)
	}
	return r
}

func (r *result) surprise(format string, args ...any) {
	r.surprises = append(r.surprises, fmt.Sprintf(format, args...))
}

func (r *result) see(s sourceSeen) {
	if r.source != sourceNone && r.source != s {
		s = sourceMixed
	}
	r.source = s
}

// detail adds the reason of the first answer with an outcome that has one.
func detail(answers []topology.Answer, o topology.Outcome) string {
	for _, a := range answers {
		if a.Outcome == o && a.Err != nil && (o == topology.Broken || o == topology.Unreachable) {
			return fmt.Sprintf(" (%v)", a.Err)
		}
	}
	return ""
}

// judgeServers: exactly the expected endpoints answer, with affinity exactly one of them.
func (r *result) judgeServers(servers directory) {
	missing := make(map[string]bool)
	for _, choice := range r.expect.Choices {
		missing[servers.name(&r.call, choice.Endpoint)] = true
	}
	expected := maps.Clone(missing)
	for _, name := range slices.Sorted(maps.Keys(r.servers)) {
		if !expected[name] {
			r.surprise("%s answered, which is none of its endpoints here (%s)", name, strings.Join(slices.Sorted(maps.Keys(expected)), ", "))
		}
		delete(missing, name)
	}
	for _, choice := range r.expect.Choices {
		if !r.isDue(choice.Endpoint, r.connections) {
			delete(missing, servers.name(&r.call, choice.Endpoint))
		}
	}
	switch {
	case r.expect.Affinity != "" && len(r.servers) > 1:
		r.surprise("%d endpoints answered one client in spite of sessionAffinity", len(r.servers))
	case r.hashed && len(r.servers) > 1:
		r.surprise("%d endpoints answered one client in spite of %s: hash", len(r.servers), model.BalanceAnnotation)
	case !r.sticks() && len(missing) > 0:
		r.surprise("%s never answered", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	case !r.sticks():
		r.judgeShares(servers)
	}
}

// judgeSources: an endpoint sees the node's address exactly if its connections are masqueraded. An endpoint that is the
// node itself always sees the client, because Linux does not replace the source of packets to the node itself. Where
// the node relays, all see the node. Where the edge takes the connections, all see the client.
func (r *result) judgeSources(answers []topology.Answer, servers directory, nodeAddrs []netip.Addr) {
	masquerade := make(map[string]bool)
	for _, choice := range r.expect.Choices {
		masquerade[servers.name(&r.call, choice.Endpoint)] = r.relayed || choice.Masquerade && !r.taken() && !slices.Contains(nodeAddrs, choice.Endpoint.Addr())
	}
	described := make(map[string]bool)
	for _, a := range answers {
		want, known := masquerade[a.Server]
		if a.Outcome != topology.Answered || !known || described[a.Server] {
			continue
		}
		got := a.Source.Addr()
		fromNode := slices.Contains(nodeAddrs, got)
		// Packets from the node itself always have one of its addresses.
		if ok := fromNode == want || r.packet.From == probe.FromNode && fromNode; !ok || !fromNode && got != r.packet.Src {
			described[a.Server] = true
			r.surprise("%s saw the source %v; the client is %v and its address must be %s", a.Server, got, r.packet.Src,
				map[bool]string{true: "replaced by the node's", false: "kept"}[want])
		}
	}
}

// sticks reports whether a client has one endpoint.
func (c *call) sticks() bool { return c.expect.Affinity != "" || c.hashed }

func sourceOf(c *call, seen netip.Addr, nodeAddrs []netip.Addr) sourceSeen {
	switch {
	case slices.Contains(nodeAddrs, seen):
		return sourceNode
	case seen == c.packet.Src:
		return sourceKept
	}
	return sourceMixed
}
