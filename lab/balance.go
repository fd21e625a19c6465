//go:build linux

package lab

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

// balance fills in how the endpoints of a call share its connections, by the annotations of the Service and its slices. Annotations for features that
// the dataplane lacks have no effect. The oracle knows no annotations.
func (c *call) balance(world *oracle.World, can state.Features) {
	if c.expect.Outcome != probe.Forward {
		return
	}
	weights, weighted := weightsOf(world, c)
	if weighted {
		c.expect.Choices = slices.DeleteFunc(slices.Clone(c.expect.Choices), func(e probe.Choice) bool { return weights[e.Endpoint] == 0 })
		if len(c.expect.Choices) == 0 {
			c.expect = probe.Answer{Outcome: probe.Reject}
			return
		}
	}
	if weighted && can&state.Weights != 0 {
		c.shares = make(map[netip.AddrPort]float64, len(c.expect.Choices))
		sum := 0.0
		for _, e := range c.expect.Choices {
			sum += weights[e.Endpoint]
		}
		for _, e := range c.expect.Choices {
			c.shares[e.Endpoint] = weights[e.Endpoint] / sum
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

// weightsOf returns the weights of the endpoints of a call, and whether any slice of the Service has one.
func weightsOf(world *oracle.World, c *call) (weights map[netip.AddrPort]float64, weighted bool) {
	weights = map[netip.AddrPort]float64{}
	for _, s := range world.Slices {
		if s.Namespace != c.service.Name.Namespace || s.Service != c.service.Name.Name || s.Family != state.FamilyOf(c.packet.Dst.Addr()) {
			continue
		}
		w, err := strconv.ParseUint(s.Weight, 10, 16)
		if err != nil || s.CiliumWeight {
			w = 1
		} else {
			weighted = true
		}
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				at := netip.AddrPortFrom(e.Addr, p.Port)
				weights[at] = max(weights[at], float64(w))
			}
		}
	}
	return weights, weighted
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
	if c.silent[endpoint.Addr()] {
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
