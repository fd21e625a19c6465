package brain_test

import (
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
		{"least-connections", 0, state.Random, true},
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
