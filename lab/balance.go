//go:build linux

package lab

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// balance fills in how the endpoints of a call share its connections, by the weights that the oracle knows. Weights and hashes that the dataplane lacks have
// no effect. With a slow start, shares change while connections are counted, so that there are none to expect.
func (c *call) balance(can state.Features) {
	c.growing = c.service.Annotation(model.SlowStartAnnotation) != ""
	sum := 0.0
	for _, e := range c.expect.Choices {
		sum += float64(e.Weight)
	}
	if sum > 0 && can&state.Weights != 0 && !c.growing {
		c.shares = make(map[netip.AddrPort]float64, len(c.expect.Choices))
		for _, e := range c.expect.Choices {
			c.shares[e.Endpoint] = float64(e.Weight) / sum
		}
	}
	c.hashed = can&state.Balances != 0 && c.service.Affinity < time.Second && c.service.Annotation(model.BalanceAnnotation) == "hash"
}

// meets fills in which endpoints of the call are silent, of all silent addresses, if its Service ejects them.
func (c *call) meets(silent map[netip.Addr]bool) {
	isSilent := func(e probe.Choice) bool { return silent[e.Endpoint.Addr()] }
	if c.packet.Protocol == state.TCP && c.service.Annotation(model.EjectAnnotation) == "true" && slices.ContainsFunc(c.expect.Choices, isSilent) {
		c.silent = silent
	}
}

const (
	// mostInRound bounds the connections of a call with weights in one round.
	mostInRound = 512
	// sure is how many connections an endpoint must be due for its silence to be a fault. It is missed once in 10^13 times.
	sure = perEndpoint * maxRounds
)

// inRound is how many connections of the call reach each endpoint about perEndpoint times.
func (c *call) inRound() int {
	n := perEndpoint * len(c.expect.Choices)
	for _, share := range c.shares {
		n = max(n, int(min(math.Ceil(perEndpoint/share), mostInRound)))
	}
	return n
}

// isDue reports whether so many connections must reach an endpoint.
func (c *call) isDue(endpoint netip.AddrPort, connections int) bool {
	if c.growing || c.silent[endpoint.Addr()] {
		return false
	}
	share, ok := c.shares[endpoint]
	return !ok || share*float64(connections) >= sure
}

// judgeShares: endpoints get the shares that their weights ask for. Dataplanes may be off by one slot of 64.
func (r *result) judgeShares(servers directory) {
	due := map[string]float64{}
	for endpoint, share := range r.shares {
		due[servers.name(&r.call, endpoint)] += share
	}
	n := float64(r.connections)
	for name, share := range due {
		// The deviation of a draw is exceeded six times once in 10^8 times.
		if off := math.Abs(float64(r.servers[name]) - n*share); off > 6*math.Sqrt(n*share*(1-share))+n/64+3 {
			r.surprise("%s answered %d of %d connections; its weight asks for %.1f%%", name, r.servers[name], r.connections, 100*share)
		}
	}
}
