package client

import (
	"strings"
	"testing"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// edged is a service with a port whose connections are handed over.
func edged() *localnetv1.ServiceEndpoints {
	forward := func() *localnetv1.Route {
		return &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_FORWARD, Endpoints: []uint32{0, 1}}
	}
	return &localnetv1.ServiceEndpoints{Namespace: "shop", Name: "web", Ports: []*localnetv1.Port{{
		Name: "http", Protocol: localnetv1.Protocol_PROTOCOL_TCP, Family: localnetv1.Family_FAMILY_IPV4,
		Frontends: []*localnetv1.Frontend{
			{Kind: localnetv1.FrontendKind_FRONTEND_KIND_EXTERNAL_IP, Address: []byte{192, 0, 2, 1}, Port: 80},
			{Kind: localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT, Port: 30080},
		},
		Endpoints: []*localnetv1.Endpoint{{Address: []byte{10, 1, 0, 1}, Port: 80}, {Address: []byte{10, 1, 0, 2}, Port: 80, Local: true}},
		External:  &localnetv1.Traffic{Inside: forward(), Outside: forward(), Masquerade: localnetv1.Masquerade_MASQUERADE_ALWAYS},
		Edge: &localnetv1.Edge{
			Shares: []*localnetv1.EdgeShare{{Node: 0, Weight: 1}, {Node: 1<<32 - 1, Weight: 1<<32 - 1}},
			Local:  &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_FORWARD, Endpoints: []uint32{1}, Weights: []uint32{7}},
			Except: []localnetv1.FrontendKind{localnetv1.FrontendKind_FRONTEND_KIND_LOAD_BALANCER, localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT},
		},
	}}}
}

func TestCheckEdge(t *testing.T) {
	for name, good := range map[string]func(p *localnetv1.Port){
		"full":     func(*localnetv1.Port) {},
		"none":     func(p *localnetv1.Port) { p.Edge = nil },
		"UDP":      func(p *localnetv1.Port) { p.Protocol = localnetv1.Protocol_PROTOCOL_UDP },
		"drop":     func(p *localnetv1.Port) { p.Edge.Local = &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_DROP} },
		"weights":  func(p *localnetv1.Port) { p.External.Outside.Weights = []uint32{1, 2} },
		"unshared": func(p *localnetv1.Port) { p.Edge.Shares, p.Edge.Except = nil, nil },
	} {
		s := edged()
		good(s.Ports[0])
		if err := Check(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		spoil func(p *localnetv1.Port, e *localnetv1.Edge)
		want  string
	}{
		{func(p *localnetv1.Port, _ *localnetv1.Edge) { p.Protocol = localnetv1.Protocol_PROTOCOL_SCTP }, "edge: it is set, and so is protocol PROTOCOL_SCTP"},
		{func(p *localnetv1.Port, _ *localnetv1.Edge) { p.AffinitySeconds = 1 }, "edge: it is set, and so is affinity_seconds"},
		{func(p *localnetv1.Port, _ *localnetv1.Edge) { p.Balance = 1 }, "edge: it is set, and so is balance"},
		{func(p *localnetv1.Port, _ *localnetv1.Edge) { p.Ejection = true }, "edge: it is set, and so is ejection"},
		{func(p *localnetv1.Port, _ *localnetv1.Edge) { p.DrainSeconds = 1 }, "edge: it is set, and so is drain_seconds"},
		{func(p *localnetv1.Port, _ *localnetv1.Edge) {
			for i := range p.Frontends {
				p.Frontends[i].LastPort, p.Endpoints[i].Port = 40000, 0
			}
		}, "edge: it is set, and so is frontends[0].last_port"},
		{func(p *localnetv1.Port, _ *localnetv1.Edge) {
			p.External.Inside.Weights, p.External.Inside.RefusedWeight = []uint32{1, 1}, 1
		}, "edge: it is set, and so is a refused_weight of external"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Except[1] = 9 }, "edge.except: 9 is not known"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Except[0] = 0 }, "edge.except: it is not set"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Except[0] = 1 }, "edge.except[0]: FRONTEND_KIND_CLUSTER_IP"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Except[0] = 4 }, "edge.except[1]: FRONTEND_KIND_NODE_PORT is not a kind for clients outside, or does not ascend"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Except[0] = 2 }, "edge: it is set, but no frontend"},
		{func(p *localnetv1.Port, e *localnetv1.Edge) {
			p.Frontends = []*localnetv1.Frontend{{Kind: localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: []byte{10, 96, 0, 1}, Port: 80}}
			p.Internal, p.External = p.External, nil
		}, "edge: it is set, but no frontend"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Local = nil }, "edge.local.verdict: it is not set"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) {
			e.Local = &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_REJECT}
		}, "edge.local.verdict: VERDICT_REJECT is neither"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Local.Endpoints[0] = 2 }, "edge.local.endpoints[0]: there is no endpoint 2"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Local.Endpoints[0] = 0 }, "edge.local.endpoints[0]: endpoint 0 is not local"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Local.Weights[0] = 0 }, "edge.local.weights[0]: 0 is not from"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Local.RefusedWeight = 5 }, "edge.local.refused_weight: 5"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Shares[0].Weight = 0 }, "edge.shares[0].weight: it is 0"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Shares[1].Node = 0 }, "edge.shares[1].node: 0 does not ascend from 0"},
		{func(_ *localnetv1.Port, e *localnetv1.Edge) { e.Shares[0] = nil }, "edge.shares[0].weight: it is 0"},
	} {
		s := edged()
		c.spoil(s.Ports[0], s.Ports[0].Edge)
		if err := Check(s); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `port "http" `) {
			t.Errorf("error %v, want one that contains %q", err, c.want)
		}
	}
}

func TestEdgeTakes(t *testing.T) {
	e := edged().Ports[0].Edge
	for kind, want := range map[localnetv1.FrontendKind]bool{
		localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP: false, localnetv1.FrontendKind_FRONTEND_KIND_EXTERNAL_IP: true,
		localnetv1.FrontendKind_FRONTEND_KIND_LOAD_BALANCER: false, localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT: false,
	} {
		if EdgeTakes(e, kind) != want || EdgeTakes(nil, kind) {
			t.Errorf("%v: want %v", kind, want)
		}
	}
}
