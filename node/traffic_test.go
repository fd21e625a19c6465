package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// scriptedCounter has counted what a test says.
type scriptedCounter struct {
	counts map[state.FrontendKey]backend.Counts
	err    error
}

func (c *scriptedCounter) Counts(keys []state.FrontendKey) ([]backend.Counts, error) {
	counts := make([]backend.Counts, len(keys))
	for i, key := range keys {
		counts[i] = c.counts[key]
	}
	return counts, c.err
}

// keyOf is the key of the first frontend of a family of a dual-stack Service.
func keyOf(s *state.Service, family int) state.FrontendKey {
	return s.Ports[family].Key(&s.Ports[family].Frontends[0])
}

// TestTally: the counts of a port's frontends are added up. The sum never goes down, even if a frontend is gone or begins at 0 again.
func TestTally(t *testing.T) {
	web, db := recordtest.DualStack("web", 1, 2, 0), recordtest.DualStack("db", 2, 1, 0)
	c := &scriptedCounter{counts: map[state.FrontendKey]backend.Counts{
		keyOf(web, 0): {Connections: 100, Rejects: 5}, keyOf(web, 1): {Connections: 20, Drops: 1},
	}}
	var counted tally
	check := func(when string, services []*state.Service, want ...metrics.PortTraffic) {
		t.Helper()
		if err := counted.read(services, c); err != nil {
			t.Fatal(err)
		}
		got := counted.shown()
		if fmt.Sprint(got.Ports) != fmt.Sprint(want) || got.Beyond != (metrics.Counts{}) || got.LeftOut != 0 {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	both := []*state.Service{db, web}
	row := func(s *state.Service, connections, rejects, drops uint64) metrics.PortTraffic {
		return metrics.PortTraffic{Service: s.Name, Port: s.Ports[0].Name, Counts: metrics.Counts{Connections: connections, Rejects: rejects, Drops: drops}}
	}
	check("at first", both, row(web, 120, 5, 1))
	check("without a connection", both, row(web, 120, 5, 1))
	c.counts[keyOf(web, 0)] = backend.Counts{Connections: 101, Rejects: 5}
	c.counts[keyOf(db, 1)] = backend.Counts{Connections: 3}
	check("with more", both, row(db, 3, 0, 0), row(web, 121, 5, 1))
	c.counts[keyOf(web, 0)] = backend.Counts{Connections: 2}
	check("when a frontend begins anew", both, row(db, 3, 0, 0), row(web, 123, 5, 1))
	onlyIPv4 := *web
	onlyIPv4.Ports = web.Ports[:1]
	check("when a frontend is gone", []*state.Service{db, &onlyIPv4}, row(db, 3, 0, 0), row(web, 123, 5, 1))
	c.err = errors.New("injected")
	if err := counted.read(both, c); !errors.Is(err, c.err) {
		t.Errorf("a failed reading: %v", err)
	}
	c.err = nil
	check("after a failed reading", []*state.Service{db, &onlyIPv4}, row(db, 3, 0, 0), row(web, 123, 5, 1))
	check("when a Service is gone", []*state.Service{&onlyIPv4}, row(web, 123, 5, 1))
}

// TestTallyOfLayers: each layer grows by itself. What one that goes on after a restart has counted before does not count, because the sum begins at 0.
func TestTallyOfLayers(t *testing.T) {
	web := recordtest.DualStack("web", 1, 2, 0)
	key := keyOf(web, 0)
	counts := func(connections, rejects uint64) map[state.FrontendKey]backend.Counts {
		return map[state.FrontendKey]backend.Counts{key: {Connections: connections, Rejects: rejects}}
	}
	below, above := &scriptedCounter{counts: counts(100, 50)}, &scriptedCounter{counts: counts(7, 0)}
	both, one := []backend.Counter{below, above}, []backend.Counter{below}
	var counted tally
	check := func(when string, layers []backend.Counter, connections, rejects uint64) {
		t.Helper()
		if err := counted.read([]*state.Service{web}, layers...); err != nil {
			t.Fatal(err)
		}
		got := counted.shown().Ports
		if len(got) != 1 || got[0].Counts != (metrics.Counts{Connections: connections, Rejects: rejects}) {
			t.Errorf("%s: %+v, want %d connections, and of them %d rejects", when, got, connections, rejects)
		}
	}
	check("at first", both, 7, 0)
	below.counts, above.counts = counts(102, 51), counts(10, 0)
	check("with more", both, 12, 1)
	above.counts = counts(1, 0)
	check("when the upper one begins anew", both, 13, 1)
	below.counts = counts(2, 0)
	check("when the lower one begins anew", both, 15, 1)
	below.counts = counts(3, 0)
	check("without the upper one", one, 16, 1)
	above = &scriptedCounter{counts: counts(4, 0)}
	check("with another one above", []backend.Counter{below, above}, 20, 1)
	above.err = errors.New("injected")
	below.counts = counts(5, 0)
	if err := counted.read([]*state.Service{web}, below, above); !errors.Is(err, above.err) {
		t.Errorf("a failed reading: %v", err)
	}
	above.err = nil
	check("after a failed reading", []backend.Counter{below, above}, 22, 1)
}

// TestNotCounted: who wants counts where there are none is told why, and what to do.
func TestNotCounted(t *testing.T) {
	for _, c := range []struct {
		mode     config.Mode
		listen   []string
		counters bool
		want     string
		warns    bool
	}{
		{config.ModeNFTables, nil, false, "set nftables.counters to true", false},
		{config.ModeEBPF, nil, false, "set nftables.counters to true", false},
		{config.ModeUserspace, nil, false, "set nftables.counters to true", false},
		{config.ModeIPVS, nil, false, "set nftables.counters to true", false},
		{config.ModeIPTables, nil, false, "set nftables.counters to true", false},
		{config.ModeKernelspace, nil, true, "connections are counted in all modes of Linux, but", true},
		{config.ModeKernelspace, nil, false, "this node's mode is kernelspace: set mode to another one", false},
		{config.ModeUserspace, []string{"127.0.0.1:8080=10.96.0.1:80"}, true, "but not by a relay that listens on addresses of the host (userspace.listen)", true},
	} {
		var log bytes.Buffer
		n := &Node{dataplane: &switchable{}, log: slog.New(slog.NewTextHandler(&log, nil))}
		conf := config.Default()
		conf.Mode, conf.Userspace.Listen, conf.NFTables.Counters = c.mode, c.listen, c.counters
		n.config.Store(conf)
		n.mode.Store(string(c.mode))
		if err := n.notCounted(); !strings.Contains(err.Error(), c.want) {
			t.Errorf("mode %s, listening on %v: %v, want %q", c.mode, c.listen, err, c.want)
		}
		n.warnCounters(conf)
		if warned := strings.Contains(log.String(), "connections are not counted in this mode"); warned != c.warns {
			t.Errorf("mode %s, listening on %v: a warning: %v, want %v", c.mode, c.listen, warned, c.warns)
		}
	}
}

// countingDataplane is a dataplane that counts.
type countingDataplane struct {
	Dataplane
	*scriptedCounter
}

// TestCountsStay: while a dataplane in another mode has not shown anything yet, what was counted before is shown, and what follows adds to it.
func TestCountsStay(t *testing.T) {
	n := &Node{dataplane: countingDataplane{nil, &scriptedCounter{}}, log: slog.New(slog.DiscardHandler)}
	n.config.Store(config.Default())
	if got := n.serviceTraffic(); got != nil {
		t.Errorf("before anything is programmed: %+v", got)
	}
	shown, web := &metrics.Traffic{}, servicePort{state.ServiceName{Namespace: "shop", Name: "web"}, "http"}
	n.traffic.shown, n.traffic.tally.ports = shown, map[servicePort]*portTally{web: {all: backend.Counts{Connections: 3}}}
	if got := n.serviceTraffic(); got != shown || n.traffic.tally.ports[web] == nil {
		t.Errorf("the metrics show %+v of what was counted in another mode", got)
	}
	if got, err := n.selectedTraffic(view.Selection{}); err != nil || len(got.Ports) != 1 || got.Ports[0].Connections != 3 {
		t.Errorf("of what was counted in another mode, people see %+v, %v", got, err)
	}
	n.dataplane = struct{ Dataplane }{}
	if got := n.serviceTraffic(); got != nil || n.traffic.tally.ports != nil {
		t.Errorf("when nothing is counted any longer: %+v", got)
	}
}

// TestTallyIsBounded: ports beyond the bound have no series, but are counted together. When a port is gone, one of them gets its
// series.
func TestTallyIsBounded(t *testing.T) {
	c := &scriptedCounter{counts: map[state.FrontendKey]backend.Counts{}}
	var services []*state.Service
	for n := range maxTrafficPorts + 3 {
		s := recordtest.Service(fmt.Sprintf("s%04d", n), recordtest.ClusterIPPort(state.IPv4, state.TCP, n, nil))
		services = append(services, s)
		c.counts[keyOf(s, 0)] = backend.Counts{Connections: 2, Rejects: 2}
	}
	c.counts[keyOf(services[0], 0)] = backend.Counts{}
	var counted tally
	check := func(when string, services []*state.Service, ports, leftOut int, beyond uint64) *metrics.Traffic {
		t.Helper()
		if err := counted.read(services, c); err != nil {
			t.Fatal(err)
		}
		got := counted.shown()
		if len(got.Ports) != ports || got.LeftOut != leftOut || got.Beyond != (metrics.Counts{Connections: beyond, Rejects: beyond}) {
			t.Errorf("%s: %d ports, %d left out, %+v beyond; want %d, %d, %d", when, len(got.Ports), got.LeftOut, got.Beyond, ports, leftOut, beyond)
		}
		return got
	}
	check("at first", services, maxTrafficPorts, 2, 4)
	last := services[len(services)-1]
	c.counts[keyOf(last, 0)] = backend.Counts{Connections: 5, Rejects: 5}
	check("with more", services, maxTrafficPorts, 2, 7)
	check("when one is gone", services[2:], maxTrafficPorts-1, 2, 7)
	c.counts[keyOf(last, 0)] = backend.Counts{Connections: 6, Rejects: 6}
	got := check("when one of the others counts", services[2:], maxTrafficPorts, 1, 7)
	if end := got.Ports[len(got.Ports)-1]; end.Service != last.Name || end.Connections != 1 {
		t.Errorf("the last port is %+v, want the one connection since then", end)
	}
}

// TestTallyRows: people see the ports that they select with all that these have counted, also those without a series, and without a connection; the
// busiest if they are too many.
func TestTallyRows(t *testing.T) {
	c := &scriptedCounter{counts: map[state.FrontendKey]backend.Counts{}}
	var services []*state.Service
	for n := range maxTrafficRows + 2 {
		s := recordtest.Service(fmt.Sprintf("s%04d", n), recordtest.ClusterIPPort(state.IPv4, state.TCP, n, nil))
		services = append(services, s)
		c.counts[keyOf(s, 0)] = backend.Counts{Connections: 2, Drops: 1}
	}
	first, second, last := services[0], services[1], services[len(services)-1]
	c.counts[keyOf(first, 0)], c.counts[keyOf(second, 0)] = backend.Counts{}, backend.Counts{Connections: 1}
	var counted tally
	read := func() {
		t.Helper()
		if err := counted.read(services, c); err != nil {
			t.Fatal(err)
		}
	}
	read()
	all, leftOut := counted.rows(view.Selection{})
	if len(all) != maxTrafficRows || leftOut != 2 || all[0].Service != services[2].Name.Name || all[len(all)-1].Service != last.Name.Name {
		t.Errorf("of all, %d rows from %s to %s, and %d left out", len(all), all[0].Service, all[len(all)-1].Service, leftOut)
	}
	// The last one, which had no series at first, gets one when there is room: its connections from before are still seen.
	services = services[2:]
	c.counts[keyOf(last, 0)] = backend.Counts{Connections: 5, Drops: 1}
	read()
	services = append(services, first)
	c.counts[keyOf(last, 0)] = backend.Counts{Connections: 7, Drops: 1}
	read()
	got, leftOut := counted.rows(view.Selection{Namespace: last.Name.Namespace, Names: []string{first.Name.Name, last.Name.Name}})
	row := func(s *state.Service, counts view.Counts) view.PortTraffic {
		return view.PortTraffic{Namespace: s.Name.Namespace, Service: s.Name.Name, Port: portOf(&s.Ports[0]), Counts: counts}
	}
	want := []view.PortTraffic{row(first, view.Counts{}), row(last, view.Counts{Connections: 7, Drops: 1})}
	if fmt.Sprint(got) != fmt.Sprint(want) || leftOut != 0 {
		t.Errorf("two by name: %+v, %d left out; want %+v", got, leftOut, want)
	}
	if rows, leftOut := counted.rows(view.Selection{Namespace: "other"}); len(rows) != 0 || leftOut != 0 {
		t.Errorf("of another namespace, %d rows, %d left out", len(rows), leftOut)
	}
}

// TestGrown: the page has what a Service has counted since it was asked last, whichever its port.
func TestGrown(t *testing.T) {
	web := state.ServiceName{Namespace: "shop", Name: "web"}
	http := &portTally{all: backend.Counts{Connections: 2}}
	counted := tally{ports: map[servicePort]*portTally{{web, "http"}: http, {web, "https"}: {all: backend.Counts{Connections: 3, Rejects: 1}}}}
	if got := counted.grown(); len(got) != 1 || got[web] != (view.Counts{Connections: 5, Rejects: 1}) {
		t.Errorf("at first, connections are %v", got)
	}
	if got := counted.grown(); len(got) != 0 {
		t.Errorf("without further connections, there are %v", got)
	}
	http.all.Add(backend.Counts{Connections: 7, Drops: 4})
	delete(counted.ports, servicePort{web, "https"})
	if got := counted.grown(); len(got) != 1 || got[web] != (view.Counts{Connections: 7, Drops: 4}) {
		t.Errorf("when a port is gone, connections are %v", got)
	}
}
