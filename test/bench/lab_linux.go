package bench

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/topology"
)

// The addresses of labs, which are the same in each. No pod of a synthetic cluster has any of them.
var (
	labPods   = netip.MustParsePrefix("10.255.0.0/24")
	labClient = nth(labPods, 10)
	labServer = nth(labPods, labServerNumber) // the first of the server's addresses, each of which is an endpoint
	clusterIP = netip.AddrPortFrom(nth(ranges4.services, 1<<18), 80)
)

// Where the server is in labPods, and where it listens.
const labServerNumber, labServerPort = 20, 8080

// labDetector is how a node sees which clients are pods.
var labDetector = state.LocalDetector{ClusterCIDRs: []netip.Prefix{ranges4.pods}}

// The numbers of the namespaces of a lab.
const (
	fromPod = iota
	fromNode
	ofServer
	fromOutside
)

// connectionLab is a node with two pods, and a server in one of them.
type connectionLab struct {
	*topology.Lab
	namespaces []*os.File
	server     netip.AddrPort
	// closers are called in reverse order.
	closers []func() error
}

func (l *connectionLab) close() (err error) {
	for i := range l.closers {
		err = errors.Join(err, l.closers[len(l.closers)-1-i]())
	}
	return err
}

// newConnectionLab makes a lab whose server answers. worker makes the command that runs [MeasureConnections].
func newConnectionLab(ctx context.Context, worker func(context.Context) *exec.Cmd) (_ *connectionLab, err error) {
	l := &connectionLab{server: netip.AddrPortFrom(labServer, labServerPort)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.Lab, err = topology.New(ctx, topology.Options{NodePodCIDRs: []netip.Prefix{labPods}}); err != nil {
		return nil, err
	}
	l.closers = append(l.closers, l.Close)
	client, err := l.AddPod(topology.PodOptions{Name: "client", Addrs: []netip.Addr{labClient}})
	if err != nil {
		return nil, err
	}
	server, err := l.AddPod(topology.PodOptions{Name: "server", Addrs: serverAddrs()})
	if err != nil {
		return nil, err
	}
	for _, h := range []*topology.Host{fromPod: client, fromNode: l.Node(), ofServer: server, fromOutside: l.Client()} {
		// Connections of a slice get ports of their own.
		if err := h.SetSysctls(netns.Sysctl{Path: "net/ipv4/ip_local_port_range", Value: "10000 65000"}, netns.Sysctl{Path: "net/core/somaxconn", Value: "4096"}); err != nil {
			return nil, err
		}
		var ns *os.File
		if err := h.Do(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
			return nil, err
		}
		l.namespaces = append(l.namespaces, ns)
		l.closers = append(l.closers, ns.Close)
	}
	serving, err := startConnectionWorker(worker(ctx), nil, l.namespaces)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, serving.close)
	_, err = serving.do(ctx, connectionOrder{Do: doServe, From: ofServer, To: netip.AddrPortFrom(netip.IPv4Unspecified(), labServerPort)})
	return l, err
}

func serverAddrs() (addrs []netip.Addr) {
	for i := range measuredEndpoints {
		addrs = append(addrs, nth(labPods, labServerNumber+i))
	}
	return addrs
}

// measuredObjects are the node, and the Service whose endpoints are the server of a lab, with a NodePort and UDP unless that is 0.
func measuredObjects(node netip.Addr, nodePort uint16) []model.Object {
	service := &model.Service{
		Name:       state.ServiceName{Namespace: "bench", Name: "measured"},
		Ports:      []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: clusterIP.Port(), NodePort: nodePort}},
		ClusterIPs: []netip.Addr{clusterIP.Addr()},
	}
	ports := []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: labServerPort}}
	if nodePort != 0 {
		service.Type = model.TypeNodePort
		service.Ports = append(service.Ports, model.ServicePort{Name: "udp", Protocol: state.UDP, Port: clusterIP.Port(), NodePort: nodePort})
		ports = append(ports, model.EndpointPort{Name: "udp", Protocol: state.UDP, Port: labServerPort})
	}
	slice := &model.EndpointSlice{
		Namespace: service.Name.Namespace, Name: service.Name.Name + "-1", Service: service.Name.Name, Family: state.IPv4,
		Ports: ports,
	}
	for _, addr := range serverAddrs() {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: NodeName})
	}
	return []model.Object{
		&model.Node{Name: NodeName, Zone: "zone-a", Addresses: []netip.Addr{node}, PodCIDRs: []netip.Prefix{labPods}}, service, slice,
	}
}
