//go:build linux

package chaos

import (
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/probe"
)

// TestProofOfEdge runs two scenarios of the edge with few connections. Nodes are real processes.
func TestProofOfEdge(t *testing.T) {
	netnstest.Need(t)
	if err := edge.Available(edge.Settings{Mark: 1}); err != nil {
		t.Skip(err)
	}
	o := Options{
		Source: "../..", Dir: t.TempDir(), Scale: 0.04, Connections: 60, WithoutGaps: true, Log: io.Discard, Scenarios: []string{"weights", "program killed"},
		timeout: 10 * time.Second,
	}
	results, err := RunEdge(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range results {
		r := &results[i]
		if len(r.Wrong) > 0 || r.Report.Connections < 100 || r.Report.Own < 100 || r.Report.Control.Connections < 50 {
			t.Errorf("%v", r)
		}
	}
	if len(results) != 2 {
		t.Errorf("%d scenarios", len(results))
	}
}

// TestMutantsOfEdge: each mutant names a scenario, and each scenario has one. Scenarios that do not exist are refused.
func TestMutantsOfEdge(t *testing.T) {
	var noticed []string
	for _, p := range edgeMutants {
		if !slices.Contains(EdgeNames(), p.scenario) {
			t.Errorf("%s: no scenario %q", p.variant.name, p.scenario)
		}
		noticed = append(noticed, p.scenario)
	}
	for _, name := range EdgeNames() {
		if !slices.Contains(noticed, name) {
			t.Errorf("scenario %q has no mutant", name)
		}
	}
	if _, err := RunEdge(t.Context(), Options{Dir: t.TempDir(), Log: io.Discard, Scenarios: []string{"no such"}}); err == nil {
		t.Error("a scenario that does not exist was run")
	}
	if _, err := RunEdge(t.Context(), Options{Dir: t.TempDir(), Log: io.Discard, Scenarios: []string{"upgrade"}}); err == nil || !strings.Contains(err.Error(), "program of a release") {
		t.Errorf("a scenario without the release that it needs: %v", err)
	}
}

func TestJudgeEdge(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Result)
		want  string
	}{
		"good":   {func(*Result) {}, ""},
		"lost":   {func(r *Result) { r.Report.Lost = 1 }, "1 connections or requests were lost"},
		"open":   {func(r *Result) { r.Report.Established.Ours = 2 * time.Second }, "a gap of 2s in open connections"},
		"new":    {func(r *Result) { r.Report.New.Ours = time.Second }, "a gap of 1s in new connections"},
		"outage": {func(r *Result) { r.Outage = 2 * time.Second }, "were not served for 2s"},
		"busy":   {func(r *Result) { r.Report.Control.Lost = 1 }, "too busy"},
	} {
		r := Result{
			Report:  &loadcheck.Report{Counts: loadcheck.Counts{Connections: 100, Strict: 5}, Took: time.Second},
			Allowed: echoGap, AllowedEcho: edgeKillGap, AllowedOutage: edgeOutage, AllowedExcuse: edgeExcused,
		}
		c.spoil(&r)
		r.judgeEdge(false)
		if r.Busy != (name == "busy") {
			t.Errorf("%s: busy is %v", name, r.Busy)
		}
		if got := strings.Join(r.Wrong, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestEdgeJudge: where two states count, a node by the name of the network 10.0.n.0 may serve what it takes in by endpoints that are terminating.
func TestEdgeJudge(t *testing.T) {
	at := func(addrs ...string) (list []netip.AddrPort) {
		for _, a := range addrs {
			list = append(list, netip.AddrPortFrom(netip.MustParseAddr(a), 80))
		}
		return list
	}
	all := at("10.0.1.1", "10.0.1.2", "10.0.2.1", "10.0.2.2")
	one, both, second := at("10.0.1.1"), at("10.0.1.1", "10.0.2.1"), at("10.0.2.2")
	for name, c := range map[string]struct{ allowed, want [][]netip.AddrPort }{
		"one state":                           {[][]netip.AddrPort{one}, [][]netip.AddrPort{one}},
		"the second node chose before":        {[][]netip.AddrPort{both, one}, [][]netip.AddrPort{both, at("10.0.1.1", "10.0.2.1", "10.0.2.2")}},
		"each node chose another time":        {[][]netip.AddrPort{one, second}, [][]netip.AddrPort{at("10.0.1.1", "10.0.2.1", "10.0.2.2"), at("10.0.2.2", "10.0.1.1", "10.0.1.2")}},
		"the second node was never chosen":    {[][]netip.AddrPort{one, one}, [][]netip.AddrPort{one, one}},
		"the second node has ready ones, too": {[][]netip.AddrPort{both, both}, [][]netip.AddrPort{both, both}},
	} {
		var states ledgerOf
		for _, allowed := range c.allowed {
			states = append(states, loadcheck.State{Allowed: allowed, Serving: all})
		}
		j := &edgeJudge{states, func(a netip.Addr) string { return a.String()[:6] }}
		var got [][]netip.AddrPort
		for _, s := range j.States(nil, 0, netip.Addr{}, time.Time{}, time.Time{}) {
			got = append(got, s.Allowed)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// ledgerOf is a judge for which the same states always count.
type ledgerOf []loadcheck.State

func (l ledgerOf) States(*loadcheck.Target, probe.Client, netip.Addr, time.Time, time.Time) []loadcheck.State {
	return slices.Clone(l)
}

func TestEdgePage(t *testing.T) {
	result := func(scenario string, gap time.Duration) Result {
		r := Result{Scenario: scenario, Happened: "something", Report: &loadcheck.Report{}, Allowed: echoGap, AllowedEcho: echoGap, AllowedOutage: edgeOutage, AllowedExcuse: edgeExcused}
		r.Report.Connections, r.Report.Strict, r.Report.New.Ours, r.Outage = 4711, 4711, gap, 600*time.Millisecond
		r.judgeEdge(false)
		return r
	}
	f := Findings{
		Machine: "a machine", Scale: 1, Ours: []Result{result("weights", time.Millisecond), result("drains", time.Second)},
		Mutants: []Mutant{{Bug: "does wrong", Result: result("drains", 0)}},
	}
	page := f.WriteEdge(1000)
	for _, want := range []string{
		"a machine. Scale 1", "| weights | 4711 |", "| 600.0 |", "Not as promised:\n\n- drains: a gap of 1s", "does wrong | drains | 0 | 0 | 0 | **no** |", "- **weights**: Weights", "keeps 1000 connections",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
