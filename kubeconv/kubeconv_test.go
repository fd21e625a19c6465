package kubeconv

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

var compareNetip = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

var addrs, prefixes = recordtest.Addrs, recordtest.Prefixes

func meta(labels ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "shop", Name: "web"}
	for i := 0; i+1 < len(labels); i += 2 {
		metav1.SetMetaDataLabel(&m, labels[i], labels[i+1])
	}
	return m
}

var (
	name  = state.ServiceName{Namespace: "shop", Name: "web"}
	local = corev1.ServiceInternalTrafficPolicyLocal
)

// TestObject checks what every field becomes, and the defaults of those that are absent.
func TestObject(t *testing.T) {
	proxyMode, vip := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	for title, c := range map[string]struct {
		in   any
		want model.Object
	}{
		"service, bare": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
			&model.Service{Name: name, Ports: []model.ServicePort{{Port: 80, Protocol: state.TCP}}},
		},
		"service, full": {
			&corev1.Service{
				ObjectMeta: meta("service.kubernetes.io/service-proxy-name", ""),
				Spec: corev1.ServiceSpec{
					Type: "LoadBalancer", ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
					ExternalIPs:              []string{"192.0.2.010", "::ffff:192.0.2.2"},
					LoadBalancerSourceRanges: []string{" 10.1.2.3/8 ", "010.0.0.0/08", "fd00::/8", "::ffff:10.0.0.0/104"},
					InternalTrafficPolicy:    &local, ExternalTrafficPolicy: "Local", HealthCheckNodePort: 30000,
					SessionAffinity: "ClientIP",
					Ports: []corev1.ServicePort{
						{Name: "a", Port: 65535, NodePort: 30001, Protocol: "UDP"}, {Name: "b", Port: 1, Protocol: "SCTP"},
					},
				},
				Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
					{IP: "198.51.100.1"}, {IP: "198.51.100.2", IPMode: &vip}, {IP: "198.51.100.3", IPMode: &proxyMode},
					{Hostname: "lb.example"},
				}}},
			},
			&model.Service{
				Name: name, HasProxyName: true, Type: model.TypeLoadBalancer,
				ClusterIPs: addrs("10.0.0.1", "fd00::1"), ExternalIPs: addrs("192.0.2.10", "192.0.2.2"),
				LoadBalancerIPs: addrs("198.51.100.1", "198.51.100.2"),
				SourceRanges:    prefixes("10.0.0.0/8", "10.0.0.0/8", "fd00::/8", "10.0.0.0/8"),
				InternalLocal:   true, ExternalLocal: true, HealthCheckNodePort: 30000, Affinity: 3 * time.Hour,
				Ports: []model.ServicePort{
					{Name: "a", Port: 65535, NodePort: 30001, Protocol: state.UDP}, {Name: "b", Port: 1, Protocol: state.SCTP},
				},
			},
		},
		"service, clusterIP only": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", SessionAffinity: "ClientIP",
				SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(5))}}}},
			&model.Service{Name: name, ClusterIPs: addrs("10.0.0.1"), Affinity: 5 * time.Second},
		},
		"service, headless": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ClusterIPs: []string{"None"}}},
			&model.Service{Name: name, Headless: true},
		},
		"service, headless by clusterIP": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ClusterIP: "None", SessionAffinityConfig: &corev1.SessionAffinityConfig{}}},
			&model.Service{Name: name, Headless: true},
		},
		"slice": {
			&discoveryv1.EndpointSlice{
				ObjectMeta: meta("kubernetes.io/service-name", "svc", "service.kubernetes.io/headless", "", "service.kubernetes.io/service-proxy-name", "mesh"), AddressType: "IPv4",
				Ports: []discoveryv1.EndpointPort{
					{}, {Name: new("nil")}, {Port: new(int32(7))}, {Name: new("zero"), Port: new(int32(0))},
					{Name: new(""), Port: new(int32(8080))},
					{Name: new("dns"), Port: new(int32(53)), Protocol: new(corev1.ProtocolUDP)},
				},
				Endpoints: []discoveryv1.Endpoint{
					{Addresses: []string{"10.1.0.01", "not looked at"}, TargetRef: pod("Pod", "shop", "web-0")},
					{
						Addresses: []string{"::ffff:10.1.0.2"}, NodeName: new("n1"), Zone: new("z1"), TargetRef: pod("Pod", "shop", "web-1"),
						Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)},
						Hints: &discoveryv1.EndpointHints{
							ForZones: []discoveryv1.ForZone{{Name: "z1"}, {Name: "z2"}}, ForNodes: []discoveryv1.ForNode{{Name: "n2"}},
						},
					},
				},
			},
			&model.EndpointSlice{
				Namespace: "shop", Name: "web", Service: "svc", ProxyName: "mesh", HasProxyName: true, Headless: true, Family: state.IPv4,
				Ports: []model.EndpointPort{
					{Name: "", Port: 8080, Protocol: state.TCP}, {Name: "dns", Port: 53, Protocol: state.UDP},
				},
				Endpoints: []model.Endpoint{
					{Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true},
					{
						Addr: netip.MustParseAddr("10.1.0.2"), Terminating: true, NodeName: "n1", Zone: "z1",
						ZoneHints: []string{"z1", "z2"}, NodeHints: []string{"n2"},
					},
				},
				Pods: model.PackPods("", []string{"web-0", "web-1"}),
			},
		},
		"slice, FQDN": {
			&discoveryv1.EndpointSlice{ObjectMeta: meta(), AddressType: "FQDN", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"a.example"}}}},
			&model.EndpointSlice{Namespace: "shop", Name: "web"},
		},
		"node": {
			&corev1.Node{
				ObjectMeta: meta("topology.kubernetes.io/zone", "z1"),
				Spec:       corev1.NodeSpec{PodCIDR: "10.2.0.0/24", PodCIDRs: []string{"10.2.0.0/24", "fd02::/64"}},
				Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
					{Type: "ExternalIP", Address: "203.0.113.1"}, {Type: "Hostname", Address: "203.0.113.9"},
					{Type: "InternalIP", Address: "192.168.0.1"}, {Type: "InternalIP", Address: "not an address"},
					{Type: "InternalIP", Address: "fd00::1"},
				}},
			},
			&model.Node{
				Name: "web", Zone: "z1", Addresses: addrs("192.168.0.1", "fd00::1", "203.0.113.1"), Internal: 2,
				PodCIDRs: prefixes("10.2.0.0/24", "fd02::/64"),
			},
		},
		"node, podCIDR only": {
			&corev1.Node{ObjectMeta: meta(), Spec: corev1.NodeSpec{PodCIDR: "10.2.0.1/24"}},
			&model.Node{Name: "web", PodCIDRs: prefixes("10.2.0.0/24")},
		},
		"namespace":      {&corev1.Namespace{ObjectMeta: meta("networking.k8s.io/kube-proxy", "disabled")}, &model.Namespace{Name: "web", ProxyDisabled: true}},
		"namespace, no":  {&corev1.Namespace{ObjectMeta: meta("networking.k8s.io/kube-proxy", "")}, &model.Namespace{Name: "web"}},
		"service CIDR":   {&networkingv1.ServiceCIDR{ObjectMeta: meta(), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}, &model.ServiceCIDR{Name: "web", CIDRs: prefixes("10.96.0.0/12")}},
		"something else": {&corev1.Pod{}, nil},
		"nothing":        {nil, nil},
	} {
		got, ok, err := Object(c.in)
		if err != nil || ok != (c.want != nil) {
			t.Errorf("%s: ok %v, error %v", title, ok, err)
		}
		if diff := cmp.Diff(c.want, got, compareNetip); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", title, diff)
		}
	}
}

// TestFaults checks that all faults of an object are named at once.
func TestFaults(t *testing.T) {
	for title, c := range map[string]struct {
		in   any
		want string
	}{
		"service": {
			&corev1.Service{
				Spec: corev1.ServiceSpec{
					Type: "clusterip", ClusterIPs: []string{"10.0.0.256", "fe80::1%eth0"}, ExternalIPs: []string{""},
					LoadBalancerSourceRanges: []string{"10.0.0.0", "10.0.0.0/33", "::ffff:0:0/90"},
					ExternalTrafficPolicy:    "local", InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicy("x")),
					HealthCheckNodePort: -1, SessionAffinity: "ClientIP",
					SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(86401))}},
					Ports:                 []corev1.ServicePort{{Protocol: "tcp", NodePort: 65536}, {Port: 70000}},
				},
				Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "x"}}}},
			}, `
metadata.name: is missing
spec.type: must be ClusterIP, NodePort, LoadBalancer or ExternalName, got "clusterip"
spec.externalIPs[0]: must be an IP address, got ""
spec.loadBalancerSourceRanges[0]: must be a CIDR such as 10.0.0.0/8 or fd00::/8, got "10.0.0.0"
spec.loadBalancerSourceRanges[1]: must be a CIDR such as 10.0.0.0/8 or fd00::/8, got "10.0.0.0/33"
spec.loadBalancerSourceRanges[2]: must be a CIDR such as 10.0.0.0/8 or fd00::/8, got "::ffff:0:0/90"
spec.healthCheckNodePort: must be a number from 1 to 65535 or absent, got -1
spec.externalTrafficPolicy: must be Cluster or Local, got "local"
spec.sessionAffinityConfig.clientIP.timeoutSeconds: must be a number from 1 to 86400, got 86401
spec.internalTrafficPolicy: must be Cluster or Local, got "x"
spec.clusterIPs[0]: must be an IP address, got "10.0.0.256"
spec.clusterIPs[1]: must be an IP address, got "fe80::1%eth0"
spec.ports[0].protocol: must be TCP, UDP or SCTP, got "tcp"
spec.ports[0].port: must be a number from 1 to 65535, got 0
spec.ports[0].nodePort: must be a number from 1 to 65535 or absent, got 65536
spec.ports[1].port: must be a number from 1 to 65535, got 70000
status.loadBalancer.ingress[0].ip: must be an IP address, got "x"`,
		},
		"special externalIPs": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{
				ExternalIPs: []string{"0.0.0.0", "::1", "192.0.2.1", "169.254.169.254", "ff02::5", "239.1.1.1"},
			}}, `
spec.externalIPs[0]: must not be unspecified, got "0.0.0.0"
spec.externalIPs[1]: must not be a loopback address, got "::1"
spec.externalIPs[3]: must not be a link-local address, got "169.254.169.254"
spec.externalIPs[4]: must not be a multicast address, got "ff02::5"`,
		},
		"special endpoints": {
			&discoveryv1.EndpointSlice{ObjectMeta: meta(), AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"127.0.0.1"}}, {Addresses: []string{"::ffff:0.0.0.0"}},
				{Addresses: []string{"169.254.0.1"}}, {Addresses: []string{"224.0.0.1"}}, {Addresses: []string{"224.0.1.1"}},
				{Addresses: []string{"255.255.255.255"}}, {Addresses: []string{"240.0.0.1"}}, // left to brain, like multicast beyond a link
			}}, `
endpoints[1].addresses[0]: must not be a loopback address, got "127.0.0.1"
endpoints[2].addresses[0]: must not be unspecified, got "::ffff:0.0.0.0"
endpoints[3].addresses[0]: must not be a link-local address, got "169.254.0.1"
endpoints[4].addresses[0]: must not be a multicast address, got "224.0.0.1"`,
		},
		"two cluster IPs": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", ClusterIPs: []string{"None"}, SessionAffinity: "x"}}, `
spec.sessionAffinity: must be ClientIP or None, got "x"
spec.clusterIPs[0]: must be the same as spec.clusterIP, "10.0.0.1", got "None"`,
		},
		"clusterIP": {
			&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ClusterIP: "none"}}, `
spec.clusterIP: must be an IP address, got "none"`,
		},
		"slice": {
			&discoveryv1.EndpointSlice{
				ObjectMeta: meta(), AddressType: "IPv6",
				Ports:     []discoveryv1.EndpointPort{{Port: new(int32(-1))}, {Protocol: new(corev1.Protocol("x"))}},
				Endpoints: []discoveryv1.Endpoint{{}, {Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"a.example"}}},
			}, `
ports[0].port: must be a number from 1 to 65535 or absent, got -1
ports[1].protocol: must be TCP, UDP or SCTP, got "x"
endpoints[0].addresses: must hold an address
endpoints[1].addresses[0]: must be an IPv6 address, to match addressType, got "10.0.0.1"
endpoints[2].addresses[0]: must be an IPv6 address, to match addressType, got "a.example"`,
		},
		"slice without type": {&discoveryv1.EndpointSlice{ObjectMeta: meta()}, "\n" + `addressType: must be IPv4, IPv6 or FQDN, got ""`},
		"node": {&corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "x"}}, `
metadata.name: is missing
spec.podCIDR: must be a CIDR such as 10.0.0.0/8 or fd00::/8, got "x"`},
		"namespace":    {&corev1.Namespace{}, "\nmetadata.name: is missing"},
		"service CIDR": {&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"x"}}}, "\nmetadata.name: is missing\nspec.cidrs[0]: must be a CIDR such as 10.0.0.0/8 or fd00::/8, got \"x\""},
		"nil service":  {(*corev1.Service)(nil), "\nthere is no object (nil)"},
		"nil slice":    {(*discoveryv1.EndpointSlice)(nil), "\nthere is no object (nil)"},
		"nil node":     {(*corev1.Node)(nil), "\nthere is no object (nil)"},
		"nil ns":       {(*corev1.Namespace)(nil), "\nthere is no object (nil)"},
		"nil CIDR":     {(*networkingv1.ServiceCIDR)(nil), "\nthere is no object (nil)"},
	} {
		got, ok, err := Object(c.in)
		if got != nil || !ok {
			t.Errorf("%s: got %v, %v", title, got, ok)
		}
		if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), fmt.Sprint(err)); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", title, diff)
		}
	}
}

// FuzzService checks that no text instead of an address or word causes faults elsewhere, and that the result is valid
// in form.
func FuzzService(f *testing.F) {
	f.Add("10.0.0.1", "10.0.0.0/8", "TCP", "Local", int32(80))
	f.Add("::ffff:010.0.0.1", "::ffff:10.0.0.0/96", "udp", "", int32(-1))
	f.Add("fe80::1%eth0", "1.2.3.4/033", "", "ClientIP", int32(65536))
	f.Fuzz(func(t *testing.T, ip, cidr, protocol, word string, number int32) {
		s := &corev1.Service{ObjectMeta: meta("service.kubernetes.io/service-proxy-name", word)}
		s.Spec = corev1.ServiceSpec{
			ClusterIPs: []string{ip, word}, ExternalIPs: []string{ip}, LoadBalancerSourceRanges: []string{cidr},
			Type: corev1.ServiceType(word), SessionAffinity: corev1.ServiceAffinity(word),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicy(word),
			Ports:                 []corev1.ServicePort{{Port: number, NodePort: number, Protocol: corev1.Protocol(protocol)}},
		}
		if m, err := Service(s); err == nil {
			checkForm(t, append(m.ClusterIPs, m.ExternalIPs...), m.SourceRanges)
		}
		s.Spec = corev1.ServiceSpec{ClusterIP: ip, LoadBalancerSourceRanges: []string{cidr}}
		if m, err := Service(s); err == nil {
			checkForm(t, m.ClusterIPs, m.SourceRanges)
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: meta(), AddressType: discoveryv1.AddressType(word),
			Ports:     []discoveryv1.EndpointPort{{Port: &number, Name: &word, Protocol: (*corev1.Protocol)(&protocol)}, {}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, Hints: &discoveryv1.EndpointHints{}}},
		}
		for _, slice.AddressType = range []discoveryv1.AddressType{"IPv4", "IPv6", "FQDN", discoveryv1.AddressType(word)} {
			m, err := EndpointSlice(slice)
			if err != nil {
				continue
			}
			for _, e := range m.Endpoints {
				checkForm(t, []netip.Addr{e.Addr}, nil)
				if state.FamilyOf(e.Addr) != m.Family {
					t.Errorf("%v in a slice of %v", e.Addr, m.Family)
				}
			}
		}
	})
}

func checkForm(t *testing.T, addrs []netip.Addr, prefixes []netip.Prefix) {
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			t.Errorf("address %v", a)
		}
	}
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() {
			t.Errorf("prefix %v", p)
		}
	}
}

// TestCreated: the decoders of k8s.io/api convert times into the local time zone. Equal times must still be equal
// values, because objects are compared as values.
func TestCreated(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for title, in := range map[string]metav1.Time{
		"UTC":        metav1.NewTime(at),
		"local":      metav1.NewTime(at.In(time.FixedZone("here", 3600))),
		"subseconds": metav1.NewTime(at.Add(time.Millisecond)),
	} {
		m := meta()
		m.CreationTimestamp = in
		s, err := Service(&corev1.Service{ObjectMeta: m})
		if err != nil || s.Created != at {
			t.Errorf("%s: created %#v, %v, want %#v", title, s.Created, err, at)
		}
	}
}

func pod(kind, namespace, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}
}

// TestPods: only a Pod in the slice's namespace, by a name that a Pod can have, is the pod of an endpoint. No reference is a fault.
func TestPods(t *testing.T) {
	refs := []*corev1.ObjectReference{
		nil, pod("Pod", "ns", "web-0"), pod("Node", "ns", "web-1"), pod("", "ns", "web-2"), pod("Pod", "other", "web-3"), pod("Pod", "", "web-4"),
		pod("Pod", "ns", ""), pod("Pod", "ns", strings.Repeat("x", 254)), pod("Pod", "ns", "\x1b[2J"), pod("Pod", "ns", "web-5"),
	}
	in := &discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
	for i, ref := range refs {
		in.Endpoints = append(in.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}, TargetRef: ref})
	}
	s, err := EndpointSlice(in)
	if err != nil {
		t.Fatal(err)
	}
	for i := range refs {
		if got, want := s.Pods.At(i), map[int]string{1: "web-0", 9: "web-5"}[i]; got != want {
			t.Errorf("%+v: the pod is %q, want %q", refs[i], got, want)
		}
	}
	in.Endpoints = in.Endpoints[2:9]
	if s, err := EndpointSlice(in); err != nil || s.Pods != "" {
		t.Errorf("a slice without pods has %q, %v", s.Pods, err)
	}
}

// TestAnnotations: a value is kept as it stands, and of a long one the beginning. None is a fault of the object.
func TestAnnotations(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "70": "70", "hash": "hash", "70%": "70%", strings.Repeat("7", 300): strings.Repeat("7", 253) + "…", strings.Repeat("\u00e9", 200): strings.Repeat("\u00e9", 126) + "…", "\xff": "",
	} {
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "s",
			Annotations: map[string]string{"switchyard.net/weight": value, "other/weight": "1", "switchyard.net/balance": value, "other/balance": "hash"}}
		if s, err := EndpointSlice(&discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: meta}); err != nil || s.Weight != want || s.CiliumWeight {
			t.Errorf("%q: got %+v, %v", value, s, err)
		}
		if s, err := Service(&corev1.Service{ObjectMeta: meta}); err != nil || s.Annotation(model.BalanceAnnotation) != want {
			t.Errorf("%q: got %+v, %v", value, s, err)
		}
	}
}

// TestForeignAnnotations: annotations of other projects are kept under their names. Of two weights, the product's own one is.
func TestForeignAnnotations(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "s", Annotations: map[string]string{
		"service.cilium.io/weight": "70", "service.cilium.io/lb-algorithm": "maglev", "service.cilium.io/type": "x", "loxilb.io/epselect": "", "kube-router.io/service.schedflags": "flag-2",
		"lb.projectcalico.org/external-traffic-strategy": "maglev", "kube-router.io/service.scheduler": strings.Repeat("m", 300),
	}}
	svc, err := Service(&corev1.Service{ObjectMeta: meta})
	if want := (model.Annotation{Name: "kube-router.io/service.scheduler", Value: strings.Repeat("m", 253) + "…"}); err != nil || len(svc.Annotations) != 4 || svc.Annotations[1] != want {
		t.Errorf("got %+v, %v", svc, err)
	}
	if !slices.IsSortedFunc(model.ServiceAnnotations[:], strings.Compare) {
		t.Errorf("%q are not sorted", model.ServiceAnnotations)
	}
	for own, want := range map[string]string{"": "70", "5": "5", "bad": "bad"} {
		meta.Annotations[model.WeightAnnotation] = own
		s, err := EndpointSlice(&discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: meta})
		if err != nil || s.Weight != want || s.CiliumWeight != (own == "") || meta.Annotations[s.WeightName()] != want {
			t.Errorf("%q: got %+v, %v", own, s, err)
		}
	}
}

// TestLongAnnotation: a list of ranges may be longer than other values. What is longer still is cut, and valid for nothing then.
func TestLongAnnotation(t *testing.T) {
	most := model.AnnotationBytes(model.PortRangesAnnotation)
	for n, want := range map[int]int{300: 300, most: most, most + 1: most, 1 << 20: most} {
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", Annotations: map[string]string{model.PortRangesAnnotation: strings.Repeat("a", n)}}}
		s, err := Service(o)
		if err != nil {
			t.Fatal(err)
		}
		if v := s.Annotation(model.PortRangesAnnotation); len(v) != want || strings.HasSuffix(v, "…") != (n > most) {
			t.Errorf("of %d bytes %d are kept, want %d", n, len(v), want)
		}
	}
}
