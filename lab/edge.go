//go:build linux

package lab

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// EdgeMark is the packet mark bit by which dataplanes of the lab know packets of the edge.
const EdgeMark = 1 << 13

// edgePorts is how many ports of Services the edge has room for. A port takes 8 KB.
const edgePorts = 1024

// EdgeAvailable returns why the nodes of a lab cannot hand connections over to each other on this machine.
func EdgeAvailable() error { return edge.Available(edgeSettings) }

var edgeSettings = edge.Settings{Mark: EdgeMark, MaxSlots: edgePorts * edge.DefaultTableSize}

// elsewhere are the options of nodes that are not under test. They log nothing, because the node under test logs the same.
func (o Options) elsewhere(ctx context.Context) *Options {
	o.Logger = slog.New(slog.DiscardHandler)
	o.Dataplane = func(*topology.Lab) (Dataplane, error) { return nftables.New(ctx, nftables.Options{Edge: EdgeMark}) }
	return &o
}

// withEdge is a dataplane with the edge in front of it. The dataplane shows an update before the edge sends packets by it.
type withEdge struct {
	backend.Backend
	edge *edge.Edge
}

// Features implements [backend.Featured].
func (d withEdge) Features() state.Features { return backend.FeaturesOf(d.Backend) }

// Apply implements [backend.Backend].
func (d withEdge) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	r, err := d.Backend.Apply(ctx, u)
	if err == nil {
		err = d.edge.Apply(u, r.Failed)
	}
	return r, err
}

// Verify implements [backend.Backend].
func (d withEdge) Verify(ctx context.Context) (backend.Result, error) {
	r, err := d.Backend.Verify(ctx)
	repaired, edgeErr := d.edge.Verify()
	r.Repaired += repaired
	return r, errors.Join(err, edgeErr)
}

// handsOver fills in which endpoints of calls are on other nodes, where the edge of the node under test takes the connections.
func (s *session) handsOver(calls []call) {
	if s.edge == nil {
		return
	}
	elsewhere := map[netip.Addr]bool{}
	for _, slice := range s.world.Slices {
		for _, e := range slice.Endpoints {
			elsewhere[e.Addr] = e.NodeName != nodeName
		}
	}
	for i := range calls {
		if s.takes(&calls[i]) {
			calls[i].elsewhere = elsewhere
		}
	}
}

// takes reports whether the edge takes the connections of a call, by the record of its port.
func (p *pipeline) takes(c *call) bool {
	dst := c.packet.Dst
	for port, f := range p.store.Snapshot().Get(c.service.Name).Frontends() {
		if f.Kind == c.kind && f.Port == dst.Port() && (f.Addr == dst.Addr() || f.Kind == state.NodePort) && port.Protocol == c.packet.Protocol && port.Family == state.FamilyOf(dst.Addr()) {
			return c.packet.From == probe.FromOutside && port.Edge.Takes(f.Kind) && len(port.Edge.Shares) > 0
		}
	}
	return false
}

// taken reports whether the edge takes the connections of the call.
func (c *call) taken() bool { return c.elsewhere != nil }

// countHandedOver counts the connections that were handed over: an endpoint on another node answered the client, and saw its address.
func (r *result) countHandedOver(answers []topology.Answer, servers directory) {
	elsewhere := map[string]bool{}
	for _, choice := range r.expect.Choices {
		if r.elsewhere[choice.Endpoint.Addr()] {
			elsewhere[servers.name(&r.call, choice.Endpoint)] = true
		}
	}
	for _, a := range answers {
		if a.Outcome == topology.Answered && elsewhere[a.Server] && a.Source.Addr() == r.packet.Src {
			r.handedOver++
		}
	}
}
