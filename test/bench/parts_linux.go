package bench

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// Memory measures the resident memory of this process with all parts of a node: model, brain, store, reconciler and the
// nftables dataplane. The whole cluster is programmed in a network namespace of its own. Only the first size is
// measured, because memory that a process once used affects later measurements.
func Memory(ctx context.Context, r *Reporter, o Options) error {
	o = o.withDefaults(10_000)
	o.Services = o.Services[:1]
	return r.each(o, "memory", func(f figures) (err error) {
		d, err := newDataplane(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		s, _ := newStore(brain.Config{}, Cluster(f.services, f.endpoints)...)
		defer s.Close()
		running, stop := context.WithCancel(ctx)
		defer stop()
		applied, ended := make(chan struct{}), make(chan error, 1)
		note := sync.OnceFunc(func() { close(applied) })
		go func() {
			ended <- backend.Run(running, s, d.backend, backend.RunOptions{OnStatus: func(st backend.Status) {
				if st.Applied > 0 {
					note()
				}
			}})
		}()
		select {
		case <-applied:
		case err := <-ended:
			return err
		}
		resident.Trim() // as the daemon does once it is up
		rss, err := RSS()
		if err != nil {
			return err
		}
		f.report("rss", MiB(rss), "MiB")
		stop()
		return <-ended
	})
}

// NFTables measures the nftables dataplane in a network namespace of its own. It measures a cold load, a warm
// restart, the addition of one service, and the change of one endpoint. Each ends when the kernel has committed it.
func NFTables(ctx context.Context, r *Reporter, o Options) error {
	return r.each(o.withDefaults(1_000, 10_000, 100_000), "nftables", func(f figures) (err error) {
		defer runtime.GC() // what one size left is not the next one's
		first, added, err := records(ctx, brain.Config{}, f.services, f.endpoints)
		if err != nil {
			return err
		}
		d, err := newDataplane(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		load := func(name string) (backend.Result, error) {
			began := time.Now()
			result, err := d.backend.Apply(ctx, first)
			f.report(name, time.Since(began).Seconds(), "s")
			return result, err
		}
		if _, err := load("cold-load"); err != nil {
			return err
		}
		for _, change := range []struct {
			name    string
			records []*state.Service
		}{{"add-service", added}, {"endpoint-change", withNewEndpoint(first.Changed)}} {
			took, err := timeEach(ctx, d.backend, first.Node, change.records)
			if err != nil {
				return err
			}
			f.times(change.name, took, "us")
		}
		// Back to the first state, so that a restart finds no difference.
		if _, err := d.backend.Apply(ctx, first); err != nil {
			return err
		}
		if err := d.restart(ctx, func() error { return nil }); err != nil {
			return err
		}
		result, err := load("warm-restart")
		f.report("warm-restart-written", float64(result.Written), "elements")
		return err
	})
}

// tenantCases are what single tenants can fill.
var tenantCases = []struct {
	name    string
	cluster scaledCluster
}{
	{"1000-ranges", scaledCluster{services: 10, endpoints: 5, ranges: 100}},
	{"100000-ranges", scaledCluster{services: 1000, endpoints: 5, ranges: 100}},
	{"1000-ports-of-1000-ranges", scaledCluster{ports: 1000, endpoints: 5, ranges: 1000}},
	{"1000-clients", scaledCluster{endpoints: 5, sticky: 1000}},
	{"1000000-clients", scaledCluster{endpoints: 5, sticky: 1_000_000}},
}

// tenantChanges is how many changes of each kind are measured.
const tenantChanges = 1_000

// Tenants measures the nftables dataplane with what single tenants can fill: source ranges and remembered clients. All other
// tenants wait while the kernel takes such a change.
func Tenants(ctx context.Context, r *Reporter) error {
	for _, c := range tenantCases {
		done := r.Step("tenants: %s", c.name)
		err := measureTenant(ctx, figures{r, "tenants", max(c.cluster.services, 1), c.cluster.endpoints}, c.name, c.cluster)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

func measureTenant(ctx context.Context, f figures, name string, c scaledCluster) (err error) {
	s, err := scaledNFTables(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, op := range s.ops {
		times := 1
		if op.single {
			times = tenantChanges
		} else if op.name != "load" {
			continue // it is not a change
		}
		var took []time.Duration
		for range times {
			if op.reset != nil {
				if err := op.reset(); err != nil {
					return err
				}
			}
			began := time.Now()
			if err := op.run(); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		if figure := name + "/" + strings.ReplaceAll(op.name, " ", "-"); op.single {
			f.times(figure, took, "us")
		} else {
			f.report(figure, in("ms", took[0]), "ms")
		}
	}
	return nil
}

// dataplane is the nftables dataplane in a namespace of its own.
type dataplane struct {
	ns      *netns.NS
	backend *nftables.Backend
}

func newDataplane(ctx context.Context) (*dataplane, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	d := &dataplane{ns: ns}
	if d.backend, err = openNFTables(ctx, ns); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return d, nil
}

// restart restarts the dataplane, after fn.
func (d *dataplane) restart(ctx context.Context, fn func() error) error {
	err := d.backend.Close()
	if err == nil {
		err = d.ns.Do(fn)
	}
	if err == nil {
		d.backend, err = openNFTables(ctx, d.ns)
	}
	return err
}

func (d *dataplane) close() error { return errors.Join(d.backend.Close(), d.ns.Close()) }

func openNFTables(ctx context.Context, ns *netns.NS) (b *nftables.Backend, err error) {
	err = ns.Do(func() error {
		b, err = nftables.New(ctx, nftables.Options{})
		return err
	})
	return b, err
}

// nodeChanges is how many single changes of each sort are measured on a node.
const nodeChanges = 5_000

// records returns the full state of a synthetic cluster with other objects added to it, or in place of some. It also
// returns the records of services that the cluster does not have yet.
func records(ctx context.Context, c brain.Config, services, endpoints int, others ...model.Object) (first *state.Update, added []*state.Service, err error) {
	u, err := stateOf(ctx, c, append(Cluster(services+nodeChanges, endpoints), others...)...)
	if err != nil {
		return nil, nil, err
	}
	first = new(*u)
	first.Changed = nil
	for _, svc := range u.Changed {
		if n, err := serviceNumber([]byte(svc.Name.Name), services+nodeChanges); err != nil || n < services {
			first.Changed = append(first.Changed, svc) // or one of the others
		} else {
			added = append(added, svc)
		}
	}
	return first, added, nil
}

// timeEach applies each record by itself, and returns how long each took.
func timeEach(ctx context.Context, b backend.Backend, node *state.Node, changed []*state.Service) ([]time.Duration, error) {
	took := make([]time.Duration, 0, len(changed))
	for _, s := range changed {
		u := &state.Update{Node: node, Changed: []*state.Service{s}}
		began := time.Now()
		if _, err := b.Apply(ctx, u); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// withNewEndpoint returns records with one endpoint replaced.
func withNewEndpoint(records []*state.Service) []*state.Service {
	changed := make([]*state.Service, 0, nodeChanges)
	step := max(len(records)/nodeChanges, 1)
	for i := 0; i < len(records); i += step {
		s := *records[i]
		s.Ports = slices.Clone(s.Ports)
		route := s.Ports[0].Internal.Inside
		route.Endpoints = slices.Clone(route.Endpoints)
		// An address that no pod of the synthetic cluster has.
		route.Endpoints[0].Addr = netip.AddrPortFrom(nth(ranges4.services, 1<<19+i), route.Endpoints[0].Addr.Port())
		slices.SortFunc(route.Endpoints, state.Endpoint.Compare)
		s.Ports[0].Internal.Inside, s.Ports[0].Internal.Outside = route, route
		changed = append(changed, &s)
	}
	return changed
}
