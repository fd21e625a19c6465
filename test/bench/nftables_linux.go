package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/netns"
)

// nftablesChanges is how many single changes of each sort are measured.
const nftablesChanges = 5_000

// The names of figures that have a target, below "nftables/".
const (
	warmRestart        = "warm-restart"
	warmRestartWritten = "warm-restart-written"
	rangesLoad         = "ranges-%d-load"
	rangesChange       = "ranges-%d-change-p50"
	attackOthers       = "attack-of-%dx%d-ranges-others-p99"
	stickyLeaves       = "sticky-%d-clients-endpoint-leaves-p99"
)

// nftablesTargets are what figures should be at most, by their names and in their units, whatever the number of services.
var nftablesTargets = map[string]float64{
	warmRestartWritten:                    0,     // elements
	fmt.Sprintf(rangesLoad, 100_000):      1,     // seconds
	fmt.Sprintf(rangesChange, 1_000):      100,   // microseconds
	fmt.Sprintf(rangesChange, 100_000):    100,   // microseconds
	fmt.Sprintf(attackOthers, 1000, 1000): 10,    // milliseconds
	fmt.Sprintf(stickyLeaves, 1_000_000):  1_000, // microseconds
}

// mostOfRestart is the target of a restart with restartedServices of restartedEndpoints each, in seconds.
const (
	mostOfRestart                         = 2
	restartedServices, restartedEndpoints = 100_000, 5
)

// reportNFTables reports a figure, against its target if it has one.
func reportNFTables(r *Reporter, name string, services, endpoints int, value float64, unit string) {
	result := Result{"nftables/" + name, services, endpoints, value, unit}
	atMost, ok := nftablesTargets[name]
	if name == warmRestart && services == restartedServices && endpoints == restartedEndpoints {
		atMost, ok = mostOfRestart, true
	}
	if strings.HasPrefix(name, "large-") && strings.HasSuffix(name, "-p99") {
		atMost, ok = largeMostWait, true
	}
	if ok {
		r.ReportAgainst(result, atMost)
		return
	}
	r.Report(result)
}

// NFTables measures the nftables dataplane in a network namespace of its own. It measures a cold load, a warm
// restart, the addition of one service, and the change of one endpoint, each until the kernel has committed it. Then
// it measures what single tenants can fill: source ranges and remembered clients.
func NFTables(ctx context.Context, r *Reporter, o NFTablesOptions) error {
	o.Options = o.withDefaults(1_000, 10_000, 100_000)
	if o.Ranges == nil {
		o.Ranges = []int{1_000, 100_000}
	}
	if o.Clients == nil {
		o.Clients = []int{1_000, 1_000_000}
	}
	for _, services := range o.Services {
		done := r.Step("nftables: %d services with %d endpoints", services, o.Endpoints)
		err := measureNFTables(ctx, r, services, o.Endpoints)
		done()
		if err != nil {
			return err
		}
		runtime.GC() // what the last size left is not the next one's
	}
	report := func(name string, services int, value float64, unit string) {
		reportNFTables(r, name, services, tenantEndpoints, value, unit)
	}
	for _, total := range o.Ranges {
		done := r.Step("nftables: %d source ranges", total)
		err := sourceRanges(ctx, report, total)
		done()
		if err != nil {
			return err
		}
	}
	if len(o.Ranges) > 0 {
		if err := errors.Join(rangesAttack(ctx, report), besideLarge(ctx, report)); err != nil {
			return err
		}
	}
	for _, clients := range o.Clients {
		done := r.Step("nftables: %d clients with affinity", clients)
		err := stickyClients(ctx, report, clients)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

func measureNFTables(ctx context.Context, r *Reporter, services, endpoints int) (err error) {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	first, added, err := records(ctx, brain.Config{NodeName: NodeName}, services, endpoints)
	if err != nil {
		return err
	}
	report := func(name string, value float64, unit string) {
		reportNFTables(r, name, services, endpoints, value, unit)
	}

	dataplane, err := openNFTables(ctx, ns)
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := dataplane.Apply(ctx, first); err != nil {
		return err
	}
	report("cold-load", time.Since(start).Seconds(), "s")

	adds, err := timeEach(ctx, dataplane, first.Node, added)
	if err != nil {
		return err
	}
	report("add-service-p50", Microseconds(Percentile(adds, 50)), "us")
	report("add-service-p99", Microseconds(Percentile(adds, 99)), "us")

	changes, err := timeEach(ctx, dataplane, first.Node, withNewEndpoint(first.Changed))
	if err != nil {
		return err
	}
	report("endpoint-change-p50", Microseconds(Percentile(changes, 50)), "us")
	report("endpoint-change-p99", Microseconds(Percentile(changes, 99)), "us")

	// Back to the first state, so that a restart finds no difference.
	if _, err := dataplane.Apply(ctx, first); err != nil {
		return err
	}
	if err := dataplane.Close(); err != nil {
		return err
	}
	if dataplane, err = openNFTables(ctx, ns); err != nil {
		return err
	}
	start = time.Now()
	result, err := dataplane.Apply(ctx, first)
	if err != nil {
		return err
	}
	report(warmRestart, time.Since(start).Seconds(), "s")
	report(warmRestartWritten, float64(result.Written), "elements")
	return dataplane.Close()
}

func openNFTables(ctx context.Context, ns *netns.NS) (b *nftables.Backend, err error) {
	err = ns.Do(func() error {
		b, err = nftables.New(ctx, nftables.Options{})
		return err
	})
	return b, err
}

// records returns the full state of a synthetic cluster with other objects added to it, or in place of some, and the
// records of services that it does not have yet.
func records(ctx context.Context, c brain.Config, services, endpoints int, others ...model.Object) (first *state.Update, added []*state.Service, err error) {
	s := store.New(store.Options{Brain: c})
	defer s.Close()
	sink := s.Source("bench")
	sink.Update(Cluster(services+nftablesChanges, endpoints), nil)
	sink.Update(others, nil)
	sink.Complete()
	all, err := s.Next(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	u := *all
	u.Changed = nil
	for _, svc := range all.Changed {
		var n int
		if _, err := fmt.Sscanf(svc.Name.Name, "service-%d", &n); err != nil || n < services {
			u.Changed = append(u.Changed, svc) // or one of the others
		} else {
			added = append(added, svc)
		}
	}
	return &u, added, nil
}

// timeEach applies each record by itself, and returns how long each took.
func timeEach(ctx context.Context, b *nftables.Backend, node *state.Node, changed []*state.Service) ([]time.Duration, error) {
	took := make([]time.Duration, 0, len(changed))
	for _, s := range changed {
		u := &state.Update{Node: node, Changed: []*state.Service{s}}
		start := time.Now()
		if _, err := b.Apply(ctx, u); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}

// withNewEndpoint returns records with one endpoint replaced.
func withNewEndpoint(records []*state.Service) []*state.Service {
	changed := make([]*state.Service, 0, nftablesChanges)
	step := max(len(records)/nftablesChanges, 1)
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
