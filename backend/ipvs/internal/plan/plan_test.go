package plan

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

func endpoint(a string) state.Endpoint { return state.Endpoint{Addr: netip.MustParseAddrPort(a)} }

var forward = recordtest.To

func none(Key) bool { return false }

// record has a port with a frontend of each kind, which treats all clients alike.
func record() *state.Service {
	r := forward("10.244.0.1:8080", "10.244.0.2:8080")
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}, Ports: []state.Port{{
		Name: "http", Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80},
			{Kind: state.ExternalIP, Addr: netip.MustParseAddr("192.0.2.10"), Port: 80},
			{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("203.0.113.10"), Port: 80},
			{Kind: state.NodePort, Port: 30080},
		},
		Internal: state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeUnlessPod},
		External: state.Traffic{Inside: r, Outside: r, Masquerade: state.MasqueradeAlways},
	}}}
}

// TestDivide: what IPVS can say it gets, and the base gets exactly the rest.
func TestDivide(t *testing.T) {
	all := []string{"10.96.0.10:80/TCP", "192.0.2.10:80/TCP", "203.0.113.10:80/TCP"}
	weigh := func(refused uint32, weights ...uint16) func(*state.Port) {
		return func(p *state.Port) {
			r := forward("10.244.0.1:8080", "10.244.0.2:8080")
			for i, w := range weights {
				r.Endpoints[i].Weight = w
			}
			r.Refused = refused
			p.External.Inside, p.External.Outside = r, r
		}
	}
	for name, c := range map[string]struct {
		change  func(*state.Port)
		o       Settings
		refused string
		want    []string
	}{
		"plain":   {want: all},
		"weights": {change: weigh(0, 1, 2), o: Settings{Weights: true}, want: all},
		"weights that the scheduler does not know": {change: weigh(0, 1, 2), want: all[:1]},
		"equal weights":                     {change: weigh(0, 7, 7), want: all},
		"a refused share":                   {change: weigh(1, 7, 7), o: Settings{Weights: true}, want: all[:1]},
		"a hash":                            {change: func(p *state.Port) { p.Balance = state.HashClient }},
		"least connections":                 {change: func(p *state.Port) { p.Balance = state.LeastConnections }, o: Settings{Counts: true}, want: all},
		"least connections, none can count": {change: func(p *state.Port) { p.Balance = state.LeastConnections }},
		"a deadline":                        {change: func(p *state.Port) { p.DrainSeconds = 30 }},
		"affinity":                          {change: func(p *state.Port) { p.Affinity = time.Hour }},
		"local policy":                      {change: func(p *state.Port) { p.External.Outside = forward("10.244.0.1:8080") }, want: all[:1]},
		"local, none":                       {change: func(p *state.Port) { p.External.Outside = state.Route{Verdict: state.Drop} }, want: all[:1]},
		"no endpoints": {change: func(p *state.Port) {
			p.Internal.Inside = state.Route{Verdict: state.Reject}
			p.Internal.Outside = p.Internal.Inside
		}, want: all[1:]},
		"restricted":      {change: func(p *state.Port) { p.Frontends[2].Restricted = true }, want: all[:2]},
		"excluded":        {o: Settings{Excluded: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, want: []string{all[0], all[2]}},
		"the machine's":   {o: Settings{Local: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}, want: []string{all[0], all[2]}},
		"refused":         {refused: all[0], want: all[1:]},
		"none is refused": {refused: "10.96.0.99:80/TCP", want: all},
	} {
		s := record()
		if c.change != nil {
			c.change(&s.Ports[0])
		}
		d := c.o.Divide(s, func(k Key) bool { return k.String() == c.refused })
		var got []string
		for _, server := range d.Servers {
			got = append(got, server.Key.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: IPVS serves %v, want %v", name, got, c.want)
		}
		var rest []state.Frontend
		for _, f := range s.Ports[0].Frontends {
			if !slices.Contains(got, Key{state.TCP, netip.AddrPortFrom(f.Addr, f.Port)}.String()) {
				rest = append(rest, f)
			}
		}
		base := d.Base.Ports
		if len(base) != 1 || !slices.EqualFunc(base[0].Frontends, rest, state.Frontend.Equal) {
			t.Errorf("%s: the base has %+v, want the frontends %v", name, base, rest)
		}
		if len(got) == 0 && d.Base != s {
			t.Errorf("%s: the base gets a copy of a record though IPVS serves nothing of it", name)
		}
		if !s.Equal(d.Record) {
			t.Errorf("%s: the record was changed", name)
		}
	}
}

func TestMasqueradeByKind(t *testing.T) {
	d := (&Settings{}).Divide(record(), none)
	for i, want := range []state.Masquerade{state.MasqueradeUnlessPod, state.MasqueradeAlways, state.MasqueradeAlways} {
		if got := d.Servers[i].Masquerade; got != want {
			t.Errorf("%v: masquerade %v, want %v", d.Servers[i].Key, got, want)
		}
	}
}

// TestPortWithoutFrontends: a base that resets connections to endpoints that it does not know gets all endpoints.
func TestPortWithoutFrontends(t *testing.T) {
	s := record()
	s.Ports[0].Frontends = s.Ports[0].Frontends[:3]
	if d := (&Settings{}).Divide(s, none); len(d.Base.Ports) != 0 {
		t.Errorf("the base has %+v", d.Base.Ports)
	}
	d := (&Settings{Connections: true}).Divide(s, none)
	if len(d.Base.Ports) != 1 || len(d.Base.Ports[0].Frontends) != 0 || !d.Base.Ports[0].Internal.Equal(&s.Ports[0].Internal) {
		t.Errorf("the base has %+v, want the port without frontends", d.Base.Ports)
	}
}

// TestLingeringUDP: an endpoint that serves the port by another route keeps its flows.
func TestLingeringUDP(t *testing.T) {
	s := record()
	p := &s.Ports[0]
	p.Protocol = state.UDP
	p.External.Outside = forward("10.244.0.2:8080", "10.244.0.3:8080")
	p.Lingering = []state.Endpoint{endpoint("10.244.0.4:8080")}
	d := (&Settings{}).Divide(s, none)
	want := []state.Endpoint{endpoint("10.244.0.3:8080"), endpoint("10.244.0.4:8080")}
	if len(d.Servers) != 1 || !slices.Equal(d.Servers[0].Lingering, want) {
		t.Fatalf("servers %+v, want one with lingering endpoints %v", d.Servers, want)
	}
	if v := &d.Servers[0]; !v.Keeps(want[0].Addr) || v.Has(want[0].Addr) || !v.Has(netip.MustParseAddrPort("10.244.0.1:8080")) {
		t.Error("Has and Keeps do not agree with that")
	}
	if got := Serving(s, Key{state.UDP, netip.MustParseAddrPort("10.96.0.10:80")}); len(got) != 4 {
		t.Errorf("serving are %v, want four", got)
	}
	if got := Serving(s, Key{state.TCP, netip.MustParseAddrPort("10.96.0.10:80")}); got != nil {
		t.Errorf("serving another protocol are %v", got)
	}
}

func TestServed(t *testing.T) {
	s := record()
	was := (&Settings{}).Divide(s, none)
	moved := record()
	moved.Ports[0].Affinity = time.Hour
	is := (&Settings{}).Divide(moved, none)
	if got := Served(is, nil); len(got.Ports) != 0 {
		t.Errorf("served is %+v, want nothing", got)
	}
	if got := Served(is, was); len(got.Ports) != 1 || len(got.Ports[0].Frontends) != 3 {
		t.Errorf("served now or before is %+v, want three frontends", got)
	}
	if Served(nil, was) != nil {
		t.Error("a service that is gone has something")
	}
}
