package protoconv

import (
	"cmp"
	"fmt"
	"math"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// edge returns the message of an edge. all are the endpoints of its port.
func edge(e *state.Edge, all []state.Endpoint) *localnetv1.Edge {
	if e == nil {
		return nil
	}
	m := &localnetv1.Edge{Local: route(&e.Local, all), Shares: messages(e.Shares, func(s *state.EdgeShare, m *localnetv1.EdgeShare) {
		m.Node, m.Weight = s.Node, s.Weight
	})}
	for kind := range e.Except.Each {
		m.Except = append(m.Except, localnetv1.FrontendKind(kind))
	}
	return m
}

// parseEdge reads how nodes hand over the connections of p, of which all other fields have been read. all are its endpoints.
func parseEdge(m *localnetv1.Edge, all []state.Endpoint, p *state.Port) (*state.Edge, error) {
	if m == nil {
		return nil, nil
	}
	if field := withoutEdge(p); field != "" {
		return nil, fmt.Errorf("edge is set; it must not be with this %s", field)
	}
	e := &state.Edge{}
	var err error
	if e.Except, err = parseKinds("edge.except", m.GetExcept()); err != nil {
		return nil, err
	}
	if !e.TakesOneOf(p.Frontends) {
		return nil, fmt.Errorf("edge is set, but there is no frontend of a kind that is neither CLUSTER_IP nor in edge.except")
	}
	e.Local, err = parseRoute("edge.local", m.GetLocal(), all, p.Internal.Inside, p.Internal.Outside, p.External.Inside, p.External.Outside)
	switch {
	case err != nil:
		return nil, err
	case e.Local.Verdict == state.Reject:
		return nil, fmt.Errorf("edge.local has the verdict %v; it must be FORWARD or DROP", m.GetLocal().GetVerdict())
	case e.Local.Refused != 0:
		return nil, fmt.Errorf("edge.local.refused_weight is %d; it must be 0", e.Local.Refused)
	}
	for i := range e.Local.Endpoints {
		if !e.Local.Endpoints[i].Local {
			return nil, fmt.Errorf("edge.local.endpoints[%d] is %v, which is on another node; all must be local", i, e.Local.Endpoints[i].Addr)
		}
	}
	e.Shares, err = parse("edge.shares", m.GetShares(), func(m *localnetv1.EdgeShare) (state.EdgeShare, error) {
		if m.GetWeight() == 0 {
			return state.EdgeShare{}, fmt.Errorf(".weight is 0; it must be above")
		}
		return state.EdgeShare{Node: m.GetNode(), Weight: m.GetWeight()}, nil
	})
	if err != nil {
		return nil, err
	}
	return e, ascending("edge.shares", "node", e.Shares, state.EdgeShare.Compare)
}

// withoutEdge returns the field by which a port cannot have an edge, empty if it can.
func withoutEdge(p *state.Port) string {
	switch {
	case p.Protocol != state.TCP && p.Protocol != state.UDP:
		return "protocol"
	case p.Affinity > 0:
		return "affinity_seconds"
	case p.Balance != state.Random:
		return "balance"
	case p.Ejection:
		return "ejection"
	case p.DrainSeconds > 0:
		return "drain_seconds"
	case p.Frontends[0].LastPort != 0:
		return "last_port"
	case p.External.Inside.Refused != 0 || p.External.Outside.Refused != 0:
		return "refused_weight of external"
	}
	return ""
}

// parseKinds reads a set of kinds of frontends other than CLUSTER_IP.
func parseKinds(what string, list []localnetv1.FrontendKind) (set state.FrontendKinds, err error) {
	for i, kind := range list {
		if _, known := localnetv1.FrontendKind_name[int32(kind)]; !known || kind <= localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP {
			return 0, fmt.Errorf("%s[%d] is %v; it must be a kind that is known here, and not CLUSTER_IP", what, i, kind)
		}
		set |= state.KindsOf(state.FrontendKind(kind))
	}
	return set, ascending(what, "kind", list, cmp.Compare[localnetv1.FrontendKind])
}

func fillPeer(p *state.Peer, m *localnetv1.Peer) {
	m.Id = p.ID
	m.Name = text(p.Name)
	m.Addresses = addresses(p.Addresses)
	m.PodCidrs = messages(p.PodCIDRs, fillPrefix)
	m.Port = uint32(p.Port)
}

// parsePeers reads the nodes of a cluster.
func parsePeers(list []*localnetv1.Peer) ([]state.Peer, error) {
	peers, err := parse("peers", list, parsePeer)
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(peers); i++ {
		p, before := &peers[i], &peers[i-1]
		switch c := before.Compare(p); {
		case c >= 0:
			return nil, fmt.Errorf("peers[%d] must come before peers[%d], and occur once; they are ordered by id and name", i, i-1)
		case before.ID == p.ID && (before.Port != 0 || p.Port != 0):
			return nil, fmt.Errorf("peers[%d].port is %d, and %d in peers[%d], which has the same id; both must be 0", i, p.Port, before.Port, i-1)
		}
	}
	return peers, nil
}

func parsePeer(m *localnetv1.Peer) (p state.Peer, err error) {
	p = state.Peer{ID: m.GetId(), Name: m.GetName()}
	if id := state.PeerID(p.Name); p.ID != id {
		return p, fmt.Errorf(".id is %d; it must be %d, FNV-1a of the name %s", p.ID, id, quote(p.Name))
	}
	if p.Addresses, err = parseAddresses(".addresses", m.GetAddresses()); err != nil {
		return p, err
	}
	if p.PodCIDRs, err = parseRanges(".pod_cidrs", m.GetPodCidrs()); err != nil {
		return p, err
	}
	switch port := m.GetPort(); {
	case port > math.MaxUint16:
		return p, fmt.Errorf(".port is %d; it must be 65535 at most", port)
	case port != 0 && len(p.Addresses) == 0:
		return p, fmt.Errorf(".port is %d; it must be 0 without addresses", port)
	}
	p.Port = uint16(m.GetPort())
	return p, nil
}
