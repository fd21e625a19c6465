package brain_test

// Each test here is one rule of Kubernetes, named with the place in kube-proxy (k8s.io/kubernetes) where it is.

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// pkg/proxy/util, ShouldSkipService; the Service informer's label selector.
func TestWhichServicesAreRouted(t *testing.T) {
	for _, c := range []struct {
		name     string
		instance string
		change   func(*model.Service)
		want     bool
	}{
		{"ordinary", "", func(*model.Service) {}, true},
		{"headless", "", func(s *model.Service) { s.Headless = true }, false},
		{"ExternalName", "", func(s *model.Service) { s.Type = model.TypeExternalName }, false},
		{"no cluster IP", "", func(s *model.Service) { s.ClusterIPs, s.ExternalIPs = nil, addrs("192.0.2.1") }, false},
		{"no port", "", func(s *model.Service) { s.Ports = nil }, false},
		{"of another instance", "", func(s *model.Service) { s.HasProxyName, s.ProxyName = true, "x" }, false},
		{"opted out by an empty label", "", func(s *model.Service) { s.HasProxyName = true }, false},
		{"of this instance", "x", func(s *model.Service) { s.HasProxyName, s.ProxyName = true, "x" }, true},
		{"of another named instance", "x", func(s *model.Service) { s.HasProxyName, s.ProxyName = true, "y" }, false},
		{"without label, for a named instance", "x", func(*model.Service) {}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, svc := config(), service()
			cfg.ServiceProxyName = c.instance
			c.change(svc)
			rec := compute(t, cfg, thisNode(), svc)
			if got := rec != nil; got != c.want {
				t.Fatalf("routed = %v, want %v", got, c.want)
			}
			if rec != nil && rec.Name != svc.Name {
				t.Errorf("name %v", rec.Name)
			}
		})
	}
	if rec := compute(t, config(), nil, nil); rec != nil {
		t.Errorf("a nil service is routed: %+v", rec)
	}
}

// pkg/proxy/topology.go, CategorizeEndpoints and topologyModeFromHints. Each case is checked for both policies: the
// routes of internalTrafficPolicy Cluster and Local.
func TestWhichEndpoints(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []string
		cluster   string
		local     string
	}{
		{
			"none", nil,
			"Reject", "Reject",
		},
		{
			"ready ones, in order", []string{"10.1.0.2", "10.1.0.1 here", "10.1.0.3 notready", "10.1.0.4 dying here"},
			"Forward 10.1.0.1:8080* 10.1.0.2:8080", "Forward 10.1.0.1:8080*",
		},
		{
			// pkg/apis/core/validation, ValidateNonSpecialIP. Pods in the node's network have its address.
			"special addresses, and the node's", []string{"0.0.0.0", "127.0.0.1 here", "169.254.169.254", "224.1.2.3 here", "255.255.255.255 here", "172.16.0.1 here"},
			"Forward 172.16.0.1:8080*", "Forward 172.16.0.1:8080*",
		},
		{
			"none local", []string{"10.1.0.1"},
			"Forward 10.1.0.1:8080", "Drop",
		},
		{
			"none ready", []string{"10.1.0.1 notready here"},
			"Reject", "Reject",
		},
		{
			"ready while terminating is ready", []string{"10.1.0.1 published here", "10.1.0.2 dying here"},
			"Forward 10.1.0.1:8080*", "Forward 10.1.0.1:8080*",
		},
		{
			"serving and terminating ones if none is ready", []string{"10.1.0.1 dying here", "10.1.0.2 dying", "10.1.0.3 dead here"},
			"Forward 10.1.0.1:8080* 10.1.0.2:8080", "Forward 10.1.0.1:8080*",
		},
		{
			"the fallback is independent for Local", []string{"10.1.0.1 dying here", "10.1.0.2"},
			"Forward 10.1.0.2:8080", "Forward 10.1.0.1:8080*",
		},
		{
			"terminating ones elsewhere are endpoints", []string{"10.1.0.1 dying"},
			"Forward 10.1.0.1:8080", "Drop",
		},
		{
			"dead ones are none", []string{"10.1.0.1 dead", "10.1.0.2 dead here"},
			"Reject", "Reject",
		},
		{
			"zone hints, never for Local", []string{"10.1.0.1 zones=a", "10.1.0.2 zones=b,a", "10.1.0.3 zones=b here"},
			"Forward 10.1.0.1:8080 10.1.0.2:8080", "Forward 10.1.0.3:8080*",
		},
		{
			"zone hints missing on one", []string{"10.1.0.1 zones=a", "10.1.0.2"},
			"Forward 10.1.0.1:8080 10.1.0.2:8080", "Drop",
		},
		{
			"zone hints missing on one that is not ready", []string{"10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 dying"},
			"Forward 10.1.0.1:8080", "Drop",
		},
		{
			"zone hints for other zones only", []string{"10.1.0.1 zones=b", "10.1.0.2 zones=c"},
			"Forward 10.1.0.1:8080 10.1.0.2:8080", "Drop",
		},
		{
			"zone hints for here on one that is not ready", []string{"10.1.0.1 zones=b", "10.1.0.2 zones=a notready"},
			"Forward 10.1.0.1:8080", "Drop",
		},
		{
			"hints never for the fallback", []string{"10.1.0.1 zones=a nodes=node1 dying", "10.1.0.2 zones=b nodes=node2 dying"},
			"Forward 10.1.0.1:8080 10.1.0.2:8080", "Drop",
		},
		{
			"node hints before zone hints", []string{"10.1.0.1 zones=a nodes=node2", "10.1.0.2 zones=b nodes=node1"},
			"Forward 10.1.0.2:8080", "Drop",
		},
		{
			"node hints missing on one, so zone hints", []string{"10.1.0.1 zones=a", "10.1.0.2 zones=b nodes=node1"},
			"Forward 10.1.0.1:8080", "Drop",
		},
		{
			"node hints for other nodes only, so zone hints", []string{"10.1.0.1 zones=a nodes=node2", "10.1.0.2 zones=b nodes=node3"},
			"Forward 10.1.0.1:8080", "Drop",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc, s := service(), slice(state.IPv4, c.endpoints...)
			if got := showRoute(compute(t, config(), thisNode(), svc, s).Ports[0].Internal.Inside); got != c.cluster {
				t.Errorf("Cluster: %s, want %s", got, c.cluster)
			}
			svc.InternalLocal = true
			if got := showRoute(compute(t, config(), thisNode(), svc, s).Ports[0].Internal.Inside); got != c.local {
				t.Errorf("Local: %s, want %s", got, c.local)
			}
		})
	}
}

// pkg/proxy/topology.go: a node without a zone uses all endpoints (kpng gave it none).
func TestNodeWithoutZone(t *testing.T) {
	s := slice(state.IPv4, "10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 zones=")
	unlabelled := thisNode()
	unlabelled.Zone = ""
	for name, node := range map[string]*model.Node{"no label": unlabelled, "no node": nil} {
		t.Run(name, func(t *testing.T) {
			got := showRoute(compute(t, config(), node, service(), s).Ports[0].Internal.Inside)
			if want := "Forward 10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// pkg/proxy/endpointslicecache.go, addEndpoints.
func TestDuplicateEndpoints(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b string
		want string
	}{
		{"the non-terminating one wins", "10.1.0.1 dying", "10.1.0.1 here", "Forward 10.1.0.1:8080*"},
		{"also if it is not ready", "10.1.0.1 published", "10.1.0.1 notready", "Reject"},
		{"then the ready one", "10.1.0.1 notready", "10.1.0.1 here", "Forward 10.1.0.1:8080*"},
		{"then the serving one", "10.1.0.1 dead", "10.1.0.1 dying", "Forward 10.1.0.1:8080"},
		{"equal ones count once", "10.1.0.1", "10.1.0.1", "Forward 10.1.0.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := slice(state.IPv4, c.a), slice(state.IPv4, c.b)
			for _, order := range [][]*model.EndpointSlice{{a, b}, {b, a}, {slice(state.IPv4, c.a, c.b)}} {
				if got := showRoute(compute(t, config(), thisNode(), service(), order...).Ports[0].Internal.Inside); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			}
		})
	}
}

// pkg/proxy/endpointslicecache.go, endpointInfoByServicePort: the join is by port name and protocol, and the port number
// is the slice's.
func TestWhichSlices(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*model.EndpointSlice)
		want   string
	}{
		{"ordinary", func(*model.EndpointSlice) {}, "Forward 10.1.0.1:8080"},
		{"headless label", func(s *model.EndpointSlice) { s.Headless = true }, "Reject"},
		{"label of another proxy", func(s *model.EndpointSlice) { s.HasProxyName, s.ProxyName = true, "x" }, "Forward 10.1.0.1:8080"},
		{"FQDN", func(s *model.EndpointSlice) { s.Family = 0 }, "Reject"},
		{"unknown family", func(s *model.EndpointSlice) { s.Family = 5 }, "Reject"},
		{"other family", func(s *model.EndpointSlice) { s.Family = state.IPv6 }, "Reject"},
		{"other port name", func(s *model.EndpointSlice) { s.Ports[0].Name = "https" }, "Reject"},
		{"other protocol", func(s *model.EndpointSlice) { s.Ports[0].Protocol = state.UDP }, "Reject"},
		{"no port", func(s *model.EndpointSlice) { s.Ports = nil }, "Reject"},
		{"port 0", func(s *model.EndpointSlice) { s.Ports[0].Port = 0 }, "Reject"},
		{"two numbers of one port", func(s *model.EndpointSlice) {
			s.Ports = append(s.Ports, model.EndpointPort{Name: "http", Protocol: state.TCP, Port: 8081})
		}, "Forward 10.1.0.1:8080 10.1.0.1:8081"},
		{"addresses of no or another family", func(s *model.EndpointSlice) {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Ready: true}, endpoint("fd10::1"), endpoint("::ffff:10.1.0.2"))
		}, "Forward 10.1.0.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := slice(state.IPv4, "10.1.0.1")
			c.change(s)
			if got := showRoute(compute(t, config(), thisNode(), service(), nil, s).Ports[0].Internal.Inside); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// pkg/proxy/serviceport.go, UsesClusterEndpoints and UsesLocalEndpoints; pkg/proxy/nftables/proxier.go, the external chains
// with their short circuits. What each policy does with each class of client, by where the endpoints are.
func TestTrafficPolicies(t *testing.T) {
	both, remote := []string{"10.1.0.1 here", "10.1.0.2"}, []string{"10.1.0.2"}
	const all, here, there = "Forward 10.1.0.1:8080* 10.1.0.2:8080", "Forward 10.1.0.1:8080*", "Forward 10.1.0.2:8080"
	type policy struct{ external, iLocal, eLocal bool }
	type routes struct{ ii, io, ei, eo string }
	for _, c := range []struct {
		name      string
		policy    policy
		endpoints []string
		want      routes
	}{
		{"cluster IP only", policy{}, both, routes{all, all, "Unused", "Unused"}},
		{"external policy without external frontends", policy{eLocal: true}, both, routes{all, all, "Unused", "Unused"}},
		{"internal Local", policy{iLocal: true}, both, routes{here, here, "Unused", "Unused"}},
		{"internal Local, none here", policy{iLocal: true}, remote, routes{"Drop", "Drop", "Unused", "Unused"}},
		{"external Cluster", policy{external: true}, both, routes{all, all, all, all}},
		{"external Cluster, none", policy{external: true}, nil, routes{"Reject", "Reject", "Reject", "Reject"}},
		{"external Local", policy{external: true, eLocal: true}, both, routes{all, all, all, here}},
		{"external Local, none here", policy{external: true, eLocal: true}, remote, routes{there, there, there, "Drop"}},
		{"external Local, none", policy{external: true, eLocal: true}, nil, routes{"Reject", "Reject", "Reject", "Reject"}},
		{"internal Local, external Cluster", policy{external: true, iLocal: true}, remote, routes{"Drop", "Drop", there, there}},
		{"both Local", policy{true, true, true}, both, routes{here, here, all, here}},
		{"both Local, none here", policy{true, true, true}, remote, routes{"Drop", "Drop", there, "Drop"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := service()
			svc.InternalLocal, svc.ExternalLocal = c.policy.iLocal, c.policy.eLocal
			if c.policy.external {
				svc.ExternalIPs = addrs("192.0.2.1")
			}
			p := compute(t, config(), thisNode(), svc, slice(state.IPv4, c.endpoints...)).Ports[0]
			got := routes{
				showRoute(p.Internal.Inside), showRoute(p.Internal.Outside),
				showRoute(p.External.Inside), showRoute(p.External.Outside),
			}
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// pkg/proxy/nftables/proxier.go, masqueradeAll, localDetector and the external chains.
func TestMasquerade(t *testing.T) {
	for _, c := range []struct {
		name              string
		all, detect, eLcl bool
		internal          state.Masquerade
		external          state.Masquerade
	}{
		{"no detector", false, false, false, state.MasqueradeNever, state.MasqueradeAlways},
		{"detector", false, true, false, state.MasqueradeUnlessPod, state.MasqueradeAlways},
		{"masqueradeAll", true, true, false, state.MasqueradeAlways, state.MasqueradeAlways},
		{"external Local", false, true, true, state.MasqueradeUnlessPod, state.MasqueradeNode},
		{"external Local, masqueradeAll", true, false, true, state.MasqueradeAlways, state.MasqueradeNode},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, svc := config(), service()
			cfg.MasqueradeAll, svc.ExternalLocal = c.all, c.eLcl
			cfg.LocalDetector.NodeCIDR = false
			cfg.LocalDetector.ClusterCIDRs = prefixes(map[bool]string{true: "10.1.0.0/16", false: "fd00::/16"}[c.detect]) // the service is IPv4
			svc.ExternalIPs = addrs("192.0.2.1")
			p := compute(t, cfg, thisNode(), svc, slice(state.IPv4, "10.1.0.1")).Ports[0]
			if p.Internal.Masquerade != c.internal || p.External.Masquerade != c.external {
				t.Errorf("got %v and %v, want %v and %v", p.Internal.Masquerade, p.External.Masquerade, c.internal, c.external)
			}
		})
	}
}

// pkg/proxy/serviceport.go, newBaseServiceInfo: per service port, in whole seconds.
func TestAffinity(t *testing.T) {
	svc := service()
	for given, want := range map[time.Duration]time.Duration{
		0: 0, 3 * time.Hour: 3 * time.Hour, 1500 * time.Millisecond: time.Second, -time.Hour: 0,
	} {
		svc.Affinity = given
		if got := compute(t, config(), thisNode(), svc).Ports[0].Affinity; got != want {
			t.Errorf("%v became %v, want %v", given, got, want)
		}
	}
}

// pkg/api/v1/service, NeedsHealthCheck; pkg/proxy, EndpointsMap.LocalReadyEndpoints.
func TestHealthCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*model.Service)
		want   state.HealthCheck
	}{
		{"LoadBalancer with policy Local", func(*model.Service) {}, state.HealthCheck{Port: 32000, LocalIPv4: 2, LocalIPv6: 1}},
		{"policy Cluster", func(s *model.Service) { s.ExternalLocal = false }, state.HealthCheck{}},
		{"type NodePort", func(s *model.Service) { s.Type = model.TypeNodePort }, state.HealthCheck{}},
		{"no port allocated", func(s *model.Service) { s.HealthCheckNodePort = 0 }, state.HealthCheck{}},
		{"one family", func(s *model.Service) { s.ClusterIPs = addrs("10.96.0.1") }, state.HealthCheck{Port: 32000, LocalIPv4: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := service()
			svc.Type, svc.ExternalLocal, svc.HealthCheckNodePort = model.TypeLoadBalancer, true, 32000
			svc.ClusterIPs = addrs("10.96.0.1 fd96::1")
			svc.Ports = append(svc.Ports, model.ServicePort{Name: "https", Protocol: state.TCP, Port: 443})
			c.change(svc)
			v4 := slice(state.IPv4, "10.1.0.1 here", "10.1.0.2", "10.1.0.3 dying here", "10.1.0.4 notready here")
			// The second port serves 10.1.0.1 again, which counts once, and one more.
			tls := slice(state.IPv4, "10.1.0.1 here", "10.1.0.5 here")
			tls.Ports[0] = model.EndpointPort{Name: "https", Protocol: state.TCP, Port: 8443}
			v6 := slice(state.IPv6, "fd10::1 here", "fd10::2")
			rec := compute(t, config(), thisNode(), svc, v4, tls, v6)
			if rec.HealthCheck != c.want {
				t.Errorf("got %+v, want %+v", rec.HealthCheck, c.want)
			}
		})
	}
}

// pkg/proxy/conntrack/cleanup.go: UDP flows to serving endpoints go on, whether these are ready or not, and whatever
// policies and hints say about new connections.
func TestLingering(t *testing.T) {
	endpoints := []string{"10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 dying", "10.1.0.4 notready", "10.1.0.5 dying here"}
	for _, c := range []struct {
		name     string
		protocol state.Protocol
		change   func(*model.Service)
		want     string
	}{
		{"UDP", state.UDP, func(*model.Service) {}, "10.1.0.2:8080 10.1.0.3:8080 10.1.0.5:8080*"},
		{"TCP", state.TCP, func(*model.Service) {}, ""},
		{"SCTP", state.SCTP, func(*model.Service) {}, ""},
		{"internal Local", state.UDP, func(s *model.Service) { s.InternalLocal = true }, "10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080"},
		{"external Local", state.UDP, func(s *model.Service) {
			s.ExternalLocal, s.ExternalIPs = true, addrs("192.0.2.1")
		}, "10.1.0.2:8080 10.1.0.3:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc, s := service(), slice(state.IPv4, endpoints...)
			svc.Ports[0].Protocol, s.Ports[0].Protocol = c.protocol, c.protocol
			c.change(svc)
			if got := showEndpoints(compute(t, config(), thisNode(), svc, s).Ports[0].Lingering); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			svc.Ports[0].Protocol, s.Ports[0].Protocol = state.TCP, state.TCP
			cfg, want := config(), c.want
			cfg.TCPLingers = true
			if c.protocol != state.UDP {
				want = "10.1.0.2:8080 10.1.0.3:8080 10.1.0.5:8080*"
			}
			if got := showEndpoints(compute(t, cfg, thisNode(), svc, s).Ports[0].Lingering); got != want {
				t.Errorf("TCP, where it lingers: got %q, want %q", got, want)
			}
			svc.Annotations = []model.Annotation{{Name: model.DrainAnnotation, Value: "30s"}}
			if got := showEndpoints(compute(t, config(), thisNode(), svc, s).Ports[0].Lingering); got != want {
				t.Errorf("TCP with a deadline: got %q, want %q", got, want)
			}
		})
	}
}

// pkg/proxy/serviceport.go, newBaseServiceInfo. The frontends of a service, by its fields.
func TestFrontends(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*model.Service)
		want   string
	}{
		{"ClusterIP", func(*model.Service) {}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80`},
		{"dual stack", func(s *model.Service) { s.ClusterIPs = addrs("fd96::1 10.96.0.1") }, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80
			http/TCP/IPv6 ClusterIP [fd96::1]:80`},
		{"everything, in order", func(s *model.Service) {
			s.Type = model.TypeLoadBalancer
			s.Ports[0].NodePort = 30080
			s.LoadBalancerIPs, s.ExternalIPs = addrs("203.0.113.1"), addrs("192.0.2.2 192.0.2.1")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80
			http/TCP/IPv4 ExternalIP 192.0.2.1:80
			http/TCP/IPv4 ExternalIP 192.0.2.2:80
			http/TCP/IPv4 LoadBalancer 203.0.113.1:80
			http/TCP/IPv4 NodePort 30080`},
		{"NodePort in each family", func(s *model.Service) {
			s.Type, s.Ports[0].NodePort, s.ClusterIPs = model.TypeNodePort, 30080, addrs("fd96::1 10.96.0.1")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80
			http/TCP/IPv4 NodePort 30080
			http/TCP/IPv6 ClusterIP [fd96::1]:80
			http/TCP/IPv6 NodePort 30080`},
		{"left over from another type", func(s *model.Service) {
			s.Ports[0].NodePort, s.LoadBalancerIPs = 30080, addrs("203.0.113.1")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80`},
		{"allocateLoadBalancerNodePorts=false", func(s *model.Service) {
			s.Type, s.LoadBalancerIPs = model.TypeLoadBalancer, addrs("203.0.113.1")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80
			http/TCP/IPv4 LoadBalancer 203.0.113.1:80`},
		{"addresses of a family without cluster IP", func(s *model.Service) {
			s.Type, s.LoadBalancerIPs, s.ExternalIPs = model.TypeLoadBalancer, addrs("fd20::1"), addrs("fd20::2")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80`},
		{"one address in several roles", func(s *model.Service) {
			s.Type = model.TypeLoadBalancer
			s.LoadBalancerIPs, s.ExternalIPs = addrs("192.0.2.1 10.96.0.1"), addrs("192.0.2.1 192.0.2.2 192.0.2.2 10.96.0.1")
			s.SourceRanges = prefixes("198.51.100.0/24")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80
			http/TCP/IPv4 ExternalIP 192.0.2.2:80
			http/TCP/IPv4 LoadBalancer 192.0.2.1:80 from [198.51.100.0/24]`},
		{"two load balancer IPs, each admitting itself with this node", func(s *model.Service) {
			s.Type, s.LoadBalancerIPs = model.TypeLoadBalancer, addrs("203.0.113.1 203.0.113.2")
			// Three ranges leave room in their memory for a fourth, which the two must not share.
			s.SourceRanges = prefixes("10.0.0.0/8 172.16.0.0/16 192.0.2.0/24")
		}, `
			http/TCP/IPv4 ClusterIP 10.96.0.1:80
			http/TCP/IPv4 LoadBalancer 203.0.113.1:80 from [10.0.0.0/8 172.16.0.0/16 192.0.2.0/24 203.0.113.1/32]
			http/TCP/IPv4 LoadBalancer 203.0.113.2:80 from [10.0.0.0/8 172.16.0.0/16 192.0.2.0/24 203.0.113.2/32]`},
		{"ports in order of name, protocol, family", func(s *model.Service) {
			s.Ports = []model.ServicePort{
				{Name: "b", Protocol: state.TCP, Port: 1}, {Name: "a", Protocol: state.SCTP, Port: 2}, {Name: "a", Protocol: state.UDP, Port: 2},
			}
		}, `
			a/UDP/IPv4 ClusterIP 10.96.0.1:2
			a/SCTP/IPv4 ClusterIP 10.96.0.1:2
			b/TCP/IPv4 ClusterIP 10.96.0.1:1`},
		{"two ports of one number", func(s *model.Service) {
			s.Type = model.TypeNodePort
			s.Ports = []model.ServicePort{
				{Name: "z", Protocol: state.TCP, Port: 80, NodePort: 30080},
				{Name: "y", Protocol: state.TCP, Port: 80, NodePort: 30081},
				{Name: "x", Protocol: state.TCP, Port: 81, NodePort: 30080},
				{Name: "w", Protocol: state.TCP, Port: 80, NodePort: 30080},
				{Name: "v", Protocol: state.UDP, Port: 80, NodePort: 30080},
			}
		}, `
			v/UDP/IPv4 ClusterIP 10.96.0.1:80
			v/UDP/IPv4 NodePort 30080
			x/TCP/IPv4 ClusterIP 10.96.0.1:81
			y/TCP/IPv4 NodePort 30081
			z/TCP/IPv4 ClusterIP 10.96.0.1:80
			z/TCP/IPv4 NodePort 30080`},
		{"unusable ports", func(s *model.Service) {
			s.Ports = append([]model.ServicePort{{Name: "http", Protocol: state.TCP}, {Name: "icmp", Protocol: 1, Port: 80}},
				s.Ports[0], model.ServicePort{Name: "http", Protocol: state.TCP, Port: 81}, model.ServicePort{Name: "b", Protocol: state.TCP, Port: 81})
		}, `
			b/TCP/IPv4 ClusterIP 10.96.0.1:81
			http/TCP/IPv4 ClusterIP 10.96.0.1:80`},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := service()
			c.change(svc)
			if diff := cmp.Diff(lines(c.want), showFrontends(compute(t, config(), thisNode(), svc))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// pkg/proxy/serviceport.go, newBaseServiceInfo (family filter); pkg/proxy/nftables/proxier.go, usesFWChain and allowFromNode.
func TestSourceRanges(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranges string
		v4, v6 string // of the load balancer IPs
	}{
		{"none", "", "", ""},
		{"masked, sorted, distinct", "198.51.100.7/24 192.0.2.0/24 198.51.100.0/24 2001:db8::1/32",
			" from [192.0.2.0/24 198.51.100.0/24]", " from [2001:db8::/32]"},
		{"of the other family only", "198.51.100.0/24", " from [198.51.100.0/24]", ""},
		{"everybody", "198.51.100.0/24 0.0.0.0/0 2001:db8::/32", "", " from [2001:db8::/32]"},
		{"with this node", "172.16.0.0/16 192.0.2.0/24 fd16::/64", " from [172.16.0.0/16 192.0.2.0/24 203.0.113.1/32]", " from [fd16::/64 fd20::1/128]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := service()
			svc.Type = model.TypeLoadBalancer
			svc.ClusterIPs, svc.LoadBalancerIPs = addrs("10.96.0.1 fd96::1"), addrs("203.0.113.1 fd20::1")
			svc.ExternalIPs = addrs("192.0.2.9")
			svc.SourceRanges = prefixes(c.ranges)
			want := lines(`
				http/TCP/IPv4 ClusterIP 10.96.0.1:80
				http/TCP/IPv4 ExternalIP 192.0.2.9:80
				http/TCP/IPv4 LoadBalancer 203.0.113.1:80` + c.v4 + `
				http/TCP/IPv6 ClusterIP [fd96::1]:80
				http/TCP/IPv6 LoadBalancer [fd20::1]:80` + c.v6)
			if diff := cmp.Diff(want, showFrontends(compute(t, config(), thisNode(), svc))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// pkg/proxy/nftables/proxier.go, allowFromNode: it takes a node whose address is known.
func TestSourceRangesWithoutNode(t *testing.T) {
	svc := service()
	svc.Type, svc.LoadBalancerIPs, svc.SourceRanges = model.TypeLoadBalancer, addrs("203.0.113.1"), prefixes("172.16.0.0/16")
	want := lines(`
		http/TCP/IPv4 ClusterIP 10.96.0.1:80
		http/TCP/IPv4 LoadBalancer 203.0.113.1:80 from [172.16.0.0/16]`)
	if diff := cmp.Diff(want, showFrontends(compute(t, config(), nil, svc))); diff != "" {
		t.Error(diff)
	}
}
