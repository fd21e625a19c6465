//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
)

// The addresses of the cluster. All endpoints are on the other node, which answers for the whole of endpointCIDR.
var (
	serviceCIDR  = netip.MustParsePrefix("10.96.0.0/16")
	endpointCIDR = netip.MustParsePrefix("10.128.0.0/14")
	nodeName     = "node"
)

const (
	frontendPort = 80
	endpointPort = 8080
	namespace    = "load"
	// writers is how many requests change the cluster at a time.
	writers = 16
)

// cluster is an API server full of services.
type cluster struct {
	options *options
	plane   *controlplane.ControlPlane
	client  *apicluster.Client
	rng     *rand.Rand
	turn    int // of the marker
}

// newCluster fills an API server.
func newCluster(ctx context.Context, dir string, o *options) (*cluster, error) {
	logf("starting a control plane")
	plane, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, ServiceCIDRs: serviceCIDR.String()})
	if err != nil {
		return nil, err
	}
	client, err := apicluster.NewClient(plane.Config())
	if err != nil {
		plane.Stop()
		return nil, err
	}
	c := &cluster{options: o, plane: plane, client: client, rng: rand.New(rand.NewPCG(1, 1))}
	logf("making %d services with %d endpoints each", o.services, o.endpoints)
	if err := errors.Join(c.fill(ctx), c.makeMarker(ctx)); err != nil {
		plane.Stop()
		return nil, err
	}
	return c, nil
}

func (c *cluster) stop() { c.plane.Stop() }

func (c *cluster) fill(ctx context.Context) error {
	if _, err := c.client.Set(ctx, &model.Node{Name: nodeName, Addresses: nodeAddrs, PodCIDRs: podCIDRs}); err != nil {
		return err
	}
	return c.create(ctx, 0, c.options.services)
}

// create creates the services with the numbers from first to end.
func (c *cluster) create(ctx context.Context, first, end int) error {
	var objects []model.Object
	for i := first; i < end; i++ {
		objects = append(objects, &model.Service{
			Name: state.ServiceName{Namespace: namespace, Name: name(i)}, ClusterIPs: []netip.Addr{frontend(i).Addr()},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: frontendPort}},
		}, c.slice(i, 0))
	}
	return c.client.CreateAll(ctx, objects)
}

func name(i int) string { return fmt.Sprintf("service-%d", i) }

// frontend is the cluster IP and port of a service.
func frontend(i int) netip.AddrPort {
	i += 256
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), frontendPort)
}

// slice is the endpoint slice of a service. Each version differs from the one before in one endpoint.
func (c *cluster) slice(i, version int) *model.EndpointSlice {
	s := &model.EndpointSlice{
		Namespace: namespace, Name: name(i), Service: name(i), Family: state.IPv4,
		Ports: []model.EndpointPort{{Protocol: state.TCP, Port: endpointPort}},
	}
	for e := range c.options.endpoints {
		n := 256 + i*(c.options.endpoints+1) + e
		if e == 0 && version%2 == 1 {
			n += c.options.endpoints
		}
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: endpoint(n), Ready: true, Serving: true, NodeName: "other"})
	}
	return s
}

func endpoint(n int) netip.Addr {
	base := endpointCIDR.Addr().As4()
	return netip.AddrFrom4([4]byte{base[0], base[1] + byte(n>>16), byte(n >> 8), byte(n)})
}

// The marker is a service with one endpoint, which is one of two.
var (
	markerFrontend  = netip.MustParseAddrPort("10.96.255.250:80")
	markerEndpoints = []string{"10.131.255.1", "10.131.255.2"}
)

func markerSlice(addr string) *model.EndpointSlice {
	return &model.EndpointSlice{
		Namespace: namespace, Name: "marker", Service: "marker", Family: state.IPv4,
		Ports:     []model.EndpointPort{{Protocol: state.TCP, Port: endpointPort}},
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr(addr), Ready: true, Serving: true, NodeName: "other"}},
	}
}

// makeMarker makes the marker, or makes it again.
func (c *cluster) makeMarker(ctx context.Context) error {
	service := &model.Service{
		Name: state.ServiceName{Namespace: namespace, Name: "marker"}, ClusterIPs: []netip.Addr{markerFrontend.Addr()},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: frontendPort}},
	}
	for _, o := range []model.Object{service, markerSlice(markerEndpoints[0])} {
		if _, err := c.client.Set(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// mark changes the marker, and returns the address that answers from now on.
func (c *cluster) mark(ctx context.Context) (string, error) {
	c.turn++
	addr := markerEndpoints[c.turn%2]
	return addr, c.client.Replace(ctx, markerSlice(addr))
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, "== "+format+"\n", args...) }
