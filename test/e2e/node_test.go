//go:build linux

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/kubeproxy"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// podCIDRs are the ranges of all pods of a lab.
var podCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}

// settings are what both proxies are configured with.
type settings struct {
	clusterCIDRs  []netip.Prefix
	masqueradeAll bool
	externalIPs   bool   // as feature gate AllowServiceExternalIPs says
	mode          string // of upstream kube-proxy
	// wrap changes our dataplane, to see that the change is noticed. It may be nil.
	wrap func(backend.Backend) backend.Backend
}

// node is a lab whose node under test has a proxy at work.
type node struct {
	name string
	*topology.Lab
	senders map[netip.Addr]*topology.Host // hosts whose packets to services pass the node under test
	trouble func() error                  // what the proxy has to say, if it ended or failed
	stop    func() error                  // ends the proxy
	ended   <-chan struct{}               // closed when upstream kube-proxy has ended; nil for Switchyard
}

// startUpstream lets upstream kube-proxy follow the API server.
func startUpstream(ctx context.Context, plane *controlplane.ControlPlane, dir string, s settings) (*node, error) {
	n, err := newNode(ctx, "kube-proxy "+s.mode)
	if err != nil {
		return nil, err
	}
	door, err := plane.Expose(n.Node())
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	proxy, err := kubeproxy.Start(n.Node(), kubeproxy.Options{
		Dir: dir, Kubeconfig: plane.Kubeconfig(), Node: n.Node().Name, Mode: s.mode,
		ClusterCIDRs: s.clusterCIDRs, MasqueradeAll: s.masqueradeAll,
		FeatureGates: map[string]bool{config.GateExternalIPs: s.externalIPs}, MinSyncPeriod: 10 * time.Millisecond,
	})
	if err != nil {
		return nil, errors.Join(err, door.Close(), n.Close())
	}
	n.ended = proxy.Done()
	n.trouble = func() error { return errors.Join(proxy.Failure(), errors.New(proxy.Tail())) }
	n.stop = func() error {
		proxy.Kill()
		return errors.Join(door.Close(), n.Close())
	}
	return n, nil
}

// startOurs lets Switchyard follow the API server.
func startOurs(ctx context.Context, plane *controlplane.ControlPlane, s settings) (*node, error) {
	n, err := newNode(ctx, "switchyard")
	if err != nil {
		return nil, err
	}
	source, err := kube.New(kube.Options{Config: plane.Config(), NodeName: n.Node().Name, ListSpread: time.Millisecond})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	var dataplane closer
	err = n.Node().Do(func() (err error) {
		dataplane, err = newDataplane(ctx, sockethooks.Of(n.Lab), nil)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	var wrapped backend.Backend = dataplane
	if s.wrap != nil {
		wrapped = s.wrap(dataplane)
	}
	feed := store.New(store.Options{Brain: brain.Config{
		NodeName: n.Node().Name, MasqueradeAll: s.masqueradeAll, IgnoreExternalIPs: !s.externalIPs,
		LocalDetector: state.LocalDetector{ClusterCIDRs: s.clusterCIDRs}, NodePorts: state.NodePortAddresses{Primary: true},
	}})
	running, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	sink := feed.Source("kube")
	go func() { ended <- source.Run(running, sink) }()
	go func() { ended <- backend.Run(running, feed, wrapped, backend.RunOptions{}) }()
	n.trouble = func() error { return errors.Join(source.Problems()...) }
	n.stop = func() error {
		cancel()
		err := errors.Join(<-ended, <-ended, dataplane.Close())
		feed.Close()
		return errors.Join(err, n.Close())
	}
	return n, nil
}

var dataplaneName = flag.String("dataplane", "nftables", "the dataplane that is tested: nftables, ebpf, ipvs, iptables or userspace")

// translated counts the connections that went through socket hooks.
var translated atomic.Uint64

// newDataplane makes the dataplane that is tested, in the calling thread's network namespace.
func newDataplane(ctx context.Context, on sockethooks.OnNamespace, log *slog.Logger) (closer, error) {
	// A program that is being started also has, for a moment, the sockets of the previous dataplane, and with them
	// its lock.
	o := nftables.Options{Logger: log, TakeOver: time.Minute}
	switch *dataplaneName {
	case "nftables":
		return nftables.New(ctx, o)
	case "ebpf":
		return sockethooks.NewPair(ctx, on, o, &translated)
	case "ipvs":
		var above atomic.Pointer[ipvs.Backend]
		o.Elsewhere = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Serves(k) }
		o.Scheduled = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Scheduled(k) }
		return newLayered(ctx, o, func(base *nftables.Backend) (*ipvs.Backend, error) {
			b, err := ipvs.New(base, ipvs.Options{Logger: log, Commit: base.Commit})
			above.Store(b)
			return b, err
		})
	case "iptables":
		return iptables.New(ctx, iptables.Options{Logger: log, TakeOver: o.TakeOver})
	case "userspace":
		l, err := newLayered(ctx, o, func(base *nftables.Backend) (*userspace.Backend, error) {
			return userspace.New(base, userspace.Options{Logger: log})
		})
		if err != nil {
			return nil, err
		}
		return relayed{l}, nil
	}
	return nil, fmt.Errorf("-dataplane %s: use nftables, ebpf, ipvs, iptables or userspace", *dataplaneName)
}

// closer is a dataplane that ends.
type closer interface {
	backend.Backend
	Close() error
}

// layered is a dataplane above nftables.
type layered[B closer] struct {
	closer
	top  B
	base *nftables.Backend
}

func newLayered[B closer](ctx context.Context, o nftables.Options, above func(base *nftables.Backend) (B, error)) (*layered[B], error) {
	base, err := nftables.New(ctx, o)
	if err != nil {
		return nil, err
	}
	b, err := above(base)
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return &layered[B]{b, b, base}, nil
}

// Close closes both.
func (l *layered[B]) Close() error { return errors.Join(l.closer.Close(), l.base.Close()) }

// relayed is a relay above nftables.
type relayed struct{ *layered[*userspace.Backend] }

// drainTime is how long what a relay carries waits for a next one.
const drainTime = 5 * time.Second

// Close ends the relay as the end of a process does: nftables takes new connections, and those that are open wait for a next relay.
func (r relayed) Close() error {
	err := errors.Join(r.top.Release(context.Background()), r.base.Close())
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		_ = r.top.Drain(ctx) // what is left ends
		_ = r.top.Close()
	}()
	return err
}

func newNode(ctx context.Context, name string) (*node, error) {
	l, err := topology.New(ctx, topology.Options{})
	if err != nil {
		return nil, err
	}
	// A relay connects from the ports that the kernel chooses. None of them is a source port of a probe.
	ports := netns.Sysctl{Path: "net/ipv4/ip_local_port_range", Value: fmt.Sprintf("%d 65535", lastProbePort+1)}
	if err := l.Node().SetSysctls(ports); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &node{name: name, Lab: l, senders: map[netip.Addr]*topology.Host{}}, nil
}

// own notes whose addresses a host's are.
func (n *node) own(host *topology.Host) {
	for _, addr := range host.Addrs {
		n.senders[addr] = host
	}
}

// podsOnEach is the number of pods on each node that may be endpoints.
const podsOnEach = 3

// servedPorts are where every host that may be an endpoint serves.
var servedPorts = []uint16{53, 8080, 8081}

// The servers of the markers, and where they are.
const (
	markPort, zonePort = 9000, 9003
	clientPod          = "bystander"
)

// anchorPods, one on each node, are endpoints that histories do not know.
var anchorPods = []string{"anchor-node", "anchor-other"}

// populate starts the same pods and servers on every node, and returns those that may be endpoints and whose they are.
func (n *node) populate(protocols []state.Protocol) (map[*topology.Host]*topology.Host, error) {
	endpoints := map[*topology.Host]*topology.Host{n.Node(): n.Node(), n.OtherNode(): n.OtherNode()}
	for i := range 2 * podsOnEach {
		other := i%2 == 1
		pod, err := n.AddPod(topology.PodOptions{Name: fmt.Sprintf("pod-%d", i), OtherNode: other})
		if err != nil {
			return nil, err
		}
		endpoints[pod] = n.OtherNode()
		if !other {
			endpoints[pod] = n.Node()
			n.own(pod)
		}
	}
	bystander, err := n.AddPod(topology.PodOptions{Name: clientPod})
	if err != nil {
		return nil, err
	}
	for _, host := range []*topology.Host{n.Node(), n.Client(), bystander} {
		n.own(host)
	}
	serving := maps.Clone(endpoints)
	for i, node := range []*topology.Host{n.Node(), n.OtherNode()} {
		anchor, err := n.AddPod(topology.PodOptions{Name: anchorPods[i], OtherNode: node == n.OtherNode()})
		if err != nil {
			return nil, err
		}
		serving[anchor] = node
	}
	n.own(n.Pod(anchorPods[0]))
	for host := range serving {
		for _, addr := range host.Addrs {
			for _, port := range servedPorts {
				endpoint := netip.AddrPortFrom(addr, port)
				for _, proto := range protocols {
					if err := host.Serve(proto, endpoint, endpoint.String()); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return endpoints, errors.Join(n.serveMarkers("east"), n.serveMarkers("west"))
}

// serveMarkers starts the pod that the markers lead to in one zone.
func (n *node) serveMarkers(zone string) error {
	pod, err := n.AddPod(topology.PodOptions{Name: zone})
	if err != nil {
		return err
	}
	for port, name := range map[uint16]string{markPort: "0", markPort + 1: "1", zonePort: zone} {
		if err := pod.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, port), name); err != nil {
			return err
		}
	}
	return nil
}
