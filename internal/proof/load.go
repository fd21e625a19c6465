//go:build linux

package proof

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/internal/flow"
	"github.com/switchyard-net/switchyard/internal/flowcount"
	"github.com/switchyard-net/switchyard/internal/lab"
	"github.com/switchyard-net/switchyard/state"
)

// route is a way into a service: who connects to which kind of its addresses.
type route struct {
	service *serviceOf
	kind    string
	client  flow.Client
}

var routes = []route{
	{&loaded[0], "cluster IP", flow.FromPod},
	{&loaded[0], "cluster IP", flow.FromNode},
	{&loaded[0], "NodePort", flow.FromOutside},
	{&loaded[0], "NodePort", flow.FromPod},
	{&loaded[0], "load balancer IP", flow.FromOutside},
	{&loaded[0], "load balancer IP", flow.FromNode},
	{&loaded[1], "cluster IP", flow.FromPod},
	{&loaded[1], "NodePort", flow.FromOutside},
	{&loaded[2], "NodePort", flow.FromOutside},
}

// flowsPerStream and flowPause make about as many requests on open connections as there are new ones at the default rate.
const (
	flowsPerStream = 4
	flowPause      = 80 * time.Millisecond
)

// startLoad starts a load of new connections a second in all, and of requests on open ones; o has the rest of its settings. Beside it goes a control: connections
// from outside and from the other node to a pod there, whose packets never come to the node with the proxy.
func (c *cluster) startLoad(perSecond int, o flowcount.Options) *flowcount.Counter {
	streams := len(routes) * 4
	every := time.Second * time.Duration(streams) / time.Duration(perSecond)
	hosts := map[flow.Client]*lab.Host{flow.FromPod: c.client.Host, flow.FromNode: c.lab.Node(), flow.FromOutside: c.lab.Client()}
	for family := range 2 {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			add := func(s flowcount.Stream) {
				s.Every, s.Flows, s.Pause = every, flowsPerStream, flowPause
				o.Streams = append(o.Streams, s)
			}
			for i := range routes {
				r := &routes[i]
				add(flowcount.Stream{
					From: hosts[r.client], Client: r.client, Target: r.target(c.lab, proto, family), Judge: &c.ledger, Sticky: r.service.sticky,
				})
			}
			for _, host := range []*lab.Host{c.lab.Client(), c.lab.OtherNode()} {
				plain := flowcount.Target{Name: "plain pod", Protocol: proto, Addr: netip.AddrPortFrom(c.plain.Addrs[family], servedPort)}
				add(flowcount.Stream{From: host, Target: plain, Judge: flowcount.Plainly{}, Control: true})
			}
		}
	}
	return flowcount.Start(o)
}

func (r *route) target(l *lab.Lab, proto state.Protocol, family int) flowcount.Target {
	t := flowcount.Target{
		Name: fmt.Sprintf("%s, %s", r.service.name, r.kind), Protocol: proto, Port: "tcp",
		Service: state.ServiceName{Namespace: namespace, Name: r.service.name},
	}
	port, offset := uint16(tcpPort), uint16(0)
	if proto == state.UDP {
		port, offset, t.Port = udpPort, 1, "udp"
	}
	addr := r.service.clusterIPs()[family]
	switch r.kind {
	case "NodePort":
		addr, port = l.Node().Addrs[family], uint16(r.service.nodePort)+offset
	case "load balancer IP":
		addr = r.service.lbIPs()[family]
	}
	t.Addr = netip.AddrPortFrom(addr, port)
	return t
}
