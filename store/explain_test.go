package store

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// TestExplain: in addition to the brain's reasons, a Service has reasons that depend on other Services. The explanation
// matches the published state.
func TestExplain(t *testing.T) {
	p := newProblemStore(t, brain.Config{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	const (
		old     = "service ns/old 10.96.0.1:80 external=192.0.2.1 created=1"
		young   = "service ns/young 10.96.0.2:80 external=192.0.2.1 created=2"
		refused = "service ns/refused 10.96.0.3:80 external=198.51.100.1"
	)
	p.deliver(strings.Join([]string{old, young, refused}, "; "))
	explain := func(name string) string {
		e := p.Explain(state.ServiceName{Namespace: "ns", Name: name})
		if record := p.Snapshot().Get(state.ServiceName{Namespace: "ns", Name: name}); !sameRecord(record, e.Published) {
			t.Errorf("%s: published is %+v, explained %+v", name, record, e.Published)
		}
		texts := []string{string(e.NotRouted)}
		for _, l := range e.Lost {
			texts = append(texts, fmt.Sprintf("lost %v to %v", l.Frontend, l.Holder))
		}
		for _, r := range e.Refusals {
			texts = append(texts, fmt.Sprintf("%v %s", r.Addr, r.Why))
		}
		for _, problem := range e.Problems {
			texts = append(texts, string(problem.Reason))
		}
		return strings.TrimSpace(strings.Join(texts, " "))
	}
	for name, want := range map[string]string{
		"old":     "",
		"young":   "lost 192.0.2.1:80/TCP to ns/old AddressConflict",
		"refused": "198.51.100.1 is not in the ranges that the operator allows ExternalIPRefused",
		"none":    "NoService",
	} {
		if got := explain(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	p.deliver("namespace ns disabled")
	if got := explain("old"); got != string(NamespaceOptedOut) {
		t.Errorf("in a namespace that has opted out: %q", got)
	}
}

// TestExplainWithoutRoom: a Service for which its namespace has no room has that reason.
func TestExplainWithoutRoom(t *testing.T) {
	p := newProblemStore(t, brain.Config{})
	p.Reconfigure(brain.Config{}, Budgets{PerNamespace: 10})
	p.deliver("service ns/old 10.96.0.1:80 created=1; service ns/young 10.96.0.2:80 created=2")
	for name, want := range map[string]brain.Reason{"old": "", "young": brain.NoRoom} {
		if got := p.Explain(state.ServiceName{Namespace: "ns", Name: name}).NotRouted; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestClaimants: those that name an address are found, routed or not.
func TestClaimants(t *testing.T) {
	p := newProblemStore(t, brain.Config{})
	p.deliver("service ns/a 10.96.0.1:80 external=192.0.2.1; service ns/b 10.96.0.2:80 external=192.0.2.1")
	for addr, want := range map[string]string{"192.0.2.1": "[ns/a ns/b]", "10.96.0.2": "[ns/b]", "10.96.0.3": "[]"} {
		if got := fmt.Sprint(p.Claimants(netip.MustParseAddr(addr), 0)); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if got := fmt.Sprint(p.ServiceNames()); got != "[ns/a ns/b]" {
		t.Errorf("all Services: %s", got)
	}
}
