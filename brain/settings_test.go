package brain_test

import (
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

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
