//go:build linux

package e2e

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// TestStories runs the conformance suite's stories with all objects in a real API server, which Switchyard watches.
func TestStories(t *testing.T) {
	pool := newPool(t, runtime.GOMAXPROCS(0))
	conformance.RunStories(t, conformance.Dataplane{
		Name: *dataplaneName,
		New: func(s conformance.Settings) (backend.Backend, error) {
			return newDataplane(t.Context(), s.OnNamespace, s.Logger)
		},
		Limits:       limits(*dataplaneName),
		SharesTables: *dataplaneName == "iptables",
		NewAPI: func(node string) (conformance.API, error) {
			plane := <-pool
			api, err := newLease(plane, node)
			if err != nil {
				pool <- plane
				return nil, err
			}
			api.release = func() { pool <- plane }
			return api, nil
		},
	})
}

// limits returns what a dataplane cannot do.
func limits(dataplane string) []conformance.Limit {
	switch dataplane {
	case "ebpf":
		return []conformance.Limit{conformance.HairpinSourceKept}
	case "userspace":
		return []conformance.Limit{conformance.ClientSourceLost, conformance.EndpointRefusalLost}
	}
	return nil
}

// newPool starts control planes, which are used by one story at a time each: stories give the same names and addresses to
// different things.
func newPool(t *testing.T, n int) chan *controlplane.ControlPlane {
	pool := make(chan *controlplane.ControlPlane, n)
	for range n {
		plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(plane.Stop)
		pool <- plane
	}
	return pool
}

// markerIP is in the service CIDR that the stories do not use.
var markerIP = netip.MustParseAddr("10.99.0.200")

// lease is a control plane that one story has for itself.
type lease struct {
	*apicluster.Cluster
	client  *apicluster.Client
	release func()
}

func newLease(plane *controlplane.ControlPlane, node string) (*lease, error) {
	client, err := apicluster.NewClient(plane.Config())
	if err != nil {
		return nil, err
	}
	source, err := kube.New(kube.Options{Config: plane.Config(), NodeName: node, NodeHealth: true})
	if err != nil {
		return nil, err
	}
	return &lease{Cluster: apicluster.NewCluster(client, source, node, markerIP), client: client}, nil
}

// Close forgets all objects.
func (l *lease) Close() error {
	defer l.release()
	return l.client.Wipe(context.Background())
}
