//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// edgeKinds are the frontends that the edge of the suite takes.
var edgeKinds = state.KindsOf(state.ExternalIP, state.LoadBalancer, state.NodePort)

// withEdge returns objects in which the Nodes say whether they take part in the edge.
func (c *cluster) withEdge(set []model.Object) []model.Object {
	if !c.dataplane.Edge {
		return set
	}
	set = slices.Clone(set)
	for i, o := range set {
		if n, ok := o.(*model.Node); ok && slices.Contains(c.inEdge, n.Name) {
			part := *n
			part.Edge = fmt.Sprintf("v1,%d", EdgePort)
			set[i] = &part
		}
	}
	return set
}

// handsOver reports whether the edge takes connections of a host to dst, so that servers see the host.
func (c *cluster) handsOver(from *topology.Host, proto state.Protocol, dst netip.AddrPort) bool {
	if !c.dataplane.Edge || from != c.lab.Client() {
		return false
	}
	for s := range c.store.Snapshot().Services() {
		for p, f := range s.Frontends() {
			is := f.Addr == dst.Addr() || f.Kind == state.NodePort && slices.Contains(c.lab.Node().Addrs, dst.Addr())
			if is && p.Protocol == proto && f.Port == dst.Port() && p.Family == state.FamilyOf(dst.Addr()) && p.Edge.Takes(f.Kind) && len(p.Edge.Shares) > 0 {
				return true
			}
		}
	}
	return false
}

// handOver: hand-over NAME
//
// A client outside the cluster whose packets come in at the other node, which hands them over to the node under test.
func (s *story) handOver(_ *testscript.TestScript, args []string) error {
	if len(args) != 1 || s.hosts[args[0]] != nil {
		return errors.New("usage: hand-over NAME, of a host that there is not")
	}
	client, err := s.cluster.lab.AddHandedOver(args[0], EdgePort)
	if err == nil {
		s.hosts[client.Name] = client
	}
	return err
}

// stray: stray FROM TO[,TO] reset|dropped
//
// The host sends a packet in a connection of TCP that nobody else knows. Either the answer is a reset, or nothing comes back.
func (s *story) stray(_ *testscript.TestScript, args []string) error {
	if len(args) != 3 || s.hosts[args[0]] == nil || args[2] != "reset" && args[2] != "dropped" {
		return errors.New("usage: stray FROM TO reset|dropped")
	}
	host, timeout := s.hosts[args[0]], answerTimeout
	if args[2] == "dropped" {
		timeout = silence
	}
	dsts, err := s.resolve(args[1])
	if err != nil {
		return err
	}
	var checks []func() error
	for _, dst := range dsts {
		port := s.freshPorts(host, 1)
		checks = append(checks, func() error {
			reset, err := host.Stray(dst, port, timeout)
			if err == nil && reset != (args[2] == "reset") {
				err = fmt.Errorf("reset: %v, want it %s", reset, args[2])
			}
			if err != nil {
				return fmt.Errorf("%s to %v: %w", host.Name, dst, err)
			}
			return nil
		})
	}
	return run(checks, true)
}
