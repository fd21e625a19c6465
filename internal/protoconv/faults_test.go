package protoconv_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/protoconv/protoconvtest"
	"github.com/switchyard-net/switchyard/model"
)

// fault is one violation of the protocol. The error names the object, the field, and the fault.
type fault[M any] struct {
	name string
	make func(*M)
	want []string
}

func TestFaultsOfAService(t *testing.T) {
	const udp, tcp, rtp, web = 0, 1, 2, 3
	for _, c := range []fault[localnetv1.ServiceEndpoints]{
		{"protocol", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Protocol = 1 }, []string{"protocol is 1", "not known"}},
		{"family", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Family = 0 }, []string{"family is FAMILY_UNSPECIFIED"}},
		{"order of ports", func(m *localnetv1.ServiceEndpoints) { m.Ports[0], m.Ports[1] = m.Ports[1], m.Ports[0] }, []string{`port "dns"`, "ordered by name"}},
		{"a port twice", func(m *localnetv1.ServiceEndpoints) { m.Ports[1] = m.Ports[0] }, []string{"occur once"}},
		{"no frontend", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Frontends = nil }, []string{`port "http"`, "frontends is empty"}},
		{"kind", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[1].Kind = 9 }, []string{"frontends[1].kind is 9"}},
		{"short address", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[0].Address = []byte{1, 2, 3} }, []string{"frontends[0].address has 3 bytes"}},
		{"other family", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[0].Address = make([]byte, 16) }, []string{"frontends[0].address is ::", "family IPv4"}},
		{"mapped address", func(m *localnetv1.ServiceEndpoints) {
			m.Ports[tcp].Frontends[0].Address = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4}
		}, []string{"must have 4 bytes"}},
		{"address of a node port", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[4].Address = make([]byte, 4) }, []string{"frontends[4].address has 4 bytes", "NODE_PORT"}},
		{"last port before the first", func(m *localnetv1.ServiceEndpoints) { m.Ports[rtp].Frontends[0].LastPort = 10000 }, []string{"frontends[0].last_port is 10000", "from 10001"}},
		{"large last port", func(m *localnetv1.ServiceEndpoints) { m.Ports[rtp].Frontends[0].LastPort = 65536 }, []string{"frontends[0].last_port is 65536"}},
		{"one range", func(m *localnetv1.ServiceEndpoints) { m.Ports[rtp].Frontends[1].LastPort = 0 }, []string{"frontends[1].last_port is 0", "either all"}},
		{"port behind a range", func(m *localnetv1.ServiceEndpoints) { m.Ports[rtp].Endpoints[1].Port = 53 }, []string{"endpoints[1].port is 53", "must be 0"}},
		{"ping of a node port", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[4].Ping = true }, []string{"frontends[4].ping is set"}},
		{"balance", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Balance = 9 }, []string{"balance is 9", "not known"}},
		{"fewer weights", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Outside.Weights = []uint32{1} }, []string{"internal.outside has 1 weights and 2 endpoints"}},
		{"weight 0", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Outside.Weights[1] = 0 }, []string{"internal.outside.weights[1] is 0"}},
		{"large weight", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Outside.Weights[1] = 65536 }, []string{"internal.outside.weights[1] is 65536"}},
		{"refused without weights", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Inside.RefusedWeight = 1 }, []string{"internal.inside.refused_weight is 1"}},
		{"port 0", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[0].Port = 0 }, []string{"frontends[0].port is 0"}},
		{"port 65536", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Endpoints[0].Port = 65536 }, []string{"endpoints[0].port is 65536"}},
		{"order of frontends", func(m *localnetv1.ServiceEndpoints) { f := m.Ports[udp].Frontends; f[0], f[1] = f[1], f[0] }, []string{"frontends[1] must come before frontends[0]"}},
		{"a frontend twice", func(m *localnetv1.ServiceEndpoints) { f := m.Ports[udp].Frontends; f[1] = f[0] }, []string{"frontends[1] is the same"}},
		{"sources without restriction", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends[3].Restricted = false }, []string{"frontends[3].source_ranges is set"}},
		{"index of sources", func(m *localnetv1.ServiceEndpoints) { *m.Ports[udp].Frontends[3].SourceRanges = 1 << 31 }, []string{"frontends[3].source_ranges is 2147483648", "less than 1"}},
		{"no sources in a list", func(m *localnetv1.ServiceEndpoints) { m.SourceRanges[0].Ranges = nil }, []string{"source_ranges[0].ranges is empty"}},
		{"unmasked source", func(m *localnetv1.ServiceEndpoints) { m.SourceRanges[0].Ranges[0].Address[3] = 1 }, []string{"source_ranges[0].ranges[0] is 10.0.0.1/8", "masked"}},
		{"long source", func(m *localnetv1.ServiceEndpoints) { m.SourceRanges[0].Ranges[1].Length = 33 }, []string{"ranges[1].length is 33"}},
		{"order of sources", func(m *localnetv1.ServiceEndpoints) { s := m.SourceRanges[0].Ranges; s[0], s[1] = s[1], s[0] }, []string{"ranges[1] must come before"}},
		{"sources of two families", func(m *localnetv1.ServiceEndpoints) {
			m.SourceRanges[0].Ranges[1] = &localnetv1.Prefix{Address: make([]byte, 16)}
		}, []string{"source_ranges[0].ranges has 10.0.0.0/8 and ::/0", "one family"}},
		{"sources of another family", func(m *localnetv1.ServiceEndpoints) {
			m.SourceRanges[0].Ranges = []*localnetv1.Prefix{{Address: make([]byte, 16)}}
		}, []string{"frontends[3].source_ranges is 0, which begins with ::/0", "family IPv4"}},
		{"order of endpoints", func(m *localnetv1.ServiceEndpoints) { e := m.Ports[udp].Endpoints; e[0], e[1] = e[1], e[0] }, []string{"endpoints[1] must come before endpoints[0]"}},
		{"an endpoint twice", func(m *localnetv1.ServiceEndpoints) { e := m.Ports[udp].Endpoints; e[1] = e[0] }, []string{"endpoints[1] is the same"}},
		{"no internal", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Internal = nil }, []string{"internal is not set"}},
		{"no external", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].External = nil }, []string{"external is not set"}},
		{"external without frontends", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].External = m.Ports[tcp].Internal }, []string{"external is set"}},
		{"internal without frontends", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Frontends = m.Ports[udp].Frontends[1:] }, []string{"internal is set"}},
		{"verdict", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Inside.Verdict = 7 }, []string{"internal.inside.verdict is 7"}},
		{"no verdict", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Outside = nil }, []string{"internal.outside.verdict is VERDICT_UNSPECIFIED"}},
		{"forward to nothing", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].Internal.Inside.Verdict = 1 }, []string{"internal.inside has the verdict VERDICT_FORWARD and 0 endpoints"}},
		{"endpoints of a drop", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].External.Outside.Endpoints = []uint32{0} }, []string{"VERDICT_DROP and 1 endpoints"}},
		{"index", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Internal.Inside.Endpoints[1] = 5 }, []string{"internal.inside.endpoints[1] is 5", "has 5 endpoints"}},
		{"order of indices", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Internal.Inside.Endpoints = []uint32{1, 1} }, []string{"endpoints[1] is 1 after 1", "ascending"}},
		{"masquerade", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].External.Masquerade = 5 }, []string{"external.masquerade is 5"}},
		{"no masquerade", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].External.Masquerade = 0 }, []string{"external.masquerade is MASQUERADE_UNSPECIFIED"}},
		{"lingering index", func(m *localnetv1.ServiceEndpoints) { m.Ports[udp].Lingering = []uint32{1 << 31} }, []string{"lingering[0] is 2147483648"}},
		{"lingering TCP", func(m *localnetv1.ServiceEndpoints) { m.Ports[tcp].DrainSeconds = 0 }, []string{`port "http"`, "only endpoints of UDP"}},
		{"edge of SCTP", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Protocol = localnetv1.Protocol_PROTOCOL_SCTP }, []string{`port "web"`, "edge is set", "this protocol"}},
		{"edge with affinity", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].AffinitySeconds = 1 }, []string{"edge is set", "this affinity_seconds"}},
		{"edge with a hash", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Balance = 1 }, []string{"edge is set", "this balance"}},
		{"edge with ejection", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Ejection = true }, []string{"edge is set", "this ejection"}},
		{"edge with a deadline", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].DrainSeconds = 1 }, []string{"edge is set", "this drain_seconds"}},
		{"edge of a range", func(m *localnetv1.ServiceEndpoints) { m.Ports[rtp].Edge = m.Ports[web].Edge }, []string{`port "rtp"`, "edge is set", "this balance"}},
		{"edge of a random range", func(m *localnetv1.ServiceEndpoints) { m.Ports[rtp].Edge, m.Ports[rtp].Balance = m.Ports[web].Edge, 0 }, []string{"edge is set", "this last_port"}},
		{"edge with a refused share", func(m *localnetv1.ServiceEndpoints) {
			m.Ports[web].External.Outside.Weights, m.Ports[web].External.Outside.RefusedWeight = []uint32{1, 1}, 1
		}, []string{"edge is set", "refused_weight of external"}},
		{"edge for cluster IPs", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Except = []localnetv1.FrontendKind{1, 4} }, []string{"edge.except[0] is FRONTEND_KIND_CLUSTER_IP"}},
		{"edge for an unknown kind", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Except = []localnetv1.FrontendKind{5} }, []string{"edge.except[0] is 5"}},
		{"order of kinds", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Except = []localnetv1.FrontendKind{4, 3} }, []string{"edge.except[1] must come before edge.except[0]"}},
		{"edge for no frontend", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Except = []localnetv1.FrontendKind{2, 4} }, []string{"edge is set, but there is no frontend"}},
		{"edge without local", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Local = nil }, []string{"edge.local.verdict is VERDICT_UNSPECIFIED"}},
		{"edge that rejects", func(m *localnetv1.ServiceEndpoints) {
			m.Ports[web].Edge.Local = &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_REJECT}
		}, []string{"edge.local has the verdict VERDICT_REJECT"}},
		{"edge that refuses", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Local.RefusedWeight = 9 }, []string{"edge.local.refused_weight is 9"}},
		{"endpoint of an edge elsewhere", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Local.Endpoints = []uint32{0, 1} }, []string{"edge.local.endpoints[1] is 10.1.0.3:80", "another node"}},
		{"share 0", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Shares[1].Weight = 0 }, []string{"edge.shares[1].weight is 0"}},
		{"order of shares", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Shares[1].Node = 6 }, []string{"edge.shares[1] must come before edge.shares[0]"}},
		{"a share twice", func(m *localnetv1.ServiceEndpoints) { m.Ports[web].Edge.Shares[1].Node = 7 }, []string{"edge.shares[1] is the same"}},
		{"health check port", func(m *localnetv1.ServiceEndpoints) { m.HealthCheck.Port = 0 }, []string{"health_check.port is 0"}},
		{"health check count", func(m *localnetv1.ServiceEndpoints) { m.HealthCheck.LocalIpv6 = 1 << 31 }, []string{"health_check"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := protoconv.Service(fullService())
			c.make(m)
			s, err := protoconv.ParseService(m)
			expect(t, err, append(c.want, "service ns/dns: "))
			if s != nil {
				t.Error("there is a record beside the error")
			}
		})
	}
}

func TestFaultsOfANode(t *testing.T) {
	for _, c := range []fault[localnetv1.Node]{
		{"address", func(m *localnetv1.Node) { m.Addresses[1] = nil }, []string{"addresses[1] has 0 bytes"}},
		{"pod CIDR", func(m *localnetv1.Node) { m.PodCidrs[0].Length = 64 }, []string{"pod_cidrs[0].length is 64"}},
		{"no way to detect pods", func(m *localnetv1.Node) { m.PodDetection.Mode = 0 }, []string{"pod_detection: mode is not set"}},
		{"cluster CIDR", func(m *localnetv1.Node) { m.PodDetection.ClusterCidrs[1].Address[15] = 1 }, []string{"pod_detection: cluster_cidrs[1] is fd00::1/16", "masked"}},
		{"no cluster CIDR", func(m *localnetv1.Node) { m.PodDetection.ClusterCidrs = nil }, []string{"pod_detection: cluster_cidrs is empty"}},
		{"a second way", func(m *localnetv1.Node) { m.PodDetection.BridgeInterface = "cni0" }, []string{"more is set than mode POD_DETECTION_MODE_CLUSTER_CIDR needs"}},
		{"more than none", func(m *localnetv1.Node) { m.PodDetection.Mode = 1 }, []string{"more is set than mode POD_DETECTION_MODE_NONE needs"}},
		{"no bridge", func(m *localnetv1.Node) { m.PodDetection = &localnetv1.PodDetection{Mode: 4} }, []string{"bridge_interface", `got ""`}},
		{"a long prefix", func(m *localnetv1.Node) {
			m.PodDetection = &localnetv1.PodDetection{Mode: 5, InterfaceNamePrefix: "a-name-of-16byte"}
		}, []string{"interface_name_prefix", "1 to 15 bytes"}},
		{"node port range", func(m *localnetv1.Node) { m.NodePortAddresses.Cidrs[0].Length = 33 }, []string{"node_port_addresses: cidrs[0].length is 33"}},
		{"order", func(m *localnetv1.Node) { c := m.ServiceCidrs; c[0], c[1] = c[1], c[0] }, []string{"service_cidrs[1] must come before"}},
		{"order of peers", func(m *localnetv1.Node) { p := m.Peers; p[0], p[1] = p[1], p[0] }, []string{"peers[1] must come before peers[0]"}},
		{"a peer twice", func(m *localnetv1.Node) { m.Peers[1] = m.Peers[0] }, []string{"peers[1] must come before peers[0], and occur once"}},
		{"another ID", func(m *localnetv1.Node) { m.Peers[1].Id++ }, []string{"peers[1].id is 96712487; it must be 96712486", `"node-b"`}},
		{"address of a peer", func(m *localnetv1.Node) { m.Peers[0].Addresses[1] = nil }, []string{"peers[0].addresses[1] has 0 bytes"}},
		{"pod CIDR of a peer", func(m *localnetv1.Node) { m.Peers[0].PodCidrs[0].Address[3] = 1 }, []string{"peers[0].pod_cidrs[0] is 10.1.0.1/24", "masked"}},
		{"port of a peer", func(m *localnetv1.Node) { m.Peers[0].Port = 65536 }, []string{"peers[0].port is 65536"}},
		{"a peer without addresses", func(m *localnetv1.Node) { m.Peers[1].Addresses = nil }, []string{"peers[1].port is 7636; it must be 0 without addresses"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := protoconv.Node(fullNode())
			c.make(m)
			_, err := protoconv.ParseNode(m)
			expect(t, err, append(c.want, `node "node-a": `))
		})
	}
	_, err := protoconv.ParseNode(nil)
	expect(t, err, []string{"not set"})
}

// TestBadPodNames: names of pods that a relay should not send are left out. The slice stays, and hostile ones take no memory.
func TestBadPodNames(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, pods := range map[string]*clusterv1.PodNames{
		"none":              nil,
		"empty":             {},
		"too few":           {Prefix: "dns-", Rests: []string{"a"}},
		"too many":          {Prefix: "dns-", Rests: []string{"a", "b", "c"}},
		"long names":        {Rests: []string{long, long}},
		"a long beginning":  {Prefix: long, Rests: []string{"a", "b"}},
		"no names":          {Rests: []string{"\x1b[2J", "DNS"}},
		"no beginning":      {Prefix: "\x1b[2J", Rests: []string{"a", "b"}},
		"only a beginning":  {Prefix: "dns-", Rests: []string{"", ""}},
		"beginning, no end": {Prefix: "dns-"},
	} {
		m := protoconv.Object(fullSlice())
		m.GetEndpointSlice().Pods = pods
		o, err := protoconv.ParseObject(m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if s := o.(*model.EndpointSlice); s.Pods != "" || len(s.Endpoints) != 2 {
			t.Errorf("%s: the slice has %d endpoints, and pods %q", name, len(s.Endpoints), s.Pods)
		}
	}
}

func TestFaultsOfAnObject(t *testing.T) {
	service := func(change func(*clusterv1.Service)) *clusterv1.Object {
		m := protoconv.Object(fullModelService())
		change(m.GetService())
		return m
	}
	slice := func(change func(*clusterv1.EndpointSlice)) *clusterv1.Object {
		m := protoconv.Object(fullSlice())
		change(m.GetEndpointSlice())
		return m
	}
	for name, c := range map[string]struct {
		m    *clusterv1.Object
		want []string
	}{
		"no kind": {&clusterv1.Object{}, []string{"kind that is not known"}},
		"unset":   {nil, []string{"kind that is not known"}},
		"created": {service(func(m *clusterv1.Service) { m.Created = &timestamppb.Timestamp{Nanos: -1} }),
			[]string{"Service ns/dns: created is not a time"}},
		"type":       {service(func(m *clusterv1.Service) { m.Type = 0 }), []string{"Service ns/dns: type is SERVICE_TYPE_UNSPECIFIED"}},
		"new type":   {service(func(m *clusterv1.Service) { m.Type = 5 }), []string{"type is 5"}},
		"cluster IP": {service(func(m *clusterv1.Service) { m.ClusterIps[1] = []byte{1} }), []string{"cluster_ips[1] has 1 bytes"}},
		"external":   {service(func(m *clusterv1.Service) { m.ExternalIps[0] = nil }), []string{"external_ips[0]"}},
		"balancer":   {service(func(m *clusterv1.Service) { m.LoadBalancerIps[0] = nil }), []string{"load_balancer_ips[0]"}},
		"range":      {service(func(m *clusterv1.Service) { m.SourceRanges[0].Length = 33 }), []string{"source_ranges[0].length is 33"}},
		"protocol":   {service(func(m *clusterv1.Service) { m.Ports[1].Protocol = 262 }), []string{"ports[1].protocol is 262"}},
		"port":       {service(func(m *clusterv1.Service) { m.Ports[1].Port = 0 }), []string{"ports[1].port is 0"}},
		"node port":  {service(func(m *clusterv1.Service) { m.Ports[1].NodePort = 65536 }), []string{"ports[1].node_port is 65536"}},
		"health":     {service(func(m *clusterv1.Service) { m.HealthCheckNodePort = 70000 }), []string{"health_check_node_port is 70000"}},
		"family":     {slice(func(m *clusterv1.EndpointSlice) { m.Family = 260 }), []string{"EndpointSlice ns/dns-1: family is 260"}},
		"endpoint":   {slice(func(m *clusterv1.EndpointSlice) { m.Endpoints[1].Address = make([]byte, 16) }), []string{"endpoints[1].address"}},
		"no family":  {slice(func(m *clusterv1.EndpointSlice) { m.Family = 0 }), []string{"endpoints is not empty"}},
		"slice port": {slice(func(m *clusterv1.EndpointSlice) { m.Ports[0].Port = 65536 }), []string{"ports[0].port is 65536"}},
		"trigger": {slice(func(m *clusterv1.EndpointSlice) { m.TriggerTime = &timestamppb.Timestamp{Nanos: -1} }),
			[]string{"trigger_time is not a time"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := protoconv.ParseObject(c.m)
			expect(t, err, c.want)
		})
	}
	for _, c := range []struct {
		m    *clusterv1.Ref
		want string
	}{
		{&clusterv1.Ref{Kind: 0, Name: "a"}, "KIND_UNSPECIFIED"}, {&clusterv1.Ref{Kind: 6}, "kind is 6"}, {&clusterv1.Ref{Kind: 257, Name: "a"}, "kind is 257"},
		{&clusterv1.Ref{Kind: clusterv1.Kind_KIND_NODE, Namespace: "ns", Name: "a"}, "namespace must be empty"},
	} {
		_, err := protoconv.ParseRef(c.m)
		expect(t, err, []string{c.want})
	}
	if got := protoconv.Object(model.Object(nil)); got.GetObject() != nil {
		t.Errorf("no object became %v", got)
	}
}

// TestFaultsOfAnUpdate: faults of the whole end it; faults of a service are reported, and the rest of the update goes on.
func TestFaultsOfAnUpdate(t *testing.T) {
	node := protoconv.Node(fullNode())
	at := protoconv.Position{Instance: 1, Revision: 2}.Message()
	svc := protoconv.Service(fullService())
	name := protoconv.ServiceName(fullService().Name)
	bad := protoconv.Service(fullService())
	bad.Ports[0].Protocol = 1
	type parts = []*localnetv1.WatchResponse
	for _, c := range []struct {
		name  string
		parts parts
		want  string
	}{
		{"full in one part only", parts{{Full: true, Node: node}, {Position: at}}, "part 2: full is false"},
		{"late node", parts{{Full: true, Node: node}, {Full: true, Node: node, Position: at}}, "part 2: node is set"},
		{"no node", parts{{Full: true, Position: at}}, "node is not set"},
		{"no node ever", parts{{Position: at}}, "node is not set"},
		{"bad node", parts{{Node: &localnetv1.Node{Name: "n", Addresses: [][]byte{{1}}}}}, `node "n": addresses[0]`},
		{"no revision", parts{{Full: true, Node: node, Position: &localnetv1.Position{InstanceId: 1}}}, "position.rev is 0"},
		{"removed and full", parts{{Full: true, Node: node, Removed: []*localnetv1.ServiceName{name}, Position: at}}, "it is full, but has 1 removed"},
		{"twice", parts{{Node: node, Changed: []*localnetv1.ServiceEndpoints{svc}}, {Changed: []*localnetv1.ServiceEndpoints{svc}, Position: at}}, "ns/dns occurs twice in changed"},
		{"twice, once bad", parts{{Node: node, Changed: []*localnetv1.ServiceEndpoints{svc, bad}, Position: at}}, "ns/dns occurs twice in changed"},
		{"twice, both bad", parts{{Node: node, Changed: []*localnetv1.ServiceEndpoints{bad, bad}, Position: at}}, "ns/dns occurs twice in changed"},
		{"removed twice", parts{{Node: node, Removed: []*localnetv1.ServiceName{name, name}, Position: at}}, "ns/dns occurs twice in removed"},
		{"changed and removed", parts{{Node: node, Changed: []*localnetv1.ServiceEndpoints{svc}, Removed: []*localnetv1.ServiceName{name}, Position: at}}, "both in changed and in removed"},
		{"bad and removed", parts{{Node: node, Changed: []*localnetv1.ServiceEndpoints{bad}, Removed: []*localnetv1.ServiceName{name}, Position: at}}, "both in changed and in removed"},
		{"trigger", parts{{Node: node, Triggers: []*timestamppb.Timestamp{{Nanos: -1}}}}, "triggers[0] is not a time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a protoconvtest.Assembly
			for i, p := range c.parts {
				r, err := a.Add(p)
				if i == len(c.parts)-1 {
					expect(t, err, []string{"update: ", c.want})
				} else if r != nil || err != nil {
					t.Fatalf("part %d: %v, %v", i, r, err)
				}
			}
		})
	}
	t.Run("a bad service", func(t *testing.T) {
		good := protoconv.Service(fullService())
		good.Name = "a"
		a := protoconvtest.Assembly{Node: fullNode()}
		r, err := a.Add(&localnetv1.WatchResponse{Changed: []*localnetv1.ServiceEndpoints{bad, good}, Position: at})
		if err != nil || len(r.Update.Changed) != 1 || r.Update.Changed[0].Name.Name != "a" || len(r.Failed) != 1 || !r.Update.Node.Equal(fullNode()) {
			t.Fatalf("got %+v, %v", r, err)
		}
		expect(t, r.Failed[fullService().Name], []string{"service ns/dns: ", "protocol is 1"})
	})
}

func expect(t *testing.T, err error, want []string) {
	t.Helper()
	if err == nil {
		t.Fatalf("there is no error; want %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error is %q; want %q in it", err, w)
		}
	}
}
