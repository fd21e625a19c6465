package node_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
)

// drainingSource delivers a Service with an endpoint that is ready, and one that terminates and still serves.
type drainingSource struct{}

func (drainingSource) Run(ctx context.Context, sink model.Sink) error {
	sink.Update([]model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
		},
		&model.EndpointSlice{
			Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{
				{Addr: netip.MustParseAddr("10.244.0.1"), Ready: true, Serving: true},
				{Addr: netip.MustParseAddr("10.244.0.2"), Serving: true, Terminating: true},
			},
		},
	}, nil)
	sink.Complete()
	<-ctx.Done()
	return nil
}

// TestResetsSpareEndpointsThatTerminate: with resets of connections to removed endpoints, the records of a node say which endpoints go on
// serving. Where records are made elsewhere they do not, and there are no resets.
func TestResetsSpareEndpointsThatTerminate(t *testing.T) {
	c := config.Default()
	c.HostnameOverride, c.HealthzBindAddress, c.MetricsBindAddress = "node-a", netip.AddrPort{}, netip.AddrPort{}
	c.AdminBindAddress = config.AdminNowhere
	c.ResetConnectionsToRemovedEndpoints = true
	var opened node.DataplaneOptions
	open := func(_ context.Context, _ *config.Config, o node.DataplaneOptions) (node.Dataplane, error) {
		opened = o
		return newMemory(3), nil
	}
	ready := make(chan int, 1)
	n, err := node.New(t.Context(), node.Options{
		Config: c, Dataplane: open, OnReady: func(services int) { ready <- services },
		Source: func(*config.Config, string) (model.Source, error) { return drainingSource{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	<-ready
	lingering := func() int {
		u, err := n.Feed().Next(ctx, 0)
		if err != nil || len(u.Changed) != 1 {
			t.Fatalf("%+v, %v", u, err)
		}
		return len(u.Changed[0].Ports[0].Lingering)
	}
	if got := lingering(); got != 1 || !opened.TCPLingers {
		t.Errorf("%d endpoints linger, want 1; the dataplane relies on them: %v", got, opened.TCPLingers)
	}
	off := *c
	off.ResetConnectionsToRemovedEndpoints = false
	if err := n.Reconfigure(&off); err != nil {
		t.Fatal(err)
	}
	if got := lingering(); got != 0 {
		t.Errorf("%d endpoints linger when nothing is reset", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	var logged bytes.Buffer
	ctx, cancel = context.WithCancel(t.Context())
	feed := &backendtest.Feed{}
	n, err = node.New(ctx, node.Options{
		Config: c, Dataplane: open, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		States: &node.States{Feed: feed, Latest: func() (state.Revision, int) { return 0, 0 }},
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := n.Run(ctx); err != nil {
		t.Error(err)
	}
	if opened.TCPLingers || !strings.Contains(logged.String(), "resetConnectionsToRemovedEndpoints") {
		t.Errorf("states of the API are relied on (%v), or there is no warning:\n%s", opened.TCPLingers, logged.String())
	}
}
