package brain_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// annotated is a service with a slow start and zone weights, each empty for none.
func annotated(slowStart, zoneWeights string) *model.Service {
	svc := service()
	for _, a := range []model.Annotation{{Name: model.SlowStartAnnotation, Value: slowStart}, {Name: model.ZoneWeightsAnnotation, Value: zoneWeights}} {
		if a.Value != "" {
			svc.Annotations = append(svc.Annotations, a)
		}
	}
	return svc
}

// young reads "address=age ...".
func young(text string) (list []brain.Young) {
	for item := range strings.FieldsSeq(text) {
		addr, age, _ := strings.Cut(item, "=")
		list = append(list, brain.Young{Addr: netip.MustParseAddr(addr), Age: age[0] - '0'})
	}
	return list
}

// TestZoneWeights: node1 is in zone a.
func TestZoneWeights(t *testing.T) {
	const a, b, c = "10.1.0.1", "10.1.0.2", "10.1.0.3"
	for _, test := range []struct {
		name, weights string
		endpoints     []string
		route         string
		lingering     string
	}{
		{"more for the zone", "same=4,other=1", []string{a + " zone=a", b + " zone=b", c + " zone=c"}, a + "=4 " + b + "=1 " + c + "=1", ""},
		{"lowest terms", "other=6, same=4", []string{a + " zone=a", b + " zone=b"}, a + "=2 " + b + "=3", ""},
		{"none here", "same=4,other=1", []string{a + " zone=c", b + " zone=b"}, a + "=0 " + b + "=0", ""},
		{"all here", "same=4,other=1", []string{a + " zone=a", b + " zone=a"}, a + "=0 " + b + "=0", ""},
		{"only the zone", "same=4,other=0", []string{a + " zone=a", b + " zone=b"}, a + "=0", b},
		{"only the zone while it has any", "same=4,other=0", []string{a + " zone=a notready", b + " zone=b"}, b + "=0", ""},
		{"only other zones", "same=0,other=1", []string{a + " zone=a", b + " zone=b"}, b + "=0", a},
		{"only other zones while they have any", "same=0,other=1", []string{a + " zone=a"}, a + "=0", ""},
		{"an endpoint without a zone", "same=4,other=0", []string{a + " zone=a", b}, a + "=0 " + b + "=0", ""},
		{"an endpoint that is not ready, without a zone", "same=4,other=0", []string{a + " zone=a", b + " notready", c + " zone=b"}, a + "=0", c},
		{"they replace hints for zones", "same=4,other=1", []string{a + " zone=a zones=b", b + " zone=b zones=a"}, a + "=4 " + b + "=1", ""},
		{"hints for nodes win", "same=0,other=1", []string{a + " zone=a nodes=node1", b + " zone=b nodes=other"}, a + "=0", b},
		{"hints for other nodes only", "same=3,other=1", []string{a + " zone=a nodes=other", b + " zone=b nodes=other"}, a + "=3 " + b + "=1", ""},
		{"none is ready", "same=4,other=0", []string{a + " zone=a dying", b + " zone=b dying"}, a + "=0 " + b + "=0", ""},
		{"a bad value", "same=4", []string{a + " zone=a zones=a", b + " zone=b zones=b"}, a + "=0", b},
	} {
		t.Run(test.name, func(t *testing.T) {
			svc := annotated("", test.weights)
			svc.Ports[0].Protocol = state.UDP
			s := slice(state.IPv4, test.endpoints...)
			s.Ports[0].Protocol = state.UDP
			p := &compute(t, config(), thisNode(), svc, s).Ports[0]
			if got := showWeights(p.Internal.Inside); got != test.route {
				t.Errorf("the route is %s, want %s", got, test.route)
			}
			if got := strings.ReplaceAll(showEndpoints(p.Lingering), ":8080", ""); got != test.lingering {
				t.Errorf("%q lingers, want %q", got, test.lingering)
			}
			elsewhere := thisNode()
			elsewhere.Zone = ""
			nowhere := compute(t, config(), elsewhere, svc, s).Ports[0].Internal.Inside
			if slices.ContainsFunc(nowhere.Endpoints, func(e state.Endpoint) bool { return e.Weight != 0 }) {
				t.Errorf("on a node without a zone the route is %s", showWeights(nowhere))
			}
		})
	}
}

// TestZoneWeightsAndPolicies: zone weights concern policy Cluster only. Policy Local has its own endpoints, with the weights of their slices.
func TestZoneWeightsAndPolicies(t *testing.T) {
	svc := annotated("", "same=0,other=3")
	svc.InternalLocal, svc.ExternalLocal, svc.Type, svc.Ports[0].NodePort = true, true, model.TypeNodePort, 30080
	a, b := weighted("a", "5", "10.1.0.1 zone=a here", "10.1.0.2 zone=b"), weighted("b", "2", "10.1.0.3 zone=a here", "10.1.0.4 zone=b")
	p := &compute(t, config(), thisNode(), svc, a, b).Ports[0]
	const local, cluster = "10.1.0.1=5 10.1.0.3=2", "10.1.0.2=5 10.1.0.4=2"
	for i, test := range []struct {
		route state.Route
		want  string
	}{{p.Internal.Inside, local}, {p.Internal.Outside, local}, {p.External.Outside, local}, {p.External.Inside, cluster}} {
		if got := showWeights(test.route); got != test.want {
			t.Errorf("route %d is %s, want %s", i, got, test.want)
		}
	}
}

// TestSlowStart: the weight of a young endpoint is the weight of the others, times its age.
func TestSlowStart(t *testing.T) {
	const a, b, c = "10.1.0.1", "10.1.0.2", "10.1.0.3"
	for _, test := range []struct{ name, slowStart, zones, young, route string }{
		{"nobody is young", "30s", "", "", a + "=0 " + b + "=0 " + c + "=0"},
		{"one that has just come", "30s", "", b + "=0", a + "=10 " + b + "=1 " + c + "=10"},
		{"after an eighth", "30s", "", b + "=1", a + "=8 " + b + "=1 " + c + "=8"},
		{"after a half", "30s", "", b + "=4", a + "=2 " + b + "=1 " + c + "=2"},
		{"after most of it", "30s", "", b + "=7", a + "=8 " + b + "=7 " + c + "=8"},
		{"two ages", "30s", "", a + "=0 " + c + "=4", a + "=1 " + b + "=10 " + c + "=5"},
		{"all are as old", "30s", "", a + "=2 " + b + "=2 " + c + "=2", a + "=0 " + b + "=0 " + c + "=0"},
		{"with zone weights", "30s", "same=4,other=1", a + "=4", a + "=2 " + b + "=1 " + c + "=1"},
		{"without the annotation", "", "", b + "=4", a + "=0 " + b + "=0 " + c + "=0"},
		{"a bad value", "30", "", b + "=4", a + "=0 " + b + "=0 " + c + "=0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := config()
			cfg.Young = young(test.young)
			rec := compute(t, cfg, thisNode(), annotated(test.slowStart, test.zones), slice(state.IPv4, a+" zone=a", b+" zone=b", c+" zone=b"))
			if got := showWeights(rec.Ports[0].Internal.Inside); got != test.route {
				t.Errorf("the route is %s, want %s", got, test.route)
			}
		})
	}
}

// TestYoungAndTerminating: endpoints that serve while they terminate have come long ago.
func TestYoungAndTerminating(t *testing.T) {
	cfg := config()
	cfg.Young = young("10.1.0.1=0")
	rec := compute(t, cfg, thisNode(), annotated("30s", ""), slice(state.IPv4, "10.1.0.1 dying", "10.1.0.2 dying"))
	if got := showWeights(rec.Ports[0].Internal.Inside); got != "10.1.0.1=0 10.1.0.2=0" {
		t.Errorf("the route is %s", got)
	}
}

// TestProductsKeepRatios multiplies random weights of slices, zones and ages. The weights of the record have the ratios of the products, as far as
// 16 bits have room for them.
func TestProductsKeepRatios(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	weight := func() int { return 1 + r.IntN([]int{3, 100, 65535}[r.IntN(3)]) }
	scaled := 0
	for range 2000 {
		same, other := weight(), weight()
		cfg := config()
		var from []*model.EndpointSlice
		var products []float64
		for i := range 2 + r.IntN(4) {
			w, zone, age := weight(), []string{"a", "b"}[i%2], r.IntN(9)
			addr := fmt.Sprintf("10.1.0.%d", i+1)
			from = append(from, weighted(addr, fmt.Sprint(w), addr+" zone="+zone))
			factor := 1.0
			if age < brain.SlowStartSteps {
				cfg.Young = append(cfg.Young, brain.Young{Addr: netip.MustParseAddr(addr), Age: uint8(age)})
				factor = math.Max(0.1, float64(age)/8)
			}
			products = append(products, float64(w)*float64([]int{same, other}[i%2])*factor)
		}
		route := compute(t, cfg, thisNode(), annotated("1h", fmt.Sprintf("same=%d,other=%d", same, other)), from...).Ports[0].Internal.Inside
		largest, most := slices.Max(products), 0.0
		for _, w := range route.Weights() {
			most = max(most, float64(w))
		}
		for i, w := range route.Weights() {
			want := products[i] / largest * most
			if math.Abs(float64(w)-want) > 0.5+1e-6*most && !(w == 1 && want < 1) {
				t.Fatalf("products %v have the weights %v", products, route.Weights())
			}
		}
		if most == 65535 {
			scaled++
		}
	}
	if scaled < 100 || scaled > 1900 {
		t.Errorf("%d of 2000 have been scaled to 16 bits: the test is one-sided", scaled)
	}
}

// TestBadShares: other values count as absent, and say what they must be.
func TestBadShares(t *testing.T) {
	for name, values := range map[string]map[string]bool{
		model.ZoneWeightsAnnotation: {"same=4,other=1": true, "other=0,same=65535": true, " same=1 , other=1 ": true, "same=0,other=0": false, "same=65536,other=1": false,
			"same=4": false, "same=4,other=1,same=4": false, "same=4,other=1,far=0": false, "same=4;other=1": false, "same=-1,other=1": false, "same=1.5,other=1": false,
			"same=,other=1": false, "Same=4,other=1": false, "": false, "4,1": false},
		model.SlowStartAnnotation: {"1s": true, "30s": true, "1h": true, "1m30s": true, "0s": false, "500ms": false, "1500ms": false, "3601s": false, "-5s": false,
			"30": false, "": false, "9999999999h": false},
	} {
		for value, good := range values {
			svc := service()
			svc.Annotations = []model.Annotation{{Name: name, Value: value}}
			bad := brain.BadAnnotations(config(), svc)
			if len(bad) > 0 == good || !good && (bad[0].Name != name || !strings.Contains(bad[0].Want, "whole")) {
				t.Errorf("%s %q: bad are %v", name, value, bad)
			}
			if s := brain.SettingsOf(config(), svc); (s.SlowStart > 0 || s.ZoneWeights != brain.ZoneWeights{}) != good {
				t.Errorf("%s %q: settings are %+v", name, value, s)
			}
			if length := brain.SlowStartOf(config(), svc); length > 0 != (good && name == model.SlowStartAnnotation) {
				t.Errorf("%s %q: the slow start takes %v", name, value, length)
			}
		}
	}
	if svc := annotated("30s", ""); brain.SlowStartOf(config(), svc) == 0 {
		t.Error("a good annotation does not count")
	} else if svc.Headless = true; brain.SlowStartOf(config(), svc) != 0 {
		t.Error("the annotation of a Service that is not routed counts")
	}
}

// TestExplainShares: each endpoint has its factors.
func TestExplainShares(t *testing.T) {
	cfg := config()
	cfg.Young = young("10.1.0.2=3")
	show := func(zones string) string {
		e := brain.Explain(cfg, thisNode(), annotated("30s", zones), []*model.EndpointSlice{slice(state.IPv4, "10.1.0.1 zone=a", "10.1.0.2 zone=b", "10.1.0.3 zone=b notready")})
		p := &e.Ports[0]
		var text strings.Builder
		text.WriteString(string(p.Zones + p.ZoneHints))
		for _, r := range p.Endpoints {
			fmt.Fprintf(&text, " %d:%d*%v%v", r.Weight, r.ZoneWeight, r.SlowStart, r.Cluster)
		}
		return text.String()
	}
	for zones, want := range map[string]string{
		"":               "NoHints 8:0*0[] 3:0*0.375[] 0:0*0[NotReady]",
		"same=2,other=3": "Used 16:2*0[] 9:3*0.375[] 0:0*0[NotReady]",
		"same=2,other=0": "Used 1:0*0[] 0:0*0[NoZoneWeight] 0:0*0[NotReady]",
	} {
		if got := show(zones); got != want {
			t.Errorf("%q: %s, want %s", zones, got, want)
		}
	}
}
