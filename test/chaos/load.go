//go:build linux

package chaos

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// route is a way into a service: who connects to which kind of its addresses.
type route struct {
	service *serviceOf
	kind    string
	client  probe.Client
}

var routes = []route{
	{&loaded[0], "cluster IP", probe.FromPod},
	{&loaded[0], "cluster IP", probe.FromNode},
	{&loaded[0], "NodePort", probe.FromOutside},
	{&loaded[0], "NodePort", probe.FromPod},
	{&loaded[0], "load balancer IP", probe.FromOutside},
	{&loaded[0], "load balancer IP", probe.FromNode},
	{&loaded[1], "cluster IP", probe.FromPod},
	{&loaded[1], "NodePort", probe.FromOutside},
	{&loaded[2], "NodePort", probe.FromOutside},
}

// flowsPerStream is the number of open connections of a stream. There are about as many requests on them as there are new connections.
const flowsPerStream = 4

// cutNoticed is how long it takes to answer on a flow that was left uncut, at most.
const cutNoticed = 500 * time.Millisecond

// streams is how many there are through the proxy, each with as many new connections.
var streams = len(routes) * 4

// newEvery is the time between two new connections of a stream, and flowPause that between two requests on an open one.
func newEvery(perSecond int) time.Duration {
	return time.Second * time.Duration(streams) / time.Duration(perSecond)
}

func flowPause(perSecond int) time.Duration { return flowsPerStream * newEvery(perSecond) * 4 / 3 }

// startLoad starts a load with so many new connections a second in total, and with requests on open connections. o has the rest of its
// settings. It also starts a control, whose packets never reach the node with the proxy. The control connects from outside and from the
// other node to a pod on the other node.
func (c *cluster) startLoad(perSecond int, o loadcheck.Options) *loadcheck.Counter {
	hosts := map[probe.Client]*topology.Host{probe.FromPod: c.client.Host, probe.FromNode: c.lab.Node(), probe.FromOutside: c.lab.Client()}
	for family := range 2 {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			add := func(s loadcheck.Stream) {
				s.Every, s.Flows, s.Pause = newEvery(perSecond), flowsPerStream, flowPause(perSecond)
				o.Streams = append(o.Streams, s)
			}
			for i := range routes {
				r := &routes[i]
				add(loadcheck.Stream{
					From: hosts[r.client], Client: r.client, Target: r.target(c.lab, proto, family), Judge: &c.ledger, Sticky: r.service.sticky,
				})
			}
			for _, host := range []*topology.Host{c.lab.Client(), c.lab.OtherNode()} {
				plain := loadcheck.Target{Name: "plain pod", Protocol: proto, Addr: netip.AddrPortFrom(c.plain.Addrs[family], servedPort)}
				add(loadcheck.Stream{From: host, Target: plain, Judge: loadcheck.Plainly{}, Control: true})
			}
		}
	}
	return loadcheck.Start(o)
}

func (r *route) target(l *topology.Lab, proto state.Protocol, family int) loadcheck.Target {
	t := loadcheck.Target{
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
