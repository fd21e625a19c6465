package brain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestEject: the annotation wins over the configuration. It counts for ports of TCP, in both families. Other values count as absent.
func TestEject(t *testing.T) {
	for _, test := range []struct {
		annotated       bool
		value           string
		configured      bool
		ejects, problem bool
	}{
		{false, "", false, false, false}, {false, "", true, true, false}, {true, "true", false, true, false}, {true, "true", true, true, false},
		{true, "false", true, false, false}, {true, "yes", true, true, true}, {true, "", false, false, true}, {true, "True", false, false, true},
	} {
		svc := service()
		if test.annotated {
			svc.Annotations = []model.Annotation{{Name: model.EjectAnnotation, Value: test.value}}
		}
		svc.ClusterIPs = addrs("10.96.0.1 fd96::1")
		svc.Ports = append(svc.Ports, model.ServicePort{Name: "dns", Protocol: state.UDP, Port: 53}, model.ServicePort{Name: "s", Protocol: state.SCTP, Port: 7})
		cfg := config()
		cfg.Ejection = test.configured
		rec := compute(t, cfg, thisNode(), svc)
		tcp := 0
		for _, p := range rec.Ports {
			if p.Ejection != (test.ejects && p.Protocol == state.TCP) {
				t.Errorf("%+v: %v of %v ejects: %v", test, p.Protocol, p.Family, p.Ejection)
			}
			if p.Protocol == state.TCP {
				tcp++
			}
		}
		if bad := brain.BadAnnotations(cfg, svc); tcp != 2 || len(bad) > 0 != test.problem || test.problem && bad[0].Want != "true or false" {
			t.Errorf("%+v: %d ports of TCP, bad are %v", test, tcp, bad)
		}
	}
}

// TestBalance: the annotation counts in both families, unless the service has session affinity. Other values count as absent.
func TestBalance(t *testing.T) {
	for _, test := range []struct {
		value    string
		affinity time.Duration
		want     state.Balance
		bad      bool
	}{
		{"random", 0, state.Random, false},
		{"hash", 0, state.HashClient, false},
		{"hash-connection", 0, state.HashConnection, false},
		{"hash", time.Hour, state.Random, false},
		{"hash", time.Millisecond, state.HashClient, false}, // no affinity, in whole seconds
		{"least-connections", 0, state.LeastConnections, false},
		{"least-connections", time.Hour, state.Random, false},
		{"Hash", 0, state.Random, true},
		{" hash", 0, state.Random, true},
		{"nonsense", time.Hour, state.Random, true},
	} {
		svc := service()
		svc.Annotations, svc.Affinity = []model.Annotation{{Name: model.BalanceAnnotation, Value: test.value}}, test.affinity
		svc.ClusterIPs = addrs("10.96.0.1 fd96::1")
		rec := compute(t, config(), thisNode(), svc, slice(state.IPv4, "10.1.0.1"), slice(state.IPv6, "fd01::1"))
		for _, p := range rec.Ports {
			if p.Balance != test.want {
				t.Errorf("%q with an affinity of %v: %v in %v, want %v", test.value, test.affinity, p.Balance, p.Family, test.want)
			}
		}
		if bad := brain.BadAnnotations(config(), svc); len(bad) > 0 != test.bad || len(rec.Ports) != 2 {
			t.Errorf("%q: bad are %v, want %t; %d ports", test.value, bad, test.bad, len(rec.Ports))
		}
		if svc.Headless = true; brain.BadAnnotations(config(), svc) != nil || brain.BadAnnotations(config(), nil) != nil {
			t.Errorf("%q is bad for a service that is not routed", test.value)
		}
	}
}

// TestPing: the annotation, or else the configuration, decides for all addresses of a service, whatever its endpoints, and never for node ports.
func TestPing(t *testing.T) {
	for _, test := range []struct {
		value      string
		configured bool
		want, bad  bool
	}{
		{"", false, false, false},
		{"", true, true, false},
		{"true", false, true, false},
		{"false", true, false, false},
		{"yes", false, false, true},
		{"True", true, true, true},
	} {
		cfg, svc := config(), service()
		cfg.Ping = test.configured
		if svc.Annotations = nil; test.value != "" {
			svc.Annotations = []model.Annotation{{Name: model.PingAnnotation, Value: test.value}}
		}
		svc.Type, svc.Ports[0].NodePort, svc.ClusterIPs = model.TypeLoadBalancer, 30080, addrs("10.96.0.1 fd96::1")
		svc.LoadBalancerIPs, svc.ExternalIPs = addrs("203.0.113.1"), addrs("203.0.113.2")
		for _, slices := range [][]*model.EndpointSlice{nil, {slice(state.IPv4, "10.1.0.1")}} {
			for _, p := range compute(t, cfg, thisNode(), svc, slices...).Ports {
				for _, f := range p.Frontends {
					if want := test.want && f.Kind != state.NodePort; f.Ping != want {
						t.Errorf("%q, configured %t: %v %v: ping %t", test.value, test.configured, f.Kind, f.Addr, f.Ping)
					}
				}
			}
		}
		if bad := brain.BadAnnotations(cfg, svc); len(bad) > 0 != test.bad {
			t.Errorf("%q: bad are %v", test.value, bad)
		}
	}
}

// TestDrain: the annotation counts for the TCP ports of both families. Other values count as absent.
func TestDrain(t *testing.T) {
	for value, want := range map[string]uint32{
		"0s": 0, "0": 0, "1s": 1, "90s": 90, "1h30m": 5400, "24h": 86_400, "1000ms": 1,
		"": bad, "24h1s": bad, "-1s": bad, "1500ms": bad, "1ns": bad, "30": bad, " 30s": bad, "forever": bad, "1000000h": bad, "9999999999h": bad,
	} {
		svc := service()
		svc.Annotations = []model.Annotation{{Name: model.DrainAnnotation, Value: value}}
		svc.Ports = append(svc.Ports, model.ServicePort{Name: "dns", Protocol: state.UDP, Port: 53})
		svc.ClusterIPs = addrs("10.96.0.1 fd96::1")
		rec := compute(t, config(), thisNode(), svc, slice(state.IPv4, "10.1.0.1"), slice(state.IPv6, "fd01::1"))
		found := brain.BadAnnotations(config(), svc)
		if len(found) > 0 != (want == bad) || len(rec.Ports) != 4 {
			t.Errorf("%q: bad are %v; %d ports", value, found, len(rec.Ports))
		}
		if want == bad {
			want = 0
		}
		for _, p := range rec.Ports {
			if p.Protocol == state.TCP && p.DrainSeconds != want || p.Protocol != state.TCP && p.DrainSeconds != 0 {
				t.Errorf("%q: %v of %v has %d seconds, want %d for TCP", value, p.Protocol, p.Family, p.DrainSeconds, want)
			}
		}
	}
}

// bad stands for a value that is none.
const bad = 1 << 31

// TestForeignBalance: annotations of other projects count only where the configuration accepts their domain and ours is absent.
func TestForeignBalance(t *testing.T) {
	const (
		cilium, sched, flags = model.CiliumAlgorithmAnnotation, model.KubeRouterSchedAnnotation, model.KubeRouterFlagsAnnotation
		loxilb, calico, ours = model.LoxilbSelectAnnotation, model.CalicoStrategyAnnotation, model.BalanceAnnotation
	)
	all := brain.AnnotationDomains()
	for _, test := range []struct {
		accept      []string
		annotations string // NAME=VALUE;...
		want, bad   string
	}{
		{nil, cilium + "=maglev;" + loxilb + "=nonsense", "Random", ""},
		{[]string{"loxilb.io"}, cilium + "=maglev", "Random", ""},
		{all, cilium + "=maglev", "HashConnection by " + cilium, ""},
		{all, cilium + "=random", "Random by " + cilium, ""},
		{all, cilium + "=Maglev", "Random", cilium + ": random or maglev"},
		{all, sched + "=rr", "Random by " + sched, ""},
		{all, sched + "=sh", "HashClient by " + sched, ""},
		{all, sched + "=sh;" + flags + "=flag-2", "HashClient by " + sched, ""}, // kube-router reads them for mh only
		{all, sched + "=mh", "HashClient by " + sched, ""},
		{all, sched + "=mh;" + flags + "=flag-1, flag-2", "HashConnection by " + sched, ""},
		{all, sched + "=mh;" + flags + "=flag-1", "HashClient by " + sched, ""},
		{all, sched + "=mh;" + flags + "=port", "HashClient by " + sched, flags + ": flag-1, flag-2 or flag-3, or several of them with commas in between"},
		{all, flags + "=port", "Random", ""},
		{all, sched + "=dh", "Random", sched + ": rr, lc, sh or mh"},
		{all, sched + "=lc", "LeastConnections by " + sched, ""},
		{all, loxilb + "=lc", "LeastConnections by " + loxilb, ""},
		{all, loxilb + "=rr", "Random by " + loxilb, ""},
		{all, loxilb + "=hash", "HashConnection by " + loxilb, ""},
		{all, loxilb + "=persist", "HashClient by " + loxilb, ""},
		{all, loxilb + "=n2", "Random", loxilb + ": rr, lc, hash or persist"},
		{all, calico + "=maglev", "HashConnection by " + calico, ""},
		{all, calico + "=x", "Random", calico + ": maglev"},
		{all, ours + "=random;" + cilium + "=maglev", "Random", ""},
		{all, ours + "=nonsense;" + cilium + "=maglev;" + loxilb + "=x", "Random", ours + ": random, hash, hash-connection or least-connections"},
		{[]string{"loxilb.io", "cilium.io"}, cilium + "=maglev;" + loxilb + "=persist", "HashClient by " + loxilb, ""},
		{[]string{"cilium.io", "loxilb.io"}, cilium + "=maglev;" + loxilb + "=x", "HashConnection by " + cilium, ""},
		{[]string{"loxilb.io", "cilium.io"}, cilium + "=maglev;" + loxilb + "=x", "HashConnection by " + cilium, loxilb + ": rr, lc, hash or persist"},
	} {
		svc, cfg := service(), config()
		cfg.AcceptAnnotationsOf = test.accept
		for a := range strings.SplitSeq(test.annotations, ";") {
			name, value, _ := strings.Cut(a, "=")
			svc.Annotations = append(svc.Annotations, model.Annotation{Name: name, Value: value})
		}
		slices.SortFunc(svc.Annotations, func(a, b model.Annotation) int { return strings.Compare(a.Name, b.Name) })
		settings := brain.SettingsOf(cfg, svc)
		got := settings.Balance.String()
		if from := settings.BalanceFrom; from.Name != "" && from.Name != ours {
			got += " by " + from.Name
		}
		var bad []string
		for _, b := range brain.BadAnnotations(cfg, svc) {
			bad = append(bad, fmt.Sprintf("%s: %s", b.Name, b.Want))
		}
		if got != test.want || strings.Join(bad, "; ") != test.bad {
			t.Errorf("%v, %s: %s with %q, want %s with %q", test.accept, test.annotations, got, bad, test.want, test.bad)
		}
		if balance := compute(t, cfg, thisNode(), svc, slice(state.IPv4, "10.1.0.1")).Ports[0].Balance; balance != settings.Balance {
			t.Errorf("%v, %s: the record has %v", test.accept, test.annotations, balance)
		}
	}
	if !slices.Equal(all, []string{"cilium.io", "kube-router.io", "loxilb.io", "projectcalico.org"}) {
		t.Errorf("the domains are %q", all)
	}
}
