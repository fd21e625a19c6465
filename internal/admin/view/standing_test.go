package view_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestStanding: a row has what the dataplane knows of the endpoint. It is asked only about ports that eject endpoints or set deadlines, and about
// deadlines only of endpoints that no route has.
func TestStanding(t *testing.T) {
	at := func(last byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, last}), 8080)
	}
	endpoint := func(last byte, ready, serving bool) model.Endpoint {
		return model.Endpoint{Addr: at(last).Addr(), Ready: ready, Serving: serving, Terminating: serving && !ready, NodeName: "node-a"}
	}
	slice := &model.EndpointSlice{
		Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{endpoint(1, true, true), endpoint(2, true, true), endpoint(3, false, true), endpoint(4, false, false)},
	}
	until := time.Now().Add(time.Hour)
	both := []model.Annotation{{Name: model.DrainAnnotation, Value: "60s"}, {Name: model.EjectAnnotation, Value: "true"}}
	standing := view.Standing{Silent: []netip.AddrPort{at(1)}, Until: map[netip.AddrPort]time.Time{at(3): until}}
	two := map[netip.AddrPort]time.Time{at(3): until, at(4): until}
	passed := map[netip.AddrPort]time.Time{at(3): time.Now()}
	const lost = "[10.244.0.3:8080 10.244.0.4:8080]"
	for name, test := range map[string]struct {
		annotations []model.Annotation
		standing    view.Standing
		asked, want []string
	}{
		"both":      {both, standing, []string{lost}, []string{"1 ejected", "2 active", "3 draining for 1h0m0s", "4 idle"}},
		"drains":    {both[:1], view.Standing{Until: standing.Until}, []string{lost}, []string{"1 active", "2 active", "3 draining for 1h0m0s", "4 idle"}},
		"ejects":    {both[1:], view.Standing{Silent: standing.Silent}, []string{"[]"}, []string{"1 ejected", "2 active", "3 draining", "4 idle"}},
		"not ready": {both[:1], view.Standing{Until: two}, []string{lost}, []string{"1 active", "2 active", "3 draining for 1h0m0s", "4 draining for 1h0m0s"}},
		"passed":    {both[:1], view.Standing{Until: passed}, []string{lost}, []string{"1 active", "2 active", "3 idle", "4 idle"}},
		"no answer": {both, view.Standing{}, []string{lost}, []string{"1 active", "2 active", "3 draining", "4 idle"}},
		"the last ones stay": {both[1:], view.Standing{Silent: []netip.AddrPort{at(1), at(2), at(4)}}, []string{"[]"},
			[]string{"1 active", "2 active", "3 draining", "4 idle"}},
		"neither": {nil, standing, nil, []string{"1 active", "2 active", "3 draining", "4 idle"}},
	} {
		v := viewOf(t, slice, &model.Service{
			Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Annotations: test.annotations,
			Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}},
		})
		var asked, rows []string
		v.Standing = func(p *state.Port, left []netip.AddrPort) view.Standing {
			asked = append(asked, fmt.Sprint(left))
			return test.standing
		}
		for e := range v.Endpoints(view.Selection{}) {
			row := fmt.Sprintf("%d %s", e.Addr.Addr().As4()[3], e.State)
			if !e.DrainsUntil.IsZero() {
				row += fmt.Sprint(" for ", time.Until(e.DrainsUntil).Round(time.Hour))
			}
			rows = append(rows, row)
		}
		if !slices.Equal(asked, test.asked) || !slices.Equal(rows, test.want) {
			t.Errorf("%s: asked about %q, rows %q, want %q and %q", name, asked, rows, test.asked, test.want)
		}
	}
}
