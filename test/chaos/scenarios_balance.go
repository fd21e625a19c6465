//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// slicesOfService is how many EndpointSlices with weights a service has in each family.
const slicesOfService = 3

// balances are the ways to balance connections between which services change. From each to the next, a dataplane replaces all that it has for a service.
var balances = []string{"hash", "random", "hash", "hash-connection", "least-connections", "hash", "least-connections", "random"}

// refusing is the service of which a share of connections is refused. It has no load, because a refused connection would count as a fault. No annotation sets a refused
// share, so that the feed adds it to the records.
var refusing = serviceOf{name: "refusing", number: 50}

const (
	// refusedShare is that share.
	refusedShare = 0.5
	// refusedProbes is how many connections are made to the service after each change.
	refusedProbes = 40
)

// refuseShare is a conversion of records.
func refuseShare(s *state.Service) *state.Service {
	if s.Name.Name != refusing.name {
		return s
	}
	with := *s
	with.Ports = slices.Clone(s.Ports)
	for i := range with.Ports {
		for _, r := range with.Ports[i].Routes() {
			if r.Verdict != state.Forward {
				continue
			}
			r.Endpoints = slices.Clone(r.Endpoints)
			for j := range r.Endpoints {
				r.Endpoints[j].Weight = 1
			}
			r.Refused = uint32(len(r.Endpoints)) // as much as all endpoints have
		}
	}
	return &with
}

// shares changes weights and ways to balance, while endpoints come and go. The oracle knows that a weight of 0 gets no new connections. The load looks
// whether a client of a hash stays where it is while nothing changes.
func shares(ctx context.Context, s *stage) (string, error) {
	if s.kind.hashes {
		s.ledger.ExpectHashes()
		s.compares = true
	}
	convert := refuseShare
	s.subject.(*switchyard).feed.(*storeFeed).convert.Store(&convert)
	s.refusing = true
	n, refused, probed := s.scaled(100), 0, 0
	for i := range n {
		s.shuffle()
		s.draw(i)
		if err := s.change(ctx); err != nil {
			return "", err
		}
		if err := pause(ctx, 4*newEvery(s.Rate)); err != nil { // so that each client connects more than once
			return "", err
		}
		for _, ip := range refusing.clusterIPs() {
			for _, a := range s.client.ProbeMany(ctx, refusedProbes/2, 4, state.TCP, netip.AddrPortFrom(ip, tcpPort), topology.ProbeOptions{Timeout: slowAnswer}) {
				probed++
				switch a.Outcome {
				case topology.Answered:
				case topology.Refused, topology.Broken: // a relay has accepted a connection before it refuses it
					refused++
				default:
					return "", fmt.Errorf("a connection to service %s was %v: %w", refusing.name, a.Outcome, a.Err)
				}
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	// Chance exceeds six deviations once in 10^8 runs.
	const sigmas = 6
	if off := math.Abs(float64(refused) - refusedShare*float64(probed)); off > sigmas*math.Sqrt(refusedShare*(1-refusedShare)*float64(probed)) {
		s.wrong = append(s.wrong, fmt.Sprintf("%d of %d connections were refused, of which %.0f%% must be", refused, probed, 100*refusedShare))
	}
	return fmt.Sprintf("%d changes of weights, ways to balance and endpoints; %d of %d connections to a service that refuses half of them were refused",
		n, refused, probed), nil
}

// draw changes weights at random, and the balances of services to the next. The first slice keeps a weight, because it has the endpoint that stays for good.
func (c *cluster) draw(i int) {
	c.weights = []string{fmt.Sprint(1 + c.rng.IntN(100))}
	for len(c.weights) < slicesOfService {
		c.weights = append(c.weights, []string{"0", "1", "5", "60", "65535", ""}[c.rng.IntN(6)])
	}
	for j := range loaded {
		c.balances[loaded[j].name] = balances[(i+3*j)%len(balances)]
	}
}

// mutantsOfShares leave out a feature, so that the server of states converts the records.
var mutantsOfShares = []mutant{
	{withoutFeature("hashes", "draws endpoints at random in spite of a hash", "state.Balances"), "balance", misled, []string{"nftables", "ebpf", "userspace"}},
	{withoutFeature("weights", "shares connections evenly in spite of weights, and refuses none", "state.Weights"), "balance", refusesNone,
		[]string{"nftables", "ebpf", "userspace", "iptables"}},
}

func withoutFeature(name, what, feature string) *variant {
	return &variant{name: "without-" + name, what: what, edits: []edit{
		{"backend/abilities.go", "		return f.Features()\n", "		return f.Features() &^ " + feature + "\n"},
	}}
}

func refusesNone(_ *kind, r *Result) bool {
	return slices.ContainsFunc(r.Wrong, func(w string) bool { return strings.HasPrefix(w, "0 of ") })
}
