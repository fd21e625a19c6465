package node_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
)

// ciliumSource delivers a Service and a slice with annotations of Cilium.
type ciliumSource struct{}

func (ciliumSource) Run(ctx context.Context, sink model.Sink) error {
	sink.Update([]model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports:       []model.ServicePort{{Protocol: state.TCP, Port: 80}},
			Annotations: []model.Annotation{{Name: model.CiliumAlgorithmAnnotation, Value: "maglev"}},
		},
		&model.EndpointSlice{
			Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}, Weight: "0", CiliumWeight: true,
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.244.0.1"), Ready: true, Serving: true}},
		},
	}, nil)
	sink.Complete()
	<-ctx.Done()
	return nil
}

// TestAcceptAnnotationsOf: annotations of other projects count as soon as the configuration accepts them, and no longer when it does not.
func TestAcceptAnnotationsOf(t *testing.T) {
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}
	c.AdminBindAddress = config.AdminNowhere
	ready := make(chan int, 1)
	n, err := node.New(t.Context(), node.Options{
		Config: c, OnReady: func(services int) { ready <- services },
		Dataplane: func(context.Context, *config.Config, node.DataplaneOptions) (node.Dataplane, error) {
			return newMemory(3), nil
		},
		Source: func(*config.Config, string) (model.Source, error) { return ciliumSource{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	<-ready
	for _, accept := range [][]string{nil, {"loxilb.io", "cilium.io"}, {"loxilb.io"}} {
		now := *c
		now.AcceptAnnotationsOf = accept
		if err := n.Reconfigure(&now); err != nil {
			t.Fatal(err)
		}
		balance, verdict := state.Random, state.Forward
		if len(accept) == 2 {
			balance, verdict = state.HashConnection, state.Reject
		}
		u, err := n.Feed().Next(ctx, 0)
		if err != nil || len(u.Changed) != 1 || u.Changed[0].Ports[0].Balance != balance || u.Changed[0].Ports[0].Internal.Inside.Verdict != verdict {
			t.Errorf("%q: got %+v, %v, want %v and %v", accept, u.Changed, err, balance, verdict)
		}
	}
	cancel()
	<-ended
}
