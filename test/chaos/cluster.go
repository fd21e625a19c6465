//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/topology"
)

// The services of the load.
var loaded = []serviceOf{
	{name: "web", number: 10, nodePort: 30080, lb: true},
	{name: "sticky", number: 20, nodePort: 30100, sticky: true},
	{name: "local", number: 30, nodePort: 30090, local: true},
}

// fadingService is there only while the cluster reports it.
var fadingService = serviceOf{name: "fading", number: 40}

// markService changes with each change of the cluster. It has NodePorts because another part of a proxy may serve them than cluster IPs.
// Its name makes it the last of its namespace. An update may be applied in parts, and once the mark is visible, all small changes before it
// are.
var markService = serviceOf{name: "zz-mark", number: 99, nodePort: 30999}

// markPorts is after how many changes the mark says the same again.
const markPorts = 16

// pod is one that serves.
type pod struct {
	*topology.Host
	node    string
	servers []*loadcheck.Server
}

// member is a pod as an endpoint of all services of the load.
type member struct {
	*pod
	// number decides in which slice the pod is.
	number      int
	terminating bool
	// gone reports that the pod is no endpoint, though it goes on serving. unready reports that it is one that is neither ready nor serving.
	gone, unready bool
}

// cluster is a small cluster in a lab. It has the objects, the state that the proxy has learned of them, and the oracle's view. One
// goroutine changes it.
type cluster struct {
	lab     *topology.Lab
	subject Subject
	rng     *rand.Rand
	ledger  loadcheck.Ledger
	// receipts are the receipts of the servers of all pods.
	receipts loadcheck.Receipts
	client   *pod // it is an endpoint too, so that some of its connections come back to itself
	plain    *pod // the control's server, on the other node
	decoy    *pod // an endpoint that is never ready
	marks    *topology.Host
	members  []member
	pods     int  // how many there ever were
	fading   bool // whether fadingService is there
	refusing bool // whether the service refusing is there
	// weights are the annotations of the slices of each service. Every slice has a part of the members. There is one slice without a weight if it is nil.
	weights []string
	// balances are the annotations of services, empty for none.
	balances map[string]string
	// slack is how long after the mark other services may change.
	slack time.Duration
	// answer is how long the mark may take to answer.
	answer time.Duration
	// rest is how long only one state counts after a change, at least.
	rest time.Duration
	// background is the number of other services, and generation what their endpoints are.
	background, generation int
	changes                int               // how many there were, for the mark
	sent                   map[string]string // what the proxy was sent, by kind and name
	// toldAt is when the proxy last got an update, and slowest the longest that it has taken to apply one.
	toldAt  time.Time
	slowest time.Duration
	// outage is the longest time in which no process carried connections, because one was killed.
	outage time.Duration
}

// newCluster fills a lab.
func newCluster(l *topology.Lab, seed uint64) (*cluster, error) {
	c := &cluster{lab: l, rng: rand.New(rand.NewPCG(seed, 0)), sent: map[string]string{}, balances: map[string]string{}}
	// Those that are replaced come first: a proxy may fall back on the first endpoint, which must not be one that stays for good.
	for i := range 6 {
		if err := c.addMember(i%2 == 1); err != nil {
			return nil, err
		}
	}
	var err error
	if c.client, err = c.addPod("client", false); err != nil {
		return nil, err
	}
	if c.plain, err = c.addPod("plain", true); err != nil {
		return nil, err
	}
	if c.decoy, err = c.addPod("decoy", false); err != nil {
		return nil, err
	}
	if c.marks, err = l.AddPod(topology.PodOptions{Name: "marks"}); err != nil {
		return nil, err
	}
	for i := range markPorts {
		if err := c.marks.Serve(state.TCP, netip.AddrPortFrom(netip.Addr{}, uint16(9000+i)), fmt.Sprint(i)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// addPod starts a pod that serves on each of its addresses.
func (c *cluster) addPod(name string, onOther bool) (*pod, error) {
	host, err := c.lab.AddPod(topology.PodOptions{Name: name, OtherNode: onOther})
	if err != nil {
		return nil, err
	}
	p := &pod{Host: host, node: c.lab.Node().Name}
	if onOther {
		p.node = c.lab.OtherNode().Name
	}
	for _, a := range host.Addrs {
		server, err := loadcheck.Serve(host, netip.AddrPortFrom(a, servedPort), &c.receipts)
		if err != nil {
			return nil, err
		}
		p.servers = append(p.servers, server)
	}
	return p, nil
}

// addMember starts a pod that is an endpoint of all services.
func (c *cluster) addMember(onOther bool) error {
	c.pods++
	p, err := c.addPod(fmt.Sprintf("pod-%d", c.pods), onOther)
	if err == nil {
		c.members = append(c.members, member{pod: p, number: c.pods})
	}
	return err
}

// remove ends a pod as a program ends that was asked to.
func (c *cluster) remove(p *pod) error {
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.lab.RemovePod(p.Name))...)
}

// objects returns the load's part of the cluster, the mark last.
func (c *cluster) objects() []Object {
	list := clusterObjects(c.lab)
	for i := range loaded {
		service := loaded[i].object()
		if value := c.balances[service.Name]; value != "" {
			service.Annotations = map[string]string{model.BalanceAnnotation: value}
		}
		list = append(list, service)
		for _, f := range []state.Family{state.IPv4, state.IPv6} {
			for part := range max(1, len(c.weights)) {
				list = append(list, c.slice(service.Name, f, part))
			}
		}
	}
	if c.refusing {
		list = append(list, c.marked(&refusing, 0)...)
	}
	if c.fading {
		list = append(list, c.marked(&fadingService, 0)...)
	}
	return append(list, c.marked(&markService, c.changes%markPorts)...)
}

// marked returns a service whose endpoint says a number.
func (c *cluster) marked(service *serviceOf, number int) []Object {
	list := []Object{service.object()}
	for _, a := range c.marks.Addrs {
		slice := newSlice(service.name, state.FamilyOf(a), int32(9000+number))
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{a.String()}, NodeName: new(c.lab.Node().Name)}}
		list = append(list, slice)
	}
	return list
}

// slice lists the members of a part as endpoints.
func (c *cluster) slice(service string, f state.Family, part int) *discoveryv1.EndpointSlice {
	slice := newSlice(service, f, servedPort)
	if part > 0 {
		slice.Name += fmt.Sprint("-", part)
	}
	if len(c.weights) > 0 && c.weights[part] != "" {
		slice.Annotations = map[string]string{model.WeightAnnotation: c.weights[part]}
	}
	for _, m := range append([]member{{pod: c.client}, {pod: c.decoy, unready: true}}, c.members...) {
		for _, a := range m.Addrs {
			if state.FamilyOf(a) == f && !m.gone && m.number%max(1, len(c.weights)) == part {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{a.String()}, NodeName: new(m.node), Conditions: discoveryv1.EndpointConditions{
						Ready: new(!m.terminating && !m.unready), Serving: new(!m.unready), Terminating: new(m.terminating),
					},
				})
			}
		}
	}
	return slice
}

// world is what the oracle sees.
func (c *cluster) world() (*oracle.World, error) {
	w := &oracle.World{
		NodeName: c.lab.Node().Name, DetectLocal: true,
		NodePortAddrs: func(a netip.Addr) bool { return slices.Contains(c.lab.Node().Addrs, a) },
	}
	for _, object := range c.objects() {
		o, _, err := kubeconv.Object(object)
		if err != nil {
			return nil, fmt.Errorf("%T %s: %w", object, object.GetName(), err)
		}
		switch o := o.(type) {
		case *model.Service:
			w.Services = append(w.Services, o)
		case *model.EndpointSlice:
			w.Slices = append(w.Slices, o)
		case *model.Node:
			w.Nodes = append(w.Nodes, o)
		case *model.ServiceCIDR:
			w.ServiceCIDRs = append(w.ServiceCIDRs, o)
		}
	}
	return w, nil
}

// sendState hands the current cluster to the proxy, without waiting. Until [cluster.settle], connections may follow the previous or the
// current state.
func (c *cluster) sendState() error {
	c.changes++
	w, err := c.world()
	if err != nil {
		return err
	}
	c.ledger.Change(w)
	c.toldAt = time.Now()
	var changed []Object
	for _, o := range slices.Concat(backgroundObjects(c.background, c.generation), c.objects()) {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		key := fmt.Sprintf("%T %s", o, o.GetName())
		if c.sent[key] != string(text) {
			c.sent[key] = string(text)
			changed = append(changed, o)
		}
	}
	return c.subject.Put(changed)
}

// changeTimeout is how long is waited for a change.
const changeTimeout = 2 * time.Minute

// settle waits until the proxy has applied its last update, and rests.
func (c *cluster) settle(ctx context.Context) error {
	want := fmt.Sprint(c.changes % markPorts)
	began := time.Now()
	var marks []netip.AddrPort
	for i, vip := range markService.clusterIPs() { // each family, since proxies may take them over one after the other
		marks = append(marks, netip.AddrPortFrom(vip, tcpPort), netip.AddrPortFrom(c.lab.Node().Addrs[i], uint16(markService.nodePort)))
	}
	for _, mark := range marks {
		for !c.shows(ctx, mark, want) {
			if err := errors.Join(ctx.Err(), c.subject.Failure()); err != nil {
				return err
			}
			if time.Since(began) > changeTimeout {
				err := fmt.Errorf("change %d has not arrived after %v", c.changes, changeTimeout)
				if ours, ok := c.subject.(*switchyard); ok {
					err = errors.Join(err, tail(ours.log))
				}
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	if ours, ok := c.subject.(*switchyard); ok {
		if err := ours.awaitRelay(ctx); err != nil {
			return err
		}
		without, err := ours.serves()
		if err != nil {
			return err
		}
		c.outage = max(c.outage, without)
	}
	if err := pause(ctx, c.slack); err != nil {
		return err
	}
	c.ledger.Acked()
	c.slowest = max(c.slowest, time.Since(c.toldAt))
	return pause(ctx, c.rest)
}

// shows reports whether the mark has the wanted value.
func (c *cluster) shows(ctx context.Context, mark netip.AddrPort, want string) bool {
	answer := c.client.Probe(ctx, state.TCP, mark, topology.ProbeOptions{Timeout: c.answer})
	return answer.Outcome == topology.Answered && answer.Server == want
}

// change sends the state to the proxy and waits.
func (c *cluster) change(ctx context.Context) error {
	if err := c.sendState(); err != nil {
		return err
	}
	return c.settle(ctx)
}

// shuffle lets random members terminate or be no endpoints at all, and the others be ready, so that two are ready on each node.
func (c *cluster) shuffle() {
	c.generation++
	ready := map[string]int{}
	for _, i := range c.rng.Perm(len(c.members)) {
		m := &c.members[i]
		m.terminating, m.gone = false, false
		if ready[m.node] < 2 {
			ready[m.node]++
			continue
		}
		switch c.rng.IntN(3) {
		case 0:
			m.terminating = true
		case 1:
			m.gone = true
		}
	}
}

// explain describes what may have led a connection to the wrong server. These are the latest changes, and the node's tracked connections
// from the same address and port. If an entry is older than the connection, the connection went where an earlier one went, and no rule was
// evaluated.
func (c *cluster) explain(proto state.Protocol, from netip.AddrPort) string {
	lines, err := c.lab.Node().Tracked(proto, from)
	if err != nil {
		lines = append(lines, err.Error())
	}
	if len(lines) == 0 {
		lines = append(lines, "no entry")
	}
	return "\n      " + strings.Join(append([]string{c.ledger.Changes()}, lines...), "\n      tracked by the node: ")
}
