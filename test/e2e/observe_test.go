//go:build linux

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

const (
	// silence is how long a packet is waited for that should be dropped.
	silence = 300 * time.Millisecond
	// answerTimeout is how long an answer may take on a busy machine.
	answerTimeout = 3 * time.Second
)

// observation is the outcome of several connections of one client to one frontend.
type observation struct {
	// servers are those that answered, with the kind of source address that they saw.
	servers map[string]string
	// others counts the other outcomes.
	others map[topology.Outcome]int
}

func (o observation) String() string {
	var words []string
	for _, server := range slices.Sorted(maps.Keys(o.servers)) {
		words = append(words, fmt.Sprintf("%s (source %s)", server, o.servers[server]))
	}
	for _, outcome := range slices.Sorted(maps.Keys(o.others)) {
		words = append(words, outcome.String())
	}
	return strings.Join(words, ", ")
}

// same reports whether two observations are of the same behaviour.
func (o observation) same(p observation) bool {
	outcomes := func(o observation) []topology.Outcome { return slices.Sorted(maps.Keys(o.others)) }
	return maps.Equal(o.servers, p.servers) && slices.Equal(outcomes(o), outcomes(p))
}

// Probes come from these ports.
const firstProbePort, lastProbePort = 10000, 60000

// ports hands out source ports: a proxy may remember the flows of those that were used before.
type ports struct {
	mu   sync.Mutex
	next uint16
}

// take returns the first of n ports.
func (p *ports) take(n int) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next < firstProbePort || int(p.next)+n > lastProbePort+1 {
		p.next = firstProbePort
	}
	first := p.next
	p.next += uint16(n)
	return first
}

// observe makes connections one after the other and adds the outcome of them to o.
func (n *node) observe(ctx context.Context, o *observation, p probe.Packet, firstPort uint16, count int, timeout time.Duration) {
	if o.servers == nil {
		o.servers, o.others = map[string]string{}, map[topology.Outcome]int{}
	}
	for i := range count {
		answer := n.senders[p.Src].Probe(ctx, p.Protocol, p.Dst, topology.ProbeOptions{
			Source: p.Src, SourcePort: firstPort + uint16(i), Timeout: timeout,
		})
		if answer.Outcome != topology.Answered {
			o.others[answer.Outcome]++
			continue
		}
		source := n.sourceKind(p.Src, answer.Source.Addr())
		if old, ok := o.servers[answer.Server]; ok && old != source {
			source = old + " or " + source
		}
		o.servers[answer.Server] = source
	}
}

// sourceKind describes what a server's view of the client's address means.
func (n *node) sourceKind(client, seen netip.Addr) string {
	switch {
	case slices.Contains(n.Node().Addrs, seen):
		return "node"
	case seen == client:
		return "kept"
	}
	return seen.String()
}
