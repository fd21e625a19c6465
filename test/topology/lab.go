//go:build linux

package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/test/netns"
)

// PodInterfacePrefix is what the names of the devices begin with by which pods hang off their node.
const PodInterfacePrefix = "pod"

// UnderlayInterface is the name of the device by which the nodes and the client are on the underlay.
const UnderlayInterface = "eth0"

// Options are the addresses of a lab. Each list may have one prefix of each family, and has a default that suits most.
type Options struct {
	// Underlay is the network of the nodes and the client. Default: 192.0.2.0/24 and 2001:db8:0:1::/64. The node under
	// test has its address 1, the other node 2, the client 100.
	Underlay []netip.Prefix
	// NodePodCIDRs are for pods on the node under test. Default: 10.244.1.0/24 and fd00:10:244:1::/64.
	NodePodCIDRs []netip.Prefix
	// OtherPodCIDRs are for pods on the other node. Default: 10.244.2.0/24 and fd00:10:244:2::/64.
	OtherPodCIDRs []netip.Prefix
	// ThirdPodCIDRs are for pods on a third node, which has the address 3 in Underlay. Default: there is no third node.
	ThirdPodCIDRs []netip.Prefix
	// ServiceCIDRs are for cluster IPs. The lab itself does not use them. Default: 10.96.0.0/16 and fd00:10:96::/112.
	ServiceCIDRs []netip.Prefix
	// LimitICMP leaves the kernel's rate limit for ICMP errors in place on the nodes. By default it is lifted, as it always is on
	// other hosts, so that each rejected packet is answered.
	LimitICMP bool
}

// DefaultOptions returns the options that a lab has by default.
func DefaultOptions() Options { return Options{}.withDefaults() }

func (o Options) withDefaults() Options {
	set := func(list *[]netip.Prefix, v4, v6 string) {
		if len(*list) == 0 {
			*list = []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
		}
	}
	set(&o.Underlay, "192.0.2.0/24", "2001:db8:0:1::/64")
	set(&o.NodePodCIDRs, "10.244.1.0/24", "fd00:10:244:1::/64")
	set(&o.OtherPodCIDRs, "10.244.2.0/24", "fd00:10:244:2::/64")
	set(&o.ServiceCIDRs, "10.96.0.0/16", "fd00:10:96::/112")
	return o
}

// Lab is a running cluster of namespaces. Its methods may be called from several goroutines.
type Lab struct {
	options                                Options
	switchHost, node, other, third, client *Host

	mu   sync.Mutex
	pods map[string]*Host
	// overs are the clients of [Lab.AddHandedOver].
	overs map[string]*Host
	used  map[netip.Addr]bool // pod addresses ever given out: a late packet must not meet another pod
	// onHost is called for each host that is the node under test or a pod on it; see OnHost.
	onHost []func(*Host) error
	macs   uint32
	devs   int
}

// New builds the nodes and the client. It returns a [*netns.PermissionError] if the process may not make namespaces.
func New(ctx context.Context, options Options) (*Lab, error) {
	l := &Lab{options: options.withDefaults(), pods: map[string]*Host{}, overs: map[string]*Host{}, used: map[netip.Addr]bool{}}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("build the lab: %w", err), l.Close())
	}
	return l, nil
}

// Options returns the lab's addresses, defaults filled in.
func (l *Lab) Options() Options { return l.options }

// Node returns the node under test.
func (l *Lab) Node() *Host { return l.node }

// OtherNode returns the second node. It routes, and does nothing else.
func (l *Lab) OtherNode() *Host { return l.other }

// Nodes returns all nodes, the node under test first.
func (l *Lab) Nodes() []*Host {
	nodes := []*Host{l.node, l.other}
	if l.third != nil {
		nodes = append(nodes, l.third)
	}
	return nodes
}

func (l *Lab) podCIDRs(node *Host) []netip.Prefix {
	return map[*Host][]netip.Prefix{l.node: l.options.NodePodCIDRs, l.other: l.options.OtherPodCIDRs, l.third: l.options.ThirdPodCIDRs}[node]
}

// Client returns the host outside the cluster.
func (l *Lab) Client() *Host { return l.client }

// OnHost calls fn for the node under test, for each pod on it, and for each that is added later, before it is used.
// The call that adds the pod returns fn's error.
func (l *Lab) OnHost(fn func(*Host) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	hosts := []*Host{l.node}
	for _, pod := range l.pods {
		if pod.node == l.node {
			hosts = append(hosts, pod)
		}
	}
	for _, h := range hosts {
		if err := fn(h); err != nil {
			return err
		}
	}
	l.onHost = append(l.onHost, fn)
	return nil
}

// Pod returns a pod by name, nil if there is none.
func (l *Lab) Pod(name string) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[name]
}

// PodOptions describe a pod.
type PodOptions struct {
	// Name is required, and unique in the lab.
	Name string
	// Node is the node of the pod. Default: the node under test, or the other one with OtherNode.
	Node *Host
	// OtherNode puts the pod on the other node.
	OtherNode bool
	// Addrs are the pod's addresses, of any number and family. Default: one of each of its node's pod CIDRs.
	Addrs []netip.Addr
}

// AddPod starts a pod.
func (l *Lab) AddPod(options PodOptions) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if options.Name == "" || l.pods[options.Name] != nil {
		return nil, fmt.Errorf("pod %q: the name is empty or taken", options.Name)
	}
	node := cmp.Or(options.Node, l.node)
	if options.OtherNode {
		node = l.other
	}
	addrs := slices.Clone(options.Addrs)
	if len(addrs) == 0 {
		for _, cidr := range l.podCIDRs(node) {
			addr, err := l.allocate(cidr)
			if err != nil {
				return nil, fmt.Errorf("pod %q: %w", options.Name, err)
			}
			addrs = append(addrs, addr)
		}
	}
	pod, err := NewHost(options.Name, addrs, hostSysctls)
	if err == nil {
		l.pods[pod.Name] = pod
		l.devs++
		err = l.joinPod(pod, node, fmt.Sprint(PodInterfacePrefix, l.devs))
		for _, fn := range l.onHost {
			if err == nil && node == l.node {
				err = fn(pod)
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("pod %q: %w", options.Name, err)
		if pod != nil {
			delete(l.pods, pod.Name)
			err = errors.Join(err, pod.Close())
		}
		return nil, err
	}
	for _, addr := range addrs {
		l.used[addr] = true
	}
	return pod, nil
}

// RemovePod stops a pod: its servers, its connections, its device and its routes are gone.
func (l *Lab) RemovePod(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod := l.pods[name]
	if pod == nil {
		return fmt.Errorf("pod %q: there is none", name)
	}
	delete(l.pods, name)
	return errors.Join(pod.unlink(), pod.Close())
}

// Close removes everything. The lab must not be used afterwards.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, pod := range l.pods {
		errs = append(errs, pod.Close())
	}
	for _, client := range l.overs {
		errs = append(errs, client.Close())
	}
	for _, host := range []*Host{l.node, l.other, l.third, l.client, l.switchHost} {
		if host != nil {
			errs = append(errs, host.Close())
		}
	}
	l.pods, l.overs = nil, nil
	return errors.Join(errs...)
}

// allocate returns the first address from 10 on in cidr that no pod ever had.
func (l *Lab) allocate(cidr netip.Prefix) (netip.Addr, error) {
	for addr := nth(cidr, 10); cidr.Contains(addr); addr = addr.Next() {
		if !l.used[addr] {
			l.used[addr] = true
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address left in %v", cidr)
}

// nth returns the nth address of a prefix; n must fit.
func nth(prefix netip.Prefix, n byte) netip.Addr {
	bytes := prefix.Masked().Addr().AsSlice()
	bytes[len(bytes)-1] += n
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

var (
	// linkSysctls are for every host. Redirects would teach the client a way around the node under test.
	linkSysctls = []netns.Sysctl{
		{Path: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
		{Path: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
		{Path: "net/ipv6/conf/all/accept_dad", Value: "0"},
		{Path: "net/ipv6/conf/default/accept_dad", Value: "0"},
		{Path: "net/ipv6/conf/default/accept_ra", Value: "0"},
		{Path: "net/ipv6/conf/all/accept_redirects", Value: "0"},
		{Path: "net/ipv6/conf/default/accept_redirects", Value: "0"},
		{Path: "net/ipv4/conf/all/accept_redirects", Value: "0"},
		{Path: "net/ipv4/conf/default/accept_redirects", Value: "0"},
		{Path: "net/ipv4/conf/all/rp_filter", Value: "0"},
		{Path: "net/ipv4/conf/default/rp_filter", Value: "0"},
	}
	nodeSysctls = slices.Concat([]netns.Sysctl{
		// First, since these two change others.
		{Path: "net/ipv4/ip_forward", Value: "1"},
		{Path: "net/ipv6/conf/all/forwarding", Value: "1"},
		{Path: "net/ipv4/conf/all/send_redirects", Value: "0"},
		{Path: "net/ipv4/conf/default/send_redirects", Value: "0"},
	}, linkSysctls)
	// hostSysctls are for hosts that are no nodes. Such a host refuses each datagram to a port without a server. With the kernel's limit, the
	// first refusals to a client may be lost if two CPUs send them at the same time. The reason is that inet_peer_xrlim_allow reads and writes
	// without a lock.
	hostSysctls   = slices.Concat(linkSysctls, unlimitedICMP)
	unlimitedICMP = []netns.Sysctl{
		{Path: "net/ipv4/icmp_ratemask", Value: "0"},
		{Path: "net/ipv6/icmp/ratelimit", Value: "0"},
		{Path: "net/ipv6/icmp/ratemask", Value: "127"}, // the global limit is for the types named here; there is no type 127
	}
)
