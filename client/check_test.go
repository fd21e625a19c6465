package client

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// full is a service in which everything occurs that may.
func full() *localnetv1.ServiceEndpoints {
	v6 := netip.MustParseAddr("2001:db8::1").AsSlice()
	forward := &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_FORWARD, Endpoints: []uint32{0, 1}, Weights: []uint32{65535, 1}, RefusedWeight: 1 << 31}
	drop := func() *localnetv1.Route { return &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_DROP} }
	return &localnetv1.ServiceEndpoints{
		Namespace: "shop", Name: "dns",
		Ports: []*localnetv1.Port{
			{
				Name: "dns", Protocol: localnetv1.Protocol_PROTOCOL_UDP, Family: localnetv1.Family_FAMILY_IPV4, AffinitySeconds: 10800,
				Balance: localnetv1.Balance_BALANCE_HASH_CLIENT, Ejection: true, DrainSeconds: 86400,
				Frontends: []*localnetv1.Frontend{
					{Kind: localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: []byte{10, 96, 0, 1}, Port: 53, Ping: true},
					{Kind: localnetv1.FrontendKind_FRONTEND_KIND_LOAD_BALANCER, Address: []byte{192, 0, 2, 1}, Port: 53, Restricted: true, SourceRanges: new(uint32(1))},
					{Kind: localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT, Port: 30053},
				},
				Endpoints: []*localnetv1.Endpoint{
					{Address: []byte{10, 1, 0, 1}, Port: 5353}, {Address: []byte{10, 1, 0, 2}, Port: 5353, Local: true}, {Address: []byte{10, 1, 0, 3}, Port: 65535}},
				Internal:  &localnetv1.Traffic{Inside: forward, Outside: drop(), Masquerade: localnetv1.Masquerade_MASQUERADE_NEVER},
				External:  &localnetv1.Traffic{Inside: drop(), Outside: drop(), Masquerade: localnetv1.Masquerade_MASQUERADE_NODE},
				Lingering: []uint32{2},
			},
			{
				Name: "dns", Protocol: localnetv1.Protocol_PROTOCOL_UDP, Family: localnetv1.Family_FAMILY_IPV6,
				Frontends: []*localnetv1.Frontend{{Kind: localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, Address: v6, Port: 53}},
				Internal: &localnetv1.Traffic{Inside: &localnetv1.Route{Verdict: localnetv1.Verdict_VERDICT_REJECT}, Outside: drop(),
					Masquerade: localnetv1.Masquerade_MASQUERADE_ALWAYS},
			},
		},
		HealthCheck: &localnetv1.HealthCheck{Port: 30100, LocalIpv4: 1},
		SourceRanges: []*localnetv1.SourceRanges{
			{Ranges: []*localnetv1.Prefix{{Address: v6, Length: 128}}},
			{Ranges: []*localnetv1.Prefix{{Address: []byte{10, 0, 0, 0}, Length: 8}, {Address: []byte{0, 0, 0, 0}}}},
		},
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	if err := Check(full()); err != nil {
		t.Fatalf("a good service: %v", err)
	}
	mapped := netip.MustParseAddr("::ffff:192.0.2.1").AsSlice()
	for _, c := range []struct {
		spoil func(s *localnetv1.ServiceEndpoints, p *localnetv1.Port)
		want  string
	}{
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.Name = "" }, "service shop/: the name"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.Namespace = "" }, "service /dns: the name or namespace"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.HealthCheck.Port = 0 }, "health_check.port: 0"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Protocol = 0 }, "protocol: it is not set"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Protocol = 33 }, "protocol: 33 is not known"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Family = 5 }, "family: 5 is not known"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Family = 6 }, "frontends[0].address: 10.96.0.1 is not of the family"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends = nil }, "frontends: there are none"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[1].Kind = 9 }, "frontends[1].kind: 9"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[1].Address = nil }, "frontends[1].address: 0 bytes"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[1].Address = mapped }, "frontends[1].address: ::ffff:192.0.2.1"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[2].Address = []byte{1, 2, 3, 4} }, "frontends[2].address: a node port"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[2].Port = 65536 }, "frontends[2].port: 65536"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.SourceRanges[1].Ranges[0].Length = 33 }, "frontends[1].source_ranges: list 1: ranges[0].length: 33"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.SourceRanges[1].Ranges[0].Length = 1 << 31 }, "ranges[0].length"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.SourceRanges[1].Ranges[0].Length = 6 }, "ranges[0].address: 10.0.0.0/6 is not masked"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.SourceRanges[1].Ranges[1].Address = nil }, "ranges[1].address: 0 bytes"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) {
			s.SourceRanges[1].Ranges[1].Address = make([]byte, 16)
		}, "ranges[1].address: :: is not of the family FAMILY_IPV4"},
		{func(s *localnetv1.ServiceEndpoints, _ *localnetv1.Port) { s.SourceRanges[1].Ranges = nil }, "list 1: ranges: there are none"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[1].SourceRanges = new(uint32(0)) }, "frontends[1].source_ranges: list 0 is of the family FAMILY_IPV6"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[1].SourceRanges = new(uint32(2)) }, "frontends[1].source_ranges: there is no list 2; the service has 2"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[1].Restricted = false }, "frontends[1].source_ranges: it is set, but restricted is not"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Endpoints[2].Address = make([]byte, 16) }, "endpoints[2].address: ::"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Endpoints[0].Port = 0 }, "endpoints[0].port: 0"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal = nil }, "internal.inside.verdict: it is not set"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.External.Outside = nil }, "external.outside.verdict: it is not set"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.External.Inside.Verdict = 77 }, "external.inside.verdict: 77"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Endpoints = nil }, "internal.inside.verdict: VERDICT_FORWARD with 0"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.External.Inside.Endpoints = []uint32{0} }, "inside.verdict: VERDICT_DROP with 1"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Endpoints[1] = 3 }, "internal.inside.endpoints[1]: there is no endpoint 3"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Endpoints[1] = 1<<32 - 1 }, "internal.inside.endpoints[1]"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Endpoints[1] = 0 }, "internal.inside.endpoints[1]: 0 does not ascend"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Balance = 9 }, "balance: 9 is not known"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Weights[1] = 0 }, "internal.inside.weights[1]: 0 is not from"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Weights[0] = 65536 }, "internal.inside.weights[0]: 65536"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Inside.Weights = []uint32{1} }, "internal.inside.weights: there are 1 for 2"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.External.Outside.RefusedWeight = 1 }, "external.outside.refused_weight: 1 without"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[0].LastPort = 53 }, "frontends[0].last_port: 53 is not from 54"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[0].LastPort = 65536 }, "frontends[0].last_port: 65536"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[0].LastPort = 54 }, "frontends[1].last_port: 0, but frontends[0] has 54"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) {
			for _, f := range p.Frontends {
				f.LastPort = 40000
			}
		}, "endpoints[0].port: 5353, but the frontends are ranges"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Frontends[2].Ping = true }, "frontends[2].ping: a node port"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Internal.Masquerade = 9 }, "internal.masquerade: 9"},
		{func(_ *localnetv1.ServiceEndpoints, p *localnetv1.Port) { p.Lingering[0] = 3 }, "lingering[0]: there is no endpoint 3"},
	} {
		s := full()
		c.spoil(s, s.Ports[0])
		err := Check(s)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "service ") {
			t.Errorf("error %v, want one that contains %q", err, c.want)
			continue
		}
		if CheckPort(s, s.Ports[0]) != nil && !strings.Contains(err.Error(), `port "dns" `) {
			t.Errorf("the error does not name the port: %v", err)
		}
		if err := CheckPort(s, s.Ports[1]); err != nil {
			t.Errorf("the other port is wrong, too: %v", err)
		}
	}
	s := full()
	s.Ports[1].Frontends[0].Address = mapped
	if err := Check(s); err == nil || !strings.Contains(err.Error(), "frontends[0].address: ::ffff:192.0.2.1") {
		t.Errorf("an IPv4 address in the guise of IPv6: error %v", err)
	}
	if err := Check(nil); err == nil {
		t.Error("no service at all is a good one")
	}
}

func TestHelpers(t *testing.T) {
	s := full()
	p := s.Ports[0]
	var got []netip.AddrPort
	for e := range Endpoints(p, []uint32{1, 17, 2}) {
		got = append(got, AddrPort(e))
	}
	if want := []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:5353"), netip.MustParseAddrPort("10.1.0.3:65535")}; !slices.Equal(got, want) {
		t.Errorf("endpoints: %v, want %v", got, want)
	}
	for range Endpoints(p, []uint32{0, 1}) {
		break
	}
	if got := AddrPort(p.Frontends[2]); got.IsValid() || got.Port() != 30053 {
		t.Errorf("a node port's address: %v", got)
	}
	if got := AddrPort(&localnetv1.Endpoint{Address: []byte{1, 2, 3, 4}, Port: 70000}); got != (netip.AddrPort{}) {
		t.Errorf("an impossible port: %v", got)
	}
	if got := SourceRanges(s, p.Frontends[1]); len(got) != 2 || Prefix(got[0]).String() != "10.0.0.0/8" {
		t.Errorf("source ranges: %v", got)
	}
	for _, f := range []*localnetv1.Frontend{nil, {}, p.Frontends[0], {SourceRanges: new(uint32(2))}} {
		if got := SourceRanges(s, f); got != nil {
			t.Errorf("source ranges of %v: %v", f, got)
		}
	}
	for _, bad := range []*localnetv1.Prefix{nil, {Address: []byte{1}}, {Address: []byte{1, 2, 3, 4}, Length: 33}, {Address: []byte{1, 2, 3, 4}, Length: 1<<32 - 1}} {
		if got := Prefix(bad); got != (netip.Prefix{}) {
			t.Errorf("prefix %v: %v", bad, got)
		}
	}
}

// FuzzCheck makes sure that nothing a server may send makes a dataplane stumble, and that what passes can be read in full.
func FuzzCheck(f *testing.F) {
	for _, s := range []*localnetv1.ServiceEndpoints{full(), service("web", 1, 3), {}} {
		b, err := proto.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s localnetv1.ServiceEndpoints
		if proto.Unmarshal(b, &s) != nil {
			return
		}
		good := Check(&s) == nil
		for _, p := range s.Ports {
			lists := [][]uint32{p.GetInternal().GetInside().GetEndpoints(), p.GetInternal().GetOutside().GetEndpoints(),
				p.GetExternal().GetInside().GetEndpoints(), p.GetExternal().GetOutside().GetEndpoints(), p.GetLingering()}
			internal, external := false, false
			for _, f := range p.GetFrontends() {
				isInternal := f.Kind == localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP
				internal, external = internal || isInternal, external || !isInternal
				if addr := AddrPort(f); good && (addr.Port() == 0 || addr.IsValid() == (f.Kind == localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT)) {
					t.Errorf("frontend %v passes with address %v", f, addr)
				}
				for _, source := range SourceRanges(&s, f) {
					if prefix := Prefix(source); good && !prefix.IsValid() {
						t.Errorf("source %v passes", source)
					}
				}
			}
			used := []bool{internal, internal, external, external, true}
			for i, list := range lists {
				n := 0
				for e := range Endpoints(p, list) {
					n++
					if addr := AddrPort(e); good && !addr.IsValid() {
						t.Errorf("endpoint %v passes", e)
					}
				}
				if good && used[i] && n != len(list) {
					t.Errorf("of indices %v only %d lead to an endpoint", list, n)
				}
			}
		}
	})
}

// FuzzUpdate puts updates together from parts as a broken server might send them.
func FuzzUpdate(f *testing.F) {
	for _, parts := range [][]*localnetv1.WatchResponse{
		{whole(at(1, 1), full())},
		{{Full: true, Node: node("a"), Changed: []*localnetv1.ServiceEndpoints{full()}}, {Full: true, Position: at(1, 1)}},
		{{Removed: []*localnetv1.ServiceName{nil}}, {Full: true}},
	} {
		var all []byte
		for _, part := range parts {
			b, err := proto.Marshal(part)
			if err != nil {
				f.Fatal(err)
			}
			all = append(append(all, byte(len(b)>>8), byte(len(b))), b...)
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a assembly
		r := newReplica()
		for len(b) >= 2 {
			n := min(int(b[0])<<8|int(b[1]), len(b)-2)
			var part localnetv1.WatchResponse
			if proto.Unmarshal(b[2:2+n], &part) != nil {
				return
			}
			b = b[2+n:]
			u, err := a.add(&part)
			if err != nil {
				return
			}
			if u == nil {
				continue
			}
			r.update(u)
			all := r.snapshot()
			if len(all) != len(r.services) || !slices.IsSortedFunc(all, func(a, b *localnetv1.ServiceEndpoints) int { return NameOf(a).Compare(NameOf(b)) }) {
				t.Fatalf("the state is not whole or not in order: %v", all)
			}
			if u.Full && slices.ContainsFunc(all, func(s *localnetv1.ServiceEndpoints) bool {
				return !slices.ContainsFunc(u.Changed, func(c *localnetv1.ServiceEndpoints) bool { return NameOf(c) == NameOf(s) })
			}) {
				t.Fatalf("after a full update there is more than it has")
			}
		}
	})
}

// TestSnapshotsDoNotChange compares with a dumb twin, and looks at old snapshots again.
func TestSnapshotsDoNotChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := newReplica()
	var old, oldCopy []*localnetv1.ServiceEndpoints
	for range 2000 {
		u := &Update{Full: random.IntN(50) == 0}
		for range random.IntN(5) {
			u.Changed = append(u.Changed, service(string(rune('a'+random.IntN(26))), random.IntN(3), 1))
		}
		if name := (ServiceName{"shop", string(rune('a' + random.IntN(26)))}); !u.Full {
			u.Removed = append(u.Removed, name)
		}
		r.update(u)
		if random.IntN(3) == 0 {
			continue
		}
		got := r.snapshot()
		var want []*localnetv1.ServiceEndpoints
		for _, s := range r.services {
			want = append(want, s)
		}
		slices.SortFunc(want, func(a, b *localnetv1.ServiceEndpoints) int { return NameOf(a).Compare(NameOf(b)) })
		if !slices.Equal(got, want) {
			t.Fatalf("the snapshot has %v, want %v", result{items: got}.names(), result{items: want}.names())
		}
		if !slices.Equal(old, oldCopy) {
			t.Fatal("an old snapshot has changed")
		}
		old, oldCopy = got, slices.Clone(got)
	}
}
