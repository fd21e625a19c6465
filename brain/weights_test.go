package brain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// weighted is a slice whose endpoints have a weight.
func weighted(name, weight string, endpoints ...string) *model.EndpointSlice {
	s := slice(state.IPv4, endpoints...)
	s.Name, s.Weight = name, weight
	return s
}

func showWeights(r state.Route) string {
	if len(r.Endpoints) == 0 {
		return r.Verdict.String()
	}
	var list []string
	for _, e := range r.Endpoints {
		list = append(list, fmt.Sprintf("%v=%d", e.Addr.Addr(), e.Weight))
	}
	return strings.Join(list, " ")
}

func TestWeights(t *testing.T) {
	const a, b, c = "10.1.0.1", "10.1.0.2", "10.1.0.3"
	for _, test := range []struct {
		name             string
		slices           []*model.EndpointSlice
		route, lingering string
	}{
		{"none", []*model.EndpointSlice{weighted("a", "", a), weighted("b", "", b)}, a + "=0 " + b + "=0", ""},
		{"a canary", []*model.EndpointSlice{weighted("a", "95", a, b), weighted("b", "5", c)}, a + "=95 " + b + "=95 " + c + "=5", ""},
		{"the others have 1", []*model.EndpointSlice{weighted("a", "3", a), weighted("b", "", b)}, a + "=3 " + b + "=1", ""},
		{"all the same", []*model.EndpointSlice{weighted("a", "7", a), weighted("b", "7", b)}, a + "=0 " + b + "=0", ""},
		{"as without", []*model.EndpointSlice{weighted("a", "1", a), weighted("b", "", b)}, a + "=0 " + b + "=0", ""},
		{"the largest", []*model.EndpointSlice{weighted("a", "65535", a), weighted("b", "1", b)}, a + "=65535 " + b + "=1", ""},
		{"no new connections", []*model.EndpointSlice{weighted("a", "0", a), weighted("b", "", b)}, b + "=0", a},
		{"no weight left", []*model.EndpointSlice{weighted("a", "0", a), weighted("b", "0", b)}, "Reject", a + " " + b},
		{"those that terminate serve if no other has a weight", []*model.EndpointSlice{weighted("a", "0", a), weighted("b", "5", b+" dying")}, b + "=0", a},
		{"not ready ones have none", []*model.EndpointSlice{weighted("a", "9", a+" notready"), weighted("b", "5", b), weighted("c", "1", c)}, b + "=5 " + c + "=1", ""},
		{"bad values count as absent", []*model.EndpointSlice{weighted("a", "70%", a), weighted("b", "-1", b), weighted("c", "65536", c)},
			a + "=0 " + b + "=0 " + c + "=0", ""},
		{"an endpoint in two slices has the larger one", []*model.EndpointSlice{weighted("a", "2", a, b), weighted("b", "9", b)}, a + "=2 " + b + "=9", ""},
		{"a weight of zero loses to another", []*model.EndpointSlice{weighted("a", "0", a), weighted("b", "9", a), weighted("c", "1", b)}, a + "=9 " + b + "=1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			svc := service()
			svc.Ports = []model.ServicePort{{Name: "dns", Protocol: state.UDP, Port: 53}}
			for _, s := range test.slices {
				s.Ports = []model.EndpointPort{{Name: "dns", Protocol: state.UDP, Port: 5353}}
			}
			rec := compute(t, config(), thisNode(), svc, test.slices...)
			p := &rec.Ports[0]
			if got := showWeights(p.Internal.Inside); got != test.route {
				t.Errorf("the route is %s, want %s", got, test.route)
			}
			var lingering []string
			for _, e := range p.Lingering {
				if lingering = append(lingering, e.Addr.Addr().String()); e.Weight != 0 {
					t.Errorf("%v lingers with a weight", e)
				}
			}
			if got := strings.Join(lingering, " "); got != test.lingering {
				t.Errorf("%q lingers, want %q", got, test.lingering)
			}
		})
	}
}

// TestCiliumWeights: weights of Cilium count where the configuration accepts them.
func TestCiliumWeights(t *testing.T) {
	a, b := weighted("a", "3", "10.1.0.1"), weighted("b", "70%", "10.1.0.2")
	a.CiliumWeight, b.CiliumWeight = true, true
	for _, test := range []struct {
		accept string
		want   string
		bad    bool
	}{{"", "10.1.0.1=0 10.1.0.2=0", false}, {"loxilb.io", "10.1.0.1=0 10.1.0.2=0", false}, {"cilium.io", "10.1.0.1=3 10.1.0.2=1", true}} {
		cfg := config()
		cfg.AcceptAnnotationsOf = []string{test.accept}
		rec := compute(t, cfg, thisNode(), service(), a, b)
		if got := showWeights(rec.Ports[0].Internal.Inside); got != test.want || brain.BadWeight(cfg, a) || brain.BadWeight(cfg, b) != test.bad {
			t.Errorf("%q: %s, want %s; b is bad: %t", test.accept, got, test.want, brain.BadWeight(cfg, b))
		}
	}
}

// TestExplainWeightZero: the reason names the annotation's effect.
func TestExplainWeightZero(t *testing.T) {
	e := brain.Explain(config(), thisNode(), service(), []*model.EndpointSlice{weighted("a", "0", "10.1.0.1"), weighted("b", "", "10.1.0.2")})
	got := map[string]brain.Reason{}
	for _, r := range e.Ports[0].Endpoints {
		got[r.Addr.Addr().String()] = r.Unusable
	}
	if got["10.1.0.1"] != brain.NoWeight || got["10.1.0.2"] != "" {
		t.Errorf("got %v", got)
	}
}
