package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// edgeTests are the kinds of connections that are measured on the whole path.
var edgeTests = []struct{ name, do string }{{"connect", doTCPConnect}, {"request", doRequest}, {"ping", doPing}}

// pathLab is a client outside, an entry node without endpoints, and a second node with the endpoint. The client connects by the entry node. Client and server are
// processes on one CPU, which has the whole path.
type pathLab struct {
	connectionLab
	variant string
	nodes   [2]*edgeNode
	client  *worker
	// p10 is the least tenth percentile, by test.
	p10 map[string]time.Duration
}

// The numbers of the namespaces of a [pathLab].
const (
	edgeClient = iota
	edgeServer
)

func newPathLab(ctx context.Context, variant string) (_ *pathLab, err error) {
	l := &pathLab{variant: variant, p10: map[string]time.Duration{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("whole path, %s: %w", variant, err), l.close())
		}
	}()
	if l.Lab, err = topology.New(ctx, topology.Options{}); err != nil {
		return nil, err
	}
	l.add(l.Lab.Close)
	server, err := l.AddPod(topology.PodOptions{Name: "server", OtherNode: true, Addrs: []netip.Addr{edgePod(1, 0)}})
	if err != nil {
		return nil, err
	}
	if err := l.open([]*topology.Host{edgeClient: l.Client(), edgeServer: server}); err != nil {
		return nil, err
	}
	for i, host := range []*topology.Host{l.Node(), l.OtherNode()} {
		if l.nodes[i], err = openEdgeNode(ctx, host, i, variant, edgeObjects(state.TCP, 0, 1)); err != nil {
			return nil, err
		}
		l.add(l.nodes[i].close)
	}
	err = onOneCPU(func() error {
		serving, err := l.worker(ctx, "")
		if err != nil {
			return err
		}
		if l.client, err = l.worker(ctx, ""); err != nil {
			return err
		}
		_, err = serving.connect(ctx, ConnectionOrder{Do: doServe, From: edgeServer, To: netip.AddrPortFrom(netip.IPv4Unspecified(), labServerPort)})
		return err
	})
	return l, err
}

// order has the client do something, and returns how many connections the entry node tracks then.
func (l *pathLab) order(ctx context.Context, do string, lasts time.Duration) (a ConnectionAnswer, tracked int, err error) {
	for _, n := range l.nodes {
		// The entry node has a port for 64,512 connections to an endpoint, and keeps those that have been reset for a while.
		if err := n.in.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			return a, 0, fmt.Errorf("forgetting connections: %w", err)
		}
	}
	if a, err = l.client.connect(ctx, ConnectionOrder{Do: do, From: edgeClient, To: edgeFrontend, For: lasts}); err != nil {
		return a, 0, err
	}
	err = l.nodes[0].in.Do(func() error { tracked, err = l.nodes[0].tracked(); return err })
	return a, tracked, err
}

// measure measures one kind of connections, as order does.
func (l *pathLab) measure(ctx context.Context, name, do string, lasts time.Duration) (tracked int, err error) {
	a, tracked, err := l.order(ctx, do, lasts)
	if was, measured := l.p10[name]; err == nil && (!measured || a.P10 < was) {
		l.p10[name] = a.P10
	}
	return tracked, err
}

// check returns an error if packets of the last order went another way than the one that was to be measured.
func (l *pathLab) check() error {
	seen := l.Node().Addrs[0] // the client, as the server sees it
	if l.nodes[0].edge != nil {
		seen = l.Client().Addrs[0]
		stats, err := l.nodes[0].edge.Stats()
		if err != nil {
			return err
		}
		if stats[programs.HandedOver] == 0 {
			return fmt.Errorf("whole path, %s: no packet was handed over: %v", l.variant, stats)
		}
	}
	var flows []*netlink.ConntrackFlow
	if err := l.nodes[1].in.Do(func() (err error) {
		flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		return err
	}); err != nil {
		return fmt.Errorf("connections of the node with the endpoint: %w", err)
	}
	if len(flows) == 0 {
		return fmt.Errorf("whole path, %s: the node with the endpoint tracks no connection", l.variant)
	}
	for _, flow := range flows {
		if pod := edgePod(1, 0); !flow.Reverse.SrcIP.Equal(pod.AsSlice()) || !flow.Reverse.DstIP.Equal(seen.AsSlice()) {
			return fmt.Errorf("whole path, %s: the node with the endpoint has a connection from %v to %v, want one from %v to %v",
				l.variant, flow.Reverse.DstIP, flow.Reverse.SrcIP, seen, pod)
		}
	}
	return nil
}

// shapedTo is how many bytes leave the entry node in a second, while downloads are measured: 1 Gbit/s.
const shapedTo = 125_000_000

// shape limits what leaves the entry node (tc-tbf).
func (l *pathLab) shape() error {
	const burst, wait = 256 << 10, 20 * time.Millisecond
	err := l.Node().Do(func() error {
		device, err := netlink.LinkByName(topology.UnderlayInterface)
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       shapedTo, Limit: burst + shapedTo/uint32(time.Second/wait), Buffer: netlink.Xmittime(shapedTo, burst),
		})
	})
	if err != nil {
		return fmt.Errorf("shaping what leaves the entry node: load the module sch_tbf: %w", err)
	}
	return nil
}
