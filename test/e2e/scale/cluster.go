//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
)

// The addresses of the cluster. Endpoints that replace others are in newCIDR, and have addresses that no endpoint had before.
var (
	serviceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	clusterCIDR = netip.MustParsePrefix("10.128.0.0/9")
	firstCIDR   = netip.MustParsePrefix("10.128.0.0/10")
	newCIDR     = netip.MustParsePrefix("10.192.0.0/10")
)

const (
	servicesIn   = "scale" // their namespace
	frontendPort = 80
	endpointPort = 8080
	// deployments is how many Services a rolling update changes at a time.
	deployments = 8
	// fewest and most endpoints of a Service.
	fewest, most = 2, 10
)

// fillStep is how many objects are created between two lines of progress.
const fillStep = 2000

// cluster is a control plane full of Services, in a namespace of its own that nodes have a link to.
type cluster struct {
	plane      *controlplane.ControlPlane
	client     *apicluster.Client
	kubeconfig string // of the nodes
	nodes      int
	own        int // watches of the API server itself
	slices     []*model.EndpointSlice
	next       int // Service of the next rolling update
	replaced   int // endpoints so far
}

// newCluster starts a control plane and fills it.
func newCluster(ctx context.Context, dir string, services, nodes int) (_ *cluster, err error) {
	logf("starting a control plane")
	c := &cluster{nodes: nodes, kubeconfig: filepath.Join(dir, "node.kubeconfig")}
	if c.plane, err = controlplane.Start(ctx, controlplane.Options{
		Dir: dir, ServiceCIDRs: serviceCIDR.String(), APIServerFlags: []string{"--bind-address=0.0.0.0"},
	}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.plane.Stop()
		}
	}()
	text, err := os.ReadFile(c.plane.Kubeconfig())
	if err != nil {
		return nil, err
	}
	local := strings.ReplaceAll(string(text), "https://127.0.0.1:", "https://"+controlplane.Address+":")
	if err := os.WriteFile(c.kubeconfig, []byte(local), 0o600); err != nil {
		return nil, err
	}
	if c.client, err = apicluster.NewClient(c.plane.Config()); err != nil {
		return nil, err
	}
	objects := c.objects(services)
	logf("creating %d objects: %d Services with %d to %d endpoints, and %d Nodes", len(objects), services, fewest, most, nodes)
	created := 0
	for some := range slices.Chunk(objects, fillStep) {
		if err := c.client.CreateAll(ctx, some); err != nil {
			return nil, err
		}
		created += len(some)
		logf("created %d of %d", created, len(objects))
	}
	c.own, err = c.watches(ctx)
	return c, err
}

// objects are the Services with their slices, and the Nodes. Endpoints are spread evenly over the nodes.
func (c *cluster) objects(services int) (objects []model.Object) {
	endpoints := 0
	for i := range services {
		slice := &model.EndpointSlice{
			Namespace: servicesIn, Name: serviceName(i), Service: serviceName(i), Family: state.IPv4,
			Ports: []model.EndpointPort{{Protocol: state.TCP, Port: endpointPort}},
		}
		for range fewest + i%(most-fewest+1) {
			slice.Endpoints = append(slice.Endpoints, c.endpoint(firstCIDR, endpoints))
			endpoints++
		}
		c.slices = append(c.slices, slice)
		objects = append(objects, slice, &model.Service{
			Name: state.ServiceName{Namespace: servicesIn, Name: serviceName(i)}, ClusterIPs: []netip.Addr{nth(serviceCIDR, i)},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: frontendPort}},
		})
	}
	for i := range c.nodes {
		objects = append(objects, &model.Node{Name: nodeName(i), Addresses: nodeAddrs(i)})
	}
	return objects
}

func (c *cluster) endpoint(in netip.Prefix, n int) model.Endpoint {
	return model.Endpoint{Addr: nth(in, n), Ready: true, Serving: true, NodeName: nodeName(n % c.nodes)}
}

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// nth returns an address of an IPv4 prefix, which has room for it. The first 256 are left out.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+256+uint32(n))
	return netip.AddrFrom4(b)
}

// update is what a rolling update did: when the change began that brought each new endpoint.
type update struct {
	triggers map[netip.Addr]time.Time
	took     time.Duration
}

// roll replaces the endpoints of one Service after another, each by a request of its own, with at most rate requests a second. It works on
// several Services at a time, as that many Deployments would. It stops after some time, or with the first error.
func (c *cluster) roll(ctx context.Context, rate float64, length time.Duration) (*update, error) {
	u := &update{triggers: map[netip.Addr]time.Time{}}
	var mu sync.Mutex // guards u.triggers, c.next and c.replaced
	errs := make([]error, deployments)
	start := time.Now()
	pause := time.Duration(float64(time.Second) * deployments / rate)
	var wg sync.WaitGroup
	for d := range deployments {
		wg.Go(func() {
			due, end := start.Add(pause*time.Duration(d)/deployments), start.Add(length)
			for errs[d] == nil {
				mu.Lock()
				i := c.next % len(c.slices)
				c.next++
				mu.Unlock()
				for e := range c.slices[i].Endpoints {
					if errs[d] = ctx.Err(); errs[d] != nil || !due.Before(end) {
						return
					}
					time.Sleep(time.Until(due))
					mu.Lock()
					ep := c.endpoint(newCIDR, c.replaced)
					c.replaced++
					now := time.Now()
					u.triggers[ep.Addr] = now
					mu.Unlock()
					if errs[d] = c.replace(ctx, i, e, ep, now); errs[d] != nil {
						return
					}
					due = latest(due.Add(pause), time.Now())
				}
			}
		})
	}
	wg.Wait()
	u.took = max(length, time.Since(start))
	time.Sleep(time.Until(start.Add(length)))
	return u, errors.Join(errs...)
}

// replace replaces an endpoint of a Service, because of something that happened at a time. No other call may work on this Service.
func (c *cluster) replace(ctx context.Context, service, endpoint int, ep model.Endpoint, at time.Time) error {
	slice := *c.slices[service]
	slice.Endpoints = slices.Clone(slice.Endpoints)
	slice.Endpoints[endpoint] = ep
	slice.TriggerTime = at
	c.slices[service] = &slice
	return c.client.Replace(ctx, &slice)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// watches returns how many watches the API server has open.
func (c *cluster) watches(ctx context.Context) (int, error) {
	text, err := c.client.Kubernetes().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("metrics of the API server: %w", err)
	}
	total := 0.0
	for _, value := range parseMetrics(string(text)).values("apiserver_longrunning_requests", `verb="WATCH"`) {
		total += value
	}
	return int(total), nil
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s == "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// endpoints returns how many endpoints there are.
func (c *cluster) endpoints() (n int) {
	for _, s := range c.slices {
		n += len(s.Endpoints)
	}
	return n
}
