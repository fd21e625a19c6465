package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nft/nfttest"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// The things that packets may make many of. A node has room for 262,144 flows by default, and for 1,048,576 clients
// with affinity.
var (
	manyClientsRemembered = dimension{"sticky clients", []int{1000, 10_000, 100_000, 1_000_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{services: 2, endpoints: 5, sticky: n}
	}, false}
	manyFlows = dimension{"UDP flows", []int{250, 2500, 25_000, 250_000}, []int{10, 100}, func(n int) scaledCluster {
		return scaledCluster{services: 2, endpoints: 5, protocol: state.UDP, flows: n}
	}, false}
	manyFlows6 = dimension{"UDP flows over IPv6", manyFlows.sizes, manyFlows.quick, func(n int) scaledCluster {
		return scaledCluster{services: 2, endpoints: 5, protocol: state.UDP, family: state.IPv6, flows: n}
	}, false}
	// Services whose endpoints leave all at once, and a service that loses many, in a table of a thousand flows.
	manyLosers = dimension{"services that lose an endpoint", manyServices.sizes, manyServices.quick, func(n int) scaledCluster {
		return scaledCluster{services: n, endpoints: 2, protocol: state.UDP, flows: 1000}
	}, true}
	manyLost = dimension{"endpoints that leave", []int{10, 100, 1000, 10_000}, manyEndpoints.quick, func(n int) scaledCluster {
		return scaledCluster{endpoints: n + 1, protocol: state.UDP, flows: 1000}
	}, true}
)

// kernelScalings are the scalings of the nftables dataplane and of connection tracking.
func kernelScalings() (all []scaling) {
	listed := explanation{"the kernel lists a set in quadratic time; large ones are looked up instead since Linux 6.18 (ADR 10)", 2.1}
	for _, d := range []dimension{
		manyServices, manyEndpoints, manyPorts, manyRanges, manyNodeAddrs, manyClientsRemembered, manyFlows,
	} {
		all = append(all, d.scaling("nftables", scaledNFTables).because(listed, "restart", "comparison after a foreign commit").because(cached, "load"))
	}
	// Our work is the same for any number of them: one request. The kernel's walk visits each flow twice. A visit takes 33 ns with 25,000 flows, and
	// 120 ns with 250,000, which fill 64 MB. On the same machine, with 32 MB of cache, one read of as many entries in a random order takes 13 ns and
	// 148 ns. This is a slope of 2.
	walked := explanation{"the kernel walks its whole table for one request, and so many entries do not fit into the processor's caches", 1.65}
	for _, d := range []dimension{manyFlows, manyFlows6} {
		all = append(all, d.scaling("conntrack", func(ctx context.Context, c scaledCluster) (*scaled, error) {
			return scaledConntrack(ctx, c, 1, c.endpoints-1)
		}).because(walked, "endpoints leave"))
	}
	for _, d := range []dimension{manyLosers, manyLost} {
		all = append(all, d.scaling("conntrack", func(ctx context.Context, c scaledCluster) (*scaled, error) {
			return scaledConntrack(ctx, c, max(c.services, 1), 1)
		}))
	}
	return all
}

func scaledNFTables(ctx context.Context, c scaledCluster) (_ *scaled, err error) {
	u, err := c.state(ctx)
	if err != nil {
		return nil, err
	}
	d, err := newDataplane(ctx)
	if err != nil {
		return nil, err
	}
	if c.nodePort {
		if err := d.ns.Do(func() error { return addAddresses(c.nodeAddrs) }); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	endpoint, err := d.alternate(ctx, c, u.Node, func(version int) (*state.Service, error) { return c.record(0, version) })
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	full := func() error {
		_, err := d.backend.Apply(ctx, u)
		return err
	}
	ops := []scaledOp{{
		name: "load", run: full,
		reset: func() error {
			return d.restart(ctx, func() error {
				_, err := nftables.Cleanup(ctx)
				return err
			})
		},
	}}
	switch {
	case c.sticky > 0:
		err := full()
		if err == nil {
			err = d.restart(ctx, func() error { return rememberClients(d.ns, c.sticky) }) // nobody owns the tables until then
		}
		if err == nil {
			err = full()
		}
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		ops = nil // the load is the load of two services
	case c.flows > 0:
		if err := d.ns.Do(func() error { return fillFlows(u.Changed[len(u.Changed)-1], c.flows) }); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	ops = append(ops, scaledOp{name: "changed endpoint", single: true, run: endpoint})
	if c.ranges > 0 && !c.nodePort {
		changed, err := d.alternate(ctx, c, u.Node, func(version int) (*state.Service, error) { return c.record(version, 0) })
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		ops = append(ops, scaledOp{name: "changed range", single: true, run: changed})
	}
	ops = append(ops, scaledOp{
		name: "comparison after a foreign commit", reset: func() error { return d.ns.Do(nfttest.ForeignCommit) },
		run: func() error {
			_, err := d.backend.Verify(ctx)
			return err
		},
	}, scaledOp{name: "restart", reset: func() error { return d.restart(ctx, func() error { return nil }) }, run: full})
	return &scaled{ops, d.close}, nil
}

// alternate returns an operation that applies two versions of the first service's record in turn.
func (d *dataplane) alternate(ctx context.Context, c scaledCluster, node *state.Node, version func(int) (*state.Service, error)) (func() error, error) {
	var updates [2]*state.Update
	for i := range updates {
		s, err := version(i)
		if err != nil {
			return nil, err
		}
		updates[i] = &state.Update{Node: node, Changed: []*state.Service{s}}
	}
	n := 0
	return func() error {
		n++
		_, err := d.backend.Apply(ctx, updates[n%2])
		return err
	}, nil
}

// addAddresses gives the calling thread's namespace n addresses that serve NodePorts.
func addAddresses(n int) error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback link: %w", err)
	}
	for i := range n {
		addr := &netlink.Addr{IPNet: netlink.NewIPNet(nth(netip.MustParsePrefix("172.16.0.0/12"), i+1).AsSlice())}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %v: %w", addr, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// fillFlows makes n flows to the endpoints of a service in the calling thread's namespace, as packets of many clients do it.
func fillFlows(s *state.Service, n int) error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	p := &s.Ports[0]
	dst, endpoints := p.Frontends[0], p.Internal.Inside.Endpoints
	clients, family := netip.MustParsePrefix("11.0.0.0/8"), netlink.InetFamily(unix.AF_INET)
	if p.Family == state.IPv6 {
		clients, family = netip.MustParsePrefix("fd00:11::/64"), unix.AF_INET6
	}
	for i := range n {
		client, e := nth(clients, i+1).AsSlice(), endpoints[i%len(endpoints)].Addr
		if err := h.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 3600,
			Forward: netlink.IPTuple{SrcIP: client, SrcPort: 1024, DstIP: dst.Addr.AsSlice(), DstPort: dst.Port, Protocol: uint8(p.Protocol)},
			Reverse: netlink.IPTuple{SrcIP: e.Addr().AsSlice(), SrcPort: e.Port(), DstIP: client, DstPort: 1024, Protocol: uint8(p.Protocol)},
		}); err != nil {
			return fmt.Errorf("make flow %d: %w", i, err)
		}
	}
	return nil
}

// scaledConntrack deletes the flows of endpoints that leave: each of the first so many services keeps so many.
func scaledConntrack(ctx context.Context, c scaledCluster, services, keeps int) (*scaled, error) {
	u, err := c.state(ctx)
	if err != nil {
		return nil, err
	}
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	var conn *conntrack.Conn
	if err := ns.Do(func() (err error) {
		if conn, err = conntrack.Open(); err == nil {
			err = fillFlows(u.Changed[len(u.Changed)-1], c.flows)
		}
		return err
	}); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	losers := u.Changed[:services]
	after := make([]*state.Service, services)
	for i, s := range losers {
		after[i] = withEndpoints(s, keeps)
	}
	cleaner := conntrack.NewCleaner(conn, conntrack.CleanerOptions{})
	return &scaled{[]scaledOp{{name: "endpoints leave", run: func() error {
		for i, s := range losers {
			cleaner.Note(s, after[i])
		}
		_, err := cleaner.Clean(ctx, func(fn func() error) error { return fn() })
		return err
	}}}, func() error { return errors.Join(conn.Close(), ns.Close()) }}, nil
}

// withEndpoints returns the service with only the last n endpoints of its first port.
func withEndpoints(s *state.Service, n int) *state.Service {
	less := *s
	less.Ports = slices.Clone(less.Ports)
	for _, r := range less.Ports[0].Routes() {
		r.Endpoints = r.Endpoints[max(0, len(r.Endpoints)-n):]
	}
	return &less
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
