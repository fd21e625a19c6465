package brain_test

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// input is one set of arguments of Compute.
type input struct {
	cfg    *brain.Config
	node   *model.Node
	svc    *model.Service
	slices []*model.EndpointSlice
}

func (in *input) compute() *state.Service { return brain.Compute(in.cfg, in.node, in.svc, in.slices) }

// generator makes objects from bytes, so that the fuzzer can steer it. Its values come from small pools with ordinary
// and hostile values, which collide often. When the bytes run out, they are 0.
type generator struct{ data []byte }

var (
	// The first 9 are ordinary.
	anyAddr = []netip.Addr{
		netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1"), netip.MustParseAddr("10.1.0.1"),
		netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3"), netip.MustParseAddr("fd10::1"),
		netip.MustParseAddr("fd10::2"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd20::1"),
		{}, netip.MustParseAddr("::ffff:10.1.0.1"), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("0.0.0.0"),
	}
	anyPrefix = []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("fd20::/64"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
		{}, netip.PrefixFrom(netip.MustParseAddr("192.0.2.0"), 99), netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	}
	anyFamily   = []state.Family{state.IPv4, state.IPv6, 0, 5}
	anyProtocol = []state.Protocol{state.TCP, state.UDP, state.SCTP, 0, 1}
	anyName     = []string{"a", "b", ""}
	anyPort     = []uint16{80, 81, 0, 65535}
	anyType     = []model.ServiceType{model.TypeLoadBalancer, model.TypeClusterIP, model.TypeNodePort, model.TypeExternalName, 9}
	anyTimeout  = []time.Duration{0, 3 * time.Hour, time.Millisecond, -time.Second}
)

func (g *generator) byte() byte {
	if len(g.data) == 0 {
		return 0
	}
	b := g.data[0]
	g.data = g.data[1:]
	return b
}

func (g *generator) bool() bool { return g.byte()&1 != 0 }

// one picks from a pool, every other time the first item, so that things often fit together.
func one[T any](g *generator, pool []T) T {
	b := int(g.byte())
	if b >= 128 {
		return pool[0]
	}
	return pool[b%len(pool)]
}

// list makes up to 4 items.
func list[T any](g *generator, item func() T) []T {
	var out []T
	for range g.byte() % 5 {
		out = append(out, item())
	}
	return out
}

// addr is mostly an ordinary one.
func (g *generator) addr() netip.Addr {
	b := int(g.byte())
	if b >= 64 {
		return anyAddr[b%9]
	}
	return anyAddr[b%len(anyAddr)]
}

func (g *generator) addrs() []netip.Addr {
	return list(g, g.addr)
}

func (g *generator) names() []string {
	return list(g, func() string { return one(g, anyName) })
}

func (g *generator) input() *input {
	in := &input{cfg: &brain.Config{NodeName: one(g, anyName), LocalDetector: detector(g), MasqueradeAll: g.bool()}}
	if g.byte()%8 == 1 {
		in.cfg.ServiceProxyName = "a"
	}
	if g.byte()%4 != 1 {
		in.node = &model.Node{Name: in.cfg.NodeName, Zone: one(g, anyName), Addresses: g.addrs()}
	}
	if g.byte()%32 != 1 {
		in.svc = g.service()
	}
	in.slices = list(g, g.slice)
	if g.bool() {
		in.cfg.MaxEntries = int64(g.byte())
	}
	if g.byte()%4 == 1 {
		in.cfg.ExternalIPs = list(g, func() netip.Prefix { return one(g, anyPrefix) })
	}
	in.cfg.TCPLingers, in.cfg.Ping = g.bool(), g.bool()
	g.annotate(in)
	g.edge(in)
	return in
}

// edge turns the edge on for half of all inputs. Few nodes do not take part.
func (g *generator) edge(in *input) {
	if g.bool() {
		return
	}
	in.cfg.Edge = brain.Edge{Enabled: true, Annotated: g.byte()%8 == 1, Kinds: state.FrontendKinds(g.byte() & 0x1e)}
	if in.svc != nil {
		if value := one(g, []string{"", "true", "false", "yes"}); value != "" {
			in.svc.Annotations = append(in.svc.Annotations, model.Annotation{Name: model.EdgeAnnotation, Value: value})
		}
	}
	for _, s := range in.slices {
		if s == nil || g.bool() {
			continue
		}
		for i := range s.Endpoints {
			s.Endpoints[i].NodeApart = g.byte()%8 == 1
		}
	}
}

// annotate gives half of all services a slow start or zone weights, and endpoints zones and ages.
func (g *generator) annotate(in *input) {
	if in.svc == nil || g.bool() {
		return
	}
	in.svc.Annotations = []model.Annotation{
		{Name: model.SlowStartAnnotation, Value: one(g, []string{"8s", "1h", "0s"})},
		{Name: model.ZoneWeightsAnnotation, Value: one(g, []string{"same=4,other=1", "same=1,other=0", "other=65535,same=0", "same=9,other=9", "same"})},
	}
	for i := byte(1); i <= 3; i++ {
		if age := g.byte(); age < 128 {
			in.cfg.Young = append(in.cfg.Young, brain.Young{Addr: netip.AddrFrom4([4]byte{10, 1, 0, i}), Age: age % brain.SlowStartSteps})
		}
	}
	for _, s := range in.slices {
		if s == nil {
			continue
		}
		for i := range s.Endpoints {
			s.Endpoints[i].Zone = one(g, anyName)
		}
		if g.bool() {
			s.Weight = one(g, []string{"0", "3", "65535", "x"})
		}
	}
}

func (g *generator) service() *model.Service {
	return &model.Service{
		Name:                state.ServiceName{Namespace: "ns", Name: one(g, anyName)},
		HasProxyName:        g.byte()%16 == 1,
		ProxyName:           one(g, anyName),
		Type:                one(g, anyType),
		Headless:            g.byte()%16 == 1,
		ClusterIPs:          append(g.addrs(), anyAddr[g.byte()%2]),
		ExternalIPs:         g.addrs(),
		LoadBalancerIPs:     g.addrs(),
		SourceRanges:        list(g, func() netip.Prefix { return one(g, anyPrefix) }),
		InternalLocal:       g.bool(),
		ExternalLocal:       g.bool(),
		Affinity:            one(g, anyTimeout),
		HealthCheckNodePort: one(g, anyPort),
		Ports: list(g, func() model.ServicePort {
			return model.ServicePort{
				Name: one(g, anyName), Protocol: one(g, anyProtocol), Port: one(g, anyPort), NodePort: one(g, anyPort),
			}
		}),
	}
}

func (g *generator) slice() *model.EndpointSlice {
	if g.byte()%32 == 1 {
		return nil
	}
	return &model.EndpointSlice{
		Namespace: "ns", Name: one(g, anyName), Service: "a",
		HasProxyName: g.byte()%16 == 1, ProxyName: one(g, anyName),
		Headless: g.byte()%16 == 1,
		Family:   one(g, anyFamily),
		Ports: list(g, func() model.EndpointPort {
			return model.EndpointPort{Name: one(g, anyName), Protocol: one(g, anyProtocol), Port: one(g, anyPort)}
		}),
		Endpoints: list(g, func() model.Endpoint {
			conditions := g.byte()
			e := model.Endpoint{
				Addr: g.addr(), Ready: conditions&1 == 0, Serving: conditions&2 == 0, Terminating: conditions&12 == 12,
				NodeName: one(g, anyName),
			}
			if g.bool() {
				e.ZoneHints, e.NodeHints = g.names(), g.names()
			}
			return e
		}),
	}
}

// shuffle changes the order of all that has none: slices, their ports and endpoints, and hints.
func (in *input) shuffle(r *rand.Rand) {
	shuffle(r, in.slices)
	for _, s := range in.slices {
		if s == nil {
			continue
		}
		shuffle(r, s.Ports)
		shuffle(r, s.Endpoints)
		for _, e := range s.Endpoints {
			shuffle(r, e.ZoneHints)
			shuffle(r, e.NodeHints)
		}
	}
}

func shuffle[T any](r *rand.Rand, s []T) {
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

// detector returns one that sees the pods of some families.
func detector(g *generator) (d state.LocalDetector) {
	for _, p := range prefixes("10.0.0.0/8 fd00::/8") {
		if g.bool() {
			d.ClusterCIDRs = append(d.ClusterCIDRs, p)
		}
	}
	return d
}
