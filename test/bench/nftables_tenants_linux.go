package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// The source ranges and affinity that tenants ask for.
const (
	rangesPerService = 100
	longList         = 1_000
	// attackPorts is how many ports the attacking Service has, each with a list of longList ranges.
	attackPorts   = 1_000
	tenantChanges = 1_000
	// tenantEndpoints is how many endpoints each of these Services has.
	tenantEndpoints = 5
)

// sourceRanges measures a load of so many source ranges, rangesPerService to a Service, and the change of one of them.
func sourceRanges(ctx context.Context, report func(name string, services int, value float64, unit string), total int) error {
	return inNewNamespace(func(ns *netns.NS) error {
		dataplane, err := openNFTables(ctx, ns)
		if err != nil {
			return err
		}
		defer dataplane.Close()
		services := max(total/rangesPerService, 1)
		first := &state.Update{Full: true, Node: tenantsNode}
		for n := range services {
			first.Changed = append(first.Changed, restrictedService(n, 1, rangesPerService, 0))
		}
		start := time.Now()
		if _, err := dataplane.Apply(ctx, first); err != nil {
			return err
		}
		report(fmt.Sprintf(rangesLoad, total), services, time.Since(start).Seconds(), "s")

		var changes []*state.Service
		for i := range tenantChanges {
			changes = append(changes, restrictedService(i%services, 1, rangesPerService, i+1))
		}
		took, err := timeEach(ctx, dataplane, tenantsNode, changes)
		if err != nil {
			return err
		}
		report(fmt.Sprintf(rangesChange, total), services, Microseconds(Percentile(took, 50)), "us")
		report(fmt.Sprintf("ranges-%d-change-p99", total), services, Microseconds(Percentile(took, 99)), "us")

		changes = changes[:0]
		for i := range tenantChanges + 1 {
			changes = append(changes, restrictedService(services, 1, longList, i))
		}
		if took, err = timeEach(ctx, dataplane, tenantsNode, changes); err != nil {
			return err
		}
		report(fmt.Sprintf("ranges-%d-and-list-of-%d-change-p50", total, longList), services, Microseconds(Percentile(took[1:], 50)), "us")
		return nil
	})
}

// rangesAttack measures how long a Service waits for its change when another has attackPorts ports with longList source ranges each,
// and changes them all the time.
func rangesAttack(ctx context.Context, report func(name string, services int, value float64, unit string)) error {
	return inNewNamespace(func(ns *netns.NS) error {
		dataplane, err := openNFTables(ctx, ns)
		if err != nil {
			return err
		}
		defer dataplane.Close()
		neighbour := restrictedService(1, 1, 1, 0)
		if _, err := dataplane.Apply(ctx, &state.Update{Full: true, Node: tenantsNode, Changed: []*state.Service{neighbour}}); err != nil {
			return err
		}
		var waits []time.Duration
		const rounds = 200
		for i := range rounds {
			attack := &state.Update{Node: tenantsNode, Changed: []*state.Service{restrictedService(0, attackPorts, longList, i)}}
			change := &state.Update{Node: tenantsNode, Changed: []*state.Service{restrictedService(1, 1, 1, i+1)}}
			start := time.Now()
			if _, err := dataplane.Apply(ctx, attack); err != nil {
				return err
			}
			if i == 0 {
				report(fmt.Sprintf("attack-of-%dx%d-ranges-load", attackPorts, longList), 2, time.Since(start).Seconds(), "s")
			}
			if _, err := dataplane.Apply(ctx, change); err != nil {
				return err
			}
			if i > 0 {
				waits = append(waits, time.Since(start)) // as if it had come when the attacker's had just begun
			}
		}
		report(fmt.Sprintf("attack-of-%dx%d-ranges-others-p50", attackPorts, longList), 2, Milliseconds(Percentile(waits, 50)), "ms")
		report(fmt.Sprintf(attackOthers, attackPorts, longList), 2, Milliseconds(Percentile(waits, 99)), "ms")
		return nil
	})
}

// stickyClients measures how long it takes until an endpoint has left a Service that has so many remembered clients.
func stickyClients(ctx context.Context, report func(name string, services int, value float64, unit string), clients int) error {
	full, fewer := restrictedService(0, 1, 1, 0), restrictedService(0, 1, 1, 0)
	for _, s := range []*state.Service{full, fewer} {
		s.Ports[0].Affinity = time.Hour
	}
	route := &fewer.Ports[0].External.Inside
	route.Endpoints = slices.Delete(slices.Clone(route.Endpoints), 1, 2)
	fewer.Ports[0].External.Outside = *route
	first := &state.Update{Full: true, Node: tenantsNode, Changed: []*state.Service{full}}
	return inNewNamespace(func(ns *netns.NS) error {
		// While a dataplane is open, nobody else can fill its map.
		if err := withDataplane(ctx, ns, first, func(*nftables.Backend) error { return nil }); err != nil {
			return err
		}
		if err := rememberClients(ns, clients); err != nil {
			return fmt.Errorf("filling the map of clients: %w", err)
		}
		return withDataplane(ctx, ns, first, func(dataplane *nftables.Backend) error {
			changes := make([]*state.Service, 0, 2*tenantChanges)
			for range tenantChanges {
				changes = append(changes, fewer, full)
			}
			took, err := timeEach(ctx, dataplane, tenantsNode, changes)
			if err != nil {
				return err
			}
			leaves := make([]time.Duration, 0, tenantChanges)
			for i := 0; i < len(took); i += 2 {
				leaves = append(leaves, took[i])
			}
			report(fmt.Sprintf("sticky-%d-clients-endpoint-leaves-p50", clients), 1, Microseconds(Percentile(leaves, 50)), "us")
			report(fmt.Sprintf(stickyLeaves, clients), 1, Microseconds(Percentile(leaves, 99)), "us")
			return nil
		})
	})
}

// withDataplane opens a dataplane that shows a state, for as long as use runs.
func withDataplane(ctx context.Context, ns *netns.NS, first *state.Update, use func(*nftables.Backend) error) (err error) {
	dataplane, err := openNFTables(ctx, ns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dataplane.Close()) }()
	if _, err := dataplane.Apply(ctx, first); err != nil {
		return err
	}
	return use(dataplane)
}

// rememberClients fills the dataplane's map of clients, as its rules would for packets of so many addresses.
func rememberClients(ns *netns.NS, clients int) (err error) {
	var conn *nft.Conn
	if err := ns.Do(func() (err error) { conn, err = nft.Dial(); return err }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	table := nft.Table{Family: nft.IPv4, Name: "switchyard"}
	endpoints, err := conn.Elems(table, "endpoint-numbers")
	if err != nil {
		return err
	}
	if len(endpoints) == 0 {
		return errors.New("no endpoint has a number")
	}
	const chunk = 10_000
	for next := 0; next < clients; {
		var batch nft.Batch
		for range min(chunk, clients-next) {
			e := endpoints[next%len(endpoints)]
			key := binary.BigEndian.AppendUint32(e.Key[:4:4], 20<<24|uint32(next)) // port, client
			batch.AddElem(table, "affinity", nft.Elem{Key: key, Data: e.Data, Timeout: 3_600_000, Expires: 3_600_000})
			next++
		}
		if err := conn.Commit(&batch); err != nil {
			return err
		}
	}
	return nil
}

var tenantsNode = &state.Node{Name: NodeName, Addresses: []netip.Addr{ranges4.node}}

// restrictedService is a Service number n of one load balancer with ports that all allow the same source ranges, of which one
// depends on version.
func restrictedService(n, ports, ranges, version int) *state.Service {
	list := make([]netip.Prefix, ranges)
	for i := range list {
		list[i] = netip.PrefixFrom(nth(ranges4.services, i<<4), 28)
	}
	list[version%ranges] = netip.PrefixFrom(nth(ranges4.services, version%ranges<<4), 29+version/ranges%4)
	eps := make([]state.Endpoint, tenantEndpoints)
	for i := range eps {
		eps[i].Addr = netip.AddrPortFrom(nth(ranges4.pods, 8*n+i), 8080)
	}
	route := state.Route{Verdict: state.Forward, Endpoints: eps}
	s := &state.Service{Name: state.ServiceName{Namespace: "tenant", Name: fmt.Sprintf("service-%06d", n)}}
	for i := range ports {
		s.Ports = append(s.Ports, state.Port{
			Name: fmt.Sprintf("p%04d", i), Protocol: state.TCP, Family: state.IPv4,
			Frontends: []state.Frontend{{
				Kind: state.LoadBalancer, Addr: nth(ranges4.pods, 1<<22+n), Port: uint16(i + 1), Restricted: true, Sources: list,
			}},
			External: state.Traffic{Inside: route, Outside: route, Masquerade: state.MasqueradeAlways},
		})
	}
	return s
}

func inNewNamespace(measure func(*netns.NS) error) (err error) {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return measure(ns)
}
