package client

import (
	"errors"
	"fmt"
	"slices"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// EdgeTakes reports whether connections to frontends of a kind are handed over to other nodes. edge may be nil.
func EdgeTakes(edge *localnetv1.Edge, kind localnetv1.FrontendKind) bool {
	return edge != nil && kind != localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP && !slices.Contains(edge.GetExcept(), kind)
}

// checkEdge checks the edge of a port, of which all other fields are valid.
func checkEdge(p *localnetv1.Port) error {
	e := p.GetEdge()
	if e == nil {
		return nil
	}
	if field := withoutEdge(p); field != "" {
		return fmt.Errorf("edge: it is set, and so is %s", field)
	}
	for i, kind := range e.GetExcept() {
		if err := checkEnum("except", kind, localnetv1.FrontendKind_name); err != nil {
			return fmt.Errorf("edge.%w", err)
		}
		if kind == localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP || i > 0 && kind <= e.GetExcept()[i-1] {
			return fmt.Errorf("edge.except[%d]: %s is not a kind for clients outside, or does not ascend", i, kind)
		}
	}
	if !slices.ContainsFunc(p.GetFrontends(), func(f *localnetv1.Frontend) bool { return EdgeTakes(e, f.GetKind()) }) {
		return errors.New("edge: it is set, but no frontend is of a kind that it takes")
	}
	if err := checkEdgeLocal(p, e.GetLocal()); err != nil {
		return fmt.Errorf("edge.local.%w", err)
	}
	for i, s := range e.GetShares() {
		if s.GetWeight() == 0 {
			return fmt.Errorf("edge.shares[%d].weight: it is 0", i)
		}
		if i > 0 && s.GetNode() <= e.GetShares()[i-1].GetNode() {
			return fmt.Errorf("edge.shares[%d].node: %d does not ascend from %d", i, s.GetNode(), e.GetShares()[i-1].GetNode())
		}
	}
	return nil
}

// withoutEdge returns the field by which a port cannot have an edge, empty if it can.
func withoutEdge(p *localnetv1.Port) string {
	switch ex := p.GetExternal(); {
	case p.GetProtocol() != localnetv1.Protocol_PROTOCOL_TCP && p.GetProtocol() != localnetv1.Protocol_PROTOCOL_UDP:
		return fmt.Sprintf("protocol %s", p.GetProtocol())
	case p.GetAffinitySeconds() != 0:
		return "affinity_seconds"
	case p.GetBalance() != localnetv1.Balance_BALANCE_UNSPECIFIED:
		return "balance"
	case p.GetEjection():
		return "ejection"
	case p.GetDrainSeconds() != 0:
		return "drain_seconds"
	case p.GetFrontends()[0].GetLastPort() != 0:
		return "frontends[0].last_port"
	case ex.GetInside().GetRefusedWeight() != 0 || ex.GetOutside().GetRefusedWeight() != 0:
		return "a refused_weight of external"
	}
	return ""
}

// checkEdgeLocal checks where connections go that other nodes hand over.
func checkEdgeLocal(p *localnetv1.Port, r *localnetv1.Route) error {
	if err := checkRoute(r, len(p.GetEndpoints())); err != nil {
		return err
	}
	if r.GetVerdict() == localnetv1.Verdict_VERDICT_REJECT {
		return fmt.Errorf("verdict: %s is neither FORWARD nor DROP", r.GetVerdict())
	}
	if r.GetRefusedWeight() != 0 {
		return fmt.Errorf("refused_weight: %d, but nothing may be refused", r.GetRefusedWeight())
	}
	for i, at := range r.GetEndpoints() {
		if !p.GetEndpoints()[at].GetLocal() {
			return fmt.Errorf("endpoints[%d]: endpoint %d is not local", i, at)
		}
	}
	return nil
}
