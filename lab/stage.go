//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/lab/minicluster"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// nodeName is the name of the node under test, for manifests that name it.
const nodeName = "node-a"

// nodeNames are the names of all nodes, as in [topology.Lab.Nodes]. The third one is there with the edge only.
var nodeNames = []string{nodeName, "node-b", "node-c"}

// silentLabel has a pod answer nothing, as on a node that has lost its power, if its value is "true".
const silentLabel = "lab.switchyard.net/silent"

func isSilent(p *minicluster.Pod) bool { return p.Labels[silentLabel] == "true" && !p.HostNetwork }

// prober is the pod on the node under test that stands for all pods as clients.
const prober = "prober"

// stage is a lab in which the pods of a cluster run.
type stage struct {
	lab    *topology.Lab
	prober *topology.Host
	pods   map[string]minicluster.Pod // by "namespace/name"
	// outside are the endpoints that belong to no pod, as servers on a node or on the client.
	outside map[endpointKey]outsideServer
	// relays is [Options].Relays.
	relays bool
	// started is called for each pod, with how many run by then.
	started func(n, of int)
}

type outsideServer struct {
	host  *topology.Host
	proto state.Protocol
	addr  netip.AddrPort
}

// manyPods are more than the ranges of a lab have addresses for, which are 239 on each node.
const manyPods = 400

// newStage builds a lab for a number of pods, with a third node if it is for the edge.
func newStage(ctx context.Context, pods int, edge bool) (*stage, error) {
	var o topology.Options
	if edge {
		o.ThirdPodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.128.0/18"), netip.MustParsePrefix("fd00:10:244:3::/64")}
	}
	if pods > manyPods {
		o.NodePodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/18"), netip.MustParsePrefix("fd00:10:244:1::/64")}
		o.OtherPodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.64.0/18"), netip.MustParsePrefix("fd00:10:244:2::/64")}
	}
	l, err := topology.New(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &stage{lab: l, pods: make(map[string]minicluster.Pod), outside: make(map[endpointKey]outsideServer), started: func(int, int) {}}
	if s.prober, err = l.AddPod(topology.PodOptions{Name: prober}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

func (s *stage) close() error { return s.lab.Close() }

func (s *stage) clusterOptions() minicluster.Options {
	var addrs [][]netip.Addr
	for _, node := range s.lab.Nodes() {
		addrs = append(addrs, node.Addrs)
	}
	return clusterOptions(s.lab.Options(), addrs...)
}

// clusterOptions describe the cluster of a lab with nodes at some addresses.
func clusterOptions(o topology.Options, nodes ...[]netip.Addr) minicluster.Options {
	zones := []string{"zone-a", "zone-b", "zone-c"}
	podCIDRs := [][]netip.Prefix{o.NodePodCIDRs, o.OtherPodCIDRs, o.ThirdPodCIDRs}
	var list []minicluster.Node
	for i, addrs := range nodes {
		list = append(list, minicluster.Node{Name: nodeNames[i], Zone: zones[i], Addrs: addrs, PodCIDRs: podCIDRs[i]})
	}
	return minicluster.Options{
		Nodes:        list,
		ServiceCIDRs: o.ServiceCIDRs,
		LoadBalancerCIDRs: []netip.Prefix{
			netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:0:2::/64"),
		},
	}
}

func (s *stage) podCIDRs() []netip.Prefix {
	o := s.lab.Options()
	return slices.Concat(o.NodePodCIDRs, o.OtherPodCIDRs, o.ThirdPodCIDRs)
}

func (s *stage) clients() []client {
	return []client{
		{probe.FromPod, s.prober.Addrs}, {probe.FromNode, s.lab.Node().Addrs}, {probe.FromOutside, s.lab.Client().Addrs},
	}
}

func (s *stage) host(c probe.Client) *topology.Host {
	switch c {
	case probe.FromPod:
		return s.prober
	case probe.FromNode:
		return s.lab.Node()
	}
	return s.lab.Client()
}

// apply makes the lab run the cluster's pods, and servers for endpoints that are not pods, and returns which server
// is where. Unchanged pods and servers keep running. Errors name what could not be started.
func (s *stage) apply(c *minicluster.Cluster) (directory, error) {
	var errs []error
	wanted := make(map[string]minicluster.Pod)
	for _, p := range c.Pods {
		wanted[p.Namespace+"/"+p.Name] = p
	}
	for name, p := range s.pods {
		if w, ok := wanted[name]; !ok || !reflect.DeepEqual(p, w) {
			errs = append(errs, s.stop(name, p))
		}
	}
	servers := make(directory)
	for i, p := range c.Pods {
		name := p.Namespace + "/" + p.Name
		if _, running := s.pods[name]; !running {
			errs = append(errs, s.start(name, p))
		}
		s.started(i+1, len(c.Pods))
		for _, port := range p.Ports {
			for _, a := range p.Addrs {
				servers[endpointKey{port.Protocol.String(), netip.AddrPortFrom(a, port.Port)}] = serverName(name, port.Port)
			}
		}
	}
	errs = append(errs, s.serveOutside(c.Slices, servers))
	return servers, errors.Join(errs...)
}

func serverName(owner string, port uint16) string { return fmt.Sprintf("%s|%d", owner, port) }

// node returns a node by its name.
func (s *stage) node(name string) *topology.Host { return s.lab.Nodes()[slices.Index(nodeNames, name)] }

// hostOf returns the host whose network a pod has.
func (s *stage) hostOf(name string, p minicluster.Pod) *topology.Host {
	if p.HostNetwork {
		return s.node(p.Node)
	}
	return s.lab.Pod(name)
}

func (s *stage) start(name string, p minicluster.Pod) error {
	if !p.HostNetwork {
		if _, err := s.lab.AddPod(topology.PodOptions{Name: name, Node: s.node(p.Node), Addrs: p.Addrs}); err != nil {
			return err
		}
	}
	s.pods[name] = p
	host := s.hostOf(name, p)
	var errs []error
	for _, port := range distinct(p.Ports) {
		if !served(port.Protocol) {
			continue
		}
		if err := host.Serve(port.Protocol, netip.AddrPortFrom(netip.Addr{}, port.Port), serverName(name, port.Port)); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", name, err))
		}
	}
	if isSilent(&p) {
		errs = append(errs, host.Silence(true))
	}
	return errors.Join(errs...)
}

// silent returns the addresses of pods that answer nothing.
func (s *stage) silent() map[netip.Addr]bool {
	silent := map[netip.Addr]bool{}
	for _, p := range s.pods {
		for _, a := range p.Addrs {
			if isSilent(&p) {
				silent[a] = true
			}
		}
	}
	return silent
}

func (s *stage) stop(name string, p minicluster.Pod) error {
	delete(s.pods, name)
	if !p.HostNetwork {
		return s.lab.RemovePod(name)
	}
	var errs []error
	for _, port := range distinct(p.Ports) {
		if served(port.Protocol) {
			errs = append(errs, s.hostOf(name, p).StopServing(port.Protocol, netip.AddrPortFrom(netip.Addr{}, port.Port)))
		}
	}
	return errors.Join(errs...)
}

// served reports whether the kernel has a protocol. The view reports it if it has not.
func served(p state.Protocol) bool { return p != state.SCTP || topology.HasSCTP() }

// distinct leaves out ports that are declared again under another name.
func distinct(ports []minicluster.ContainerPort) []minicluster.ContainerPort {
	var list []minicluster.ContainerPort
	for _, p := range ports {
		p.Name = ""
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// serveOutside runs servers for the endpoints of slices that were written by hand. They run on the node that has the
// address, and for all other addresses on the client, which stands for the rest of the world. It adds them to
// servers.
func (s *stage) serveOutside(all []*discoveryv1.EndpointSlice, servers directory) error {
	var errs []error
	wanted := make(map[endpointKey]outsideServer)
	for _, slice := range all {
		if slice.Labels[discoveryv1.LabelManagedBy] == minicluster.SliceController {
			continue // its endpoints are pods
		}
		m, err := kubeconv.EndpointSlice(slice)
		if err != nil {
			continue // reported where the objects go to the store
		}
		for _, e := range m.Endpoints {
			for _, port := range m.Ports {
				key := endpointKey{port.Protocol.String(), netip.AddrPortFrom(e.Addr, port.Port)}
				if _, isPod := servers[key]; !isPod && !s.ownedByPod(e.Addr) && served(port.Protocol) {
					wanted[key] = outsideServer{s.worldHost(e.Addr), port.Protocol, key.addr}
				}
			}
		}
	}
	for key, o := range s.outside {
		if _, ok := wanted[key]; !ok {
			errs = append(errs, o.host.StopServing(o.proto, o.addr))
			delete(s.outside, key)
		}
	}
	for key, o := range wanted {
		servers[key] = serverName(o.addr.Addr().String(), o.addr.Port())
		if _, running := s.outside[key]; running {
			continue
		}
		var err error
		if a := o.addr.Addr(); !slices.Contains(o.host.Addrs, a) {
			err = o.host.AddAddr(netip.PrefixFrom(a, a.BitLen()))
		}
		if err == nil {
			err = o.host.Serve(o.proto, o.addr, servers[key])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("endpoint %v: %w", o.addr, err))
			continue
		}
		s.outside[key] = o
	}
	return errors.Join(errs...)
}

// ownedByPod reports whether an address is a pod's: if that pod does not listen, nothing else does so in its place.
func (s *stage) ownedByPod(addr netip.Addr) bool {
	for _, p := range s.pods {
		if !p.HostNetwork && slices.Contains(p.Addrs, addr) {
			return true
		}
	}
	return false
}

func (s *stage) worldHost(addr netip.Addr) *topology.Host {
	for _, h := range s.lab.Nodes() {
		if slices.Contains(h.Addrs, addr) {
			return h
		}
	}
	return s.lab.Client()
}
