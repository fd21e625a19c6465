package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// inspectedBase is a base that rejects everything.
type inspectedBase struct{ *fakeBase }

func (inspectedBase) Inspect(backend.Query) (backend.Held, error) {
	return backend.Held{Verdict: state.Reject}, nil
}

// TestInspect: the endpoints that take new connections are the virtual server's. Without any, the base decides.
func TestInspect(t *testing.T) {
	n := newNode(t, Options{Logger: logger(t)})
	n.inspector.kernel = n.ipvs
	const vip = "10.96.0.10:80/TCP"
	at := key(vip).Addr
	q := backend.Query{Frontend: state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: at.Addr(), Port: at.Port()}, Dst: at.Addr()}
	expect := func(verdict state.Verdict, list string) {
		t.Helper()
		var want []netip.AddrPort
		for _, e := range endpoints(list) {
			want = append(want, e.Addr)
		}
		if held, err := n.Inspect(q); err != nil || held.Verdict != verdict || !slices.Equal(held.Endpoints, want) {
			t.Errorf("read back %+v, %v; want %v to %v", held, err, verdict, want)
		}
	}
	n.full(web("web", vip, "10.244.0.2:8080 10.244.0.1:8080"))
	expect(state.Forward, "10.244.0.1:8080 10.244.0.2:8080")
	n.update(web("web", vip, "10.244.0.2:8080")) // the other one keeps its connections
	expect(state.Forward, "10.244.0.2:8080")
	n.update(web("web", vip, ""))
	if _, err := n.Inspect(q); err == nil || !strings.Contains(err.Error(), "the dataplane below does not read back single connections") {
		t.Errorf("with a base that reads nothing back: %v", err)
	}
	n.Backend.base = inspectedBase{n.base}
	expect(state.Reject, "")
}
