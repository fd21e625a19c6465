package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/kubeapi"
	"github.com/switchyard-net/switchyard/test/topology"
)

// attack is what somebody does to a node who may do it.
type attack struct {
	name string
	// fields are the fields of the configuration that it needs.
	fields map[string]string
	// start begins it. Work that continues after that ends with the context, and is one of the tasks of the node. Nil
	// is no attack.
	start func(context.Context, *attackedNode) error
}

var attacks = []attack{
	{name: "baseline"},
	{name: "endpoint-is-itself-tcp", start: loop(state.TCP)},
	{name: "endpoint-is-itself-udp", start: loop(state.UDP)},
	{name: "budgets-full", start: fullBudgets},
	{name: "1000-ports-190-addresses", start: largeServices(1, 1000, 190)},
	{name: "5-of-those", start: largeServices(5, 1000, 190)},
	{name: "1000-ports-1000-ranges", start: longLists(1000, 1000)},
	{name: "20-ports-5000-endpoints", start: wideService(tenantService("wide", 2), 20, 5000, 5000, 300*time.Millisecond)},
	{name: "20-ports-5000-sticky-endpoints", start: wideService(attackService{namespace: "tenant", name: "wide", ip: nth4("10.96.4.0", 2), sticky: true}, 20, 5000, 5000, 300*time.Millisecond)},
	{name: "38-ports-1-endpoint-of-5000", start: wideService(tenantService("wide", 2), 38, 5000, 1, 100*time.Millisecond)},
	{name: "1-endpoint-of-190000", start: wideService(tenantService("wide", 2), 1, 190_000, 1, 100*time.Millisecond)},
	{name: "idle-connections", start: idle},
	{name: "least-connections", fields: map[string]string{"userspace": "{policy: LeastConnections}"}, start: leastConnections},
	{name: "full-buffers", start: fullBuffers},
	{name: "page", fields: map[string]string{"uiBindAddress": "127.0.0.1:10300"}, start: hammerPage},
}

// attackService is a Service with one kind of endpoint, whose ports begin with 80.
type attackService struct {
	namespace, name string
	ip              netip.Addr
	ports           int
	external        []netip.Addr
	sources         []netip.Addr    // that may connect through its load balancer; none is without one
	protocol        corev1.Protocol // TCP if it is empty
	sticky          bool            // it has session affinity
}

func (s *attackService) proto() corev1.Protocol {
	if s.protocol == "" {
		return corev1.ProtocolTCP
	}
	return s.protocol
}

func (s *attackService) object() *corev1.Service {
	o := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.ip.String(), ClusterIPs: []string{s.ip.String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		},
	}
	for i := range s.ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: s.proto(), Port: int32(80 + i), TargetPort: intstr.FromInt32(victimPort)})
	}
	if s.sticky {
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	for _, a := range s.external {
		o.Spec.ExternalIPs = append(o.Spec.ExternalIPs, a.String())
	}
	if len(s.sources) > 0 {
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "100.127.0.1"}}
	}
	for _, a := range s.sources {
		o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges, a.String()+"/32")
	}
	return o
}

// slices are the endpoints of the Service. Each endpoint serves all ports of the Service at one port. A slice has 100
// ports and 1,000 endpoints at most.
func (s *attackService) slices(endpoints []netip.Addr, port int32) (list []kubeapi.Object) {
	for p := 0; p < s.ports; p += 100 {
		for e := 0; e < len(endpoints); e += 1000 {
			slice := &discoveryv1.EndpointSlice{
				TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: s.namespace, Name: fmt.Sprintf("%s-%d-%d", s.name, p, e), Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
			}
			for i := p; i < min(p+100, s.ports); i++ {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Protocol: new(s.proto()), Port: new(port)})
			}
			for _, a := range endpoints[e:min(e+1000, len(endpoints))] {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: new("node")})
			}
			list = append(list, slice)
		}
	}
	return list
}

func (s *attackService) objects(endpoints []netip.Addr, port int32) []kubeapi.Object {
	return append([]kubeapi.Object{s.object()}, s.slices(endpoints, port)...)
}

// nth4 is the nth address after one.
func nth4(first string, n int) netip.Addr { return nth(netip.MustParsePrefix(first+"/32"), n) }

func addresses(first string, n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, nth4(first, i))
	}
	return list
}

func nodeObjects(l *topology.Lab) []kubeapi.Object {
	return []kubeapi.Object{&corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Spec:   corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: l.Node().Addrs[0].String()}}},
	}}
}

// repeat does something again and again until the attack ends.
func (n *attackedNode) repeat(ctx context.Context, every time.Duration, do func(i int)) {
	n.tasks.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			do(i)
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
}

// putEvery puts one and then the other version of objects, again and again.
func (n *attackedNode) putEvery(ctx context.Context, every time.Duration, versions ...[]kubeapi.Object) {
	n.repeat(ctx, every, func(i int) { _ = n.api.Put(versions[i%len(versions)]) }) // a version that was accepted once is accepted again
}

// dial opens connections of the attacker to its Service, one after the other, and returns those that were made. They stay open as long as the attack goes on.
func (n *attackedNode) dial(ctx context.Context, s *attackService, proto state.Protocol, count int, timeout time.Duration) (list []net.Conn) {
	for failed := 0; len(list) < count && failed < 20; {
		dialing, cancel := context.WithTimeout(ctx, timeout)
		conn, err := n.attacker.Dial(dialing, proto, netip.AddrPortFrom(s.ip, 80), netip.AddrPort{})
		cancel()
		if err != nil {
			failed++
			continue
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		list = append(list, conn)
	}
	return list
}

// await waits until a Service of the attacker answers.
func (n *attackedNode) await(ctx context.Context, s attackService) error {
	for range 100 {
		if n.connect(ctx, s, time.Second).Outcome == topology.Answered {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("the Service of the attacker is not served:\n%s", n.log())
}

func tenantService(name string, number int) attackService {
	return attackService{namespace: "tenant", name: name, ip: nth4("10.96.4.0", number), ports: 1}
}

// loop has a Service whose endpoint is itself, with one connection or datagram.
func loop(proto state.Protocol) func(context.Context, *attackedNode) error {
	return func(ctx context.Context, n *attackedNode) error {
		s := tenantService("loop", 1)
		if proto == state.UDP {
			s.protocol = corev1.ProtocolUDP
		}
		if err := n.api.Put(s.objects([]netip.Addr{s.ip}, 80)); err != nil {
			return err
		}
		time.Sleep(time.Second) // no other way to see that it is served than the attack itself
		for _, c := range n.dial(ctx, &s, proto, 1, 100*time.Millisecond) {
			if _, err := c.Write([]byte("x")); err != nil && proto == state.UDP {
				return err
			}
		}
		return nil
	}
}

// fullBudgets has as many namespaces and Services with as many entries as a node accepts.
func fullBudgets(_ context.Context, n *attackedNode) error {
	for i := range 20 {
		s := attackService{
			namespace: fmt.Sprint("tenant-", i/5), name: fmt.Sprint("large-", i), ip: nth4("10.96.4.0", 100+i), ports: 1000, external: addresses("100.64.0.0", 190*20)[190*i:][:190],
		}
		if err := n.api.Put(s.objects([]netip.Addr{n.attacker.Addrs[0]}, victimPort)); err != nil {
			return err
		}
	}
	return nil
}

// largeServices has Services with many ports at many addresses. All of them change.
func largeServices(services, ports, external int) func(context.Context, *attackedNode) error {
	return func(ctx context.Context, n *attackedNode) error {
		var versions [2][]kubeapi.Object
		for i := range services {
			s := tenantService(fmt.Sprint("large-", i), 10+i)
			s.ports = ports
			if err := n.api.Put(s.slices([]netip.Addr{n.attacker.Addrs[0]}, victimPort)); err != nil {
				return err
			}
			for v := range versions {
				s.external = addresses("100.64.0.0", 4096*external)[(2*i+v)*external:][:external]
				versions[v] = append(versions[v], s.object())
			}
		}
		n.putEvery(ctx, 300*time.Millisecond, versions[:]...)
		return nil
	}
}

// longLists has a Service with many ports. All ports have the same source ranges, and one range changes.
func longLists(ports, ranges int) func(context.Context, *attackedNode) error {
	return func(ctx context.Context, n *attackedNode) error {
		s := tenantService("lists", 6)
		s.ports = ports
		if err := n.api.Put(s.slices([]netip.Addr{n.attacker.Addrs[0]}, victimPort)); err != nil {
			return err
		}
		var versions [2][]kubeapi.Object
		for v := range versions {
			s.sources = addresses("100.64.0.0", ranges+1)[v:][:ranges]
			versions[v] = []kubeapi.Object{s.object()}
		}
		n.putEvery(ctx, 300*time.Millisecond, versions[:]...)
		return nil
	}
}

// wideService has a Service with many endpoints. Some of them change.
func wideService(s attackService, ports, endpoints, changed int, every time.Duration) func(context.Context, *attackedNode) error {
	return func(ctx context.Context, n *attackedNode) error {
		s.ports = ports
		all := addresses("10.128.0.0", endpoints+changed)
		if err := n.api.Put(s.objects(all[:endpoints], victimPort)); err != nil {
			return err
		}
		end := min((changed+999)/1000*1000, endpoints) // of the slices that change
		n.putEvery(ctx, every, s.slices(append(all[endpoints:len(all):len(all)], all[changed:end]...), victimPort), s.slices(all[:end], victimPort))
		return nil
	}
}

// idle opens more connections than a node relays, and leaves them.
func idle(ctx context.Context, n *attackedNode) error {
	s := tenantService("idle", 3)
	if err := n.api.Put(s.objects([]netip.Addr{n.attacker.Addrs[0]}, victimPort)); err != nil {
		return err
	}
	if err := n.await(ctx, s); err != nil {
		return err
	}
	n.dial(ctx, &s, state.TCP, 6000, time.Second)
	return nil
}

// leastConnections opens connections to a Service with very many endpoints, which do not answer.
func leastConnections(ctx context.Context, n *attackedNode) error {
	s := tenantService("wide", 2)
	if err := n.api.Put(s.objects(addresses("10.128.0.0", 190_000), victimPort)); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // until it is served, which nobody can see who gets no answer
	n.repeat(ctx, 20*time.Millisecond, func(int) {
		n.tasks.Go(func() { n.dial(ctx, &s, state.TCP, 1, 100*time.Millisecond) })
	})
	return nil
}

// fullBuffers sends as much as fits to a server that does not read.
func fullBuffers(ctx context.Context, n *attackedNode) error {
	s := tenantService("full", 4)
	const port = 7777
	var l net.Listener
	err := n.attacker.Do(func() (err error) { l, err = net.Listen("tcp4", fmt.Sprint(":", port)); return err })
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	n.tasks.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { conn.Close() })
		}
	})
	if err := n.api.Put(s.objects([]netip.Addr{n.attacker.Addrs[0]}, port)); err != nil {
		return err
	}
	time.Sleep(time.Second) // the server says nothing
	much := make([]byte, 32<<20)
	for _, c := range n.dial(ctx, &s, state.TCP, 100, time.Second) {
		n.tasks.Go(func() { _, _ = c.Write(much) }) // until it is closed
	}
	return nil
}

// hammerPage asks for the same large Service again and again.
func hammerPage(ctx context.Context, n *attackedNode) error {
	s := tenantService("large", 5)
	s.ports, s.external = 1000, addresses("100.64.0.0", 190)
	if err := n.api.Put(s.objects([]netip.Addr{n.attacker.Addrs[0]}, victimPort)); err != nil {
		return err
	}
	page := netip.MustParseAddrPort("127.0.0.1:10300")
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return n.Node().Dial(ctx, state.TCP, page, netip.AddrPort{})
	}}}
	url := "http://" + page.String() + "/api/services?" + strings.Repeat("key=tenant/large&", 99) + "key=tenant/large"
	for range 8 {
		n.repeat(ctx, time.Millisecond, func(int) {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return
			}
			if answer, err := client.Do(request); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
	return nil
}
