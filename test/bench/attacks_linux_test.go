package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/kubeconv"
)

// TestAttacksMissed: targets are for the changes of other tenants and the commits of other programs in mode nftables. Other
// tenants' connections have targets in each mode.
func TestAttacksMissed(t *testing.T) {
	slow := &attackRow{attack: "slow", changes: []time.Duration{time.Millisecond, time.Second}}
	lossy := &attackRow{attack: "lossy", changes: []time.Duration{time.Millisecond}, lost: 1, ended: "ended: killed"}
	alone := &attackRow{attack: "alone", commits: []time.Duration{time.Second}}
	for _, test := range []struct {
		dataplane string
		strict    bool
		want      []string
	}{
		{"nftables", false, nil},
		{"nftables", true, []string{"slow: other tenants' changes take 1s", "lossy: 0 changes of other tenants are late, 1 of their connections lost", "alone: other programs' commits take 1s"}},
		{"iptables", true, []string{"lossy: "}},
	} {
		err := missedAttacks(&AttackOptions{Dataplane: test.dataplane}, []*attackRow{slow, lossy, alone}, test.strict)
		if (err != nil) != (test.want != nil) {
			t.Errorf("%s, strict %v: %v", test.dataplane, test.strict, err)
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in %v", test.dataplane, want, err)
			}
		}
	}
}

// TestAttackServices: the API server accepts what attackers put.
func TestAttackServices(t *testing.T) {
	s := tenantService("large", 1)
	s.ports, s.external = 250, addresses("100.64.0.254", 3)
	objects := s.objects(addresses("10.128.0.0", 2500), victimPort)
	if len(objects) != 1+3*3 {
		t.Errorf("%d objects, not a Service and 9 slices", len(objects))
	}
	for _, o := range objects {
		if _, known, err := kubeconv.Object(o); err != nil || !known {
			t.Errorf("%T %s: known %v: %v", o, o.GetName(), known, err)
		}
	}
	if got := s.external[2].String(); got != "100.64.1.0" {
		t.Errorf("the third address after 100.64.0.254 is %s", got)
	}
}
