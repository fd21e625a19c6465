//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// TestVariantsFitTheCode: each variant still finds what it changes.
func TestVariantsFitTheCode(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles dozens of packages with changes")
	}
	var list []*variant
	for i := range kinds {
		for _, v := range kinds[i].builds {
			if !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
	for _, p := range slices.Concat(mutants, edgeMutants) {
		if !slices.Contains(list, p.variant) {
			list = append(list, p.variant)
		}
	}
	b := &builder{source: "../..", dir: t.TempDir(), built: map[string]string{}}
	compile := func(v *variant) error {
		overlay, err := b.overlay(v)
		if err != nil {
			return err
		}
		args := []string{"build", "-trimpath", "-overlay", overlay, "./state"} // of several packages, go build writes nothing
		cmd := exec.Command("go", slices.AppendSeq(args, maps.Keys(v.packages()))...)
		cmd.Dir, cmd.Env = b.source, append(os.Environ(), "CGO_ENABLED=0") // as the program is built
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("it does not build: %w\n%s", err, out)
		}
		return nil
	}
	// A variant that edits the runtime of Go has all packages compiled, so that it is compiled
	// by itself.
	if err := compile(jumpy); err != nil {
		t.Errorf("variant %s: %v", jumpy.name, err)
	}
	// Variants of different packages are compiled together, and by themselves only if that
	// fails.
	for len(list) > 0 {
		all := &variant{name: "several", added: map[string]string{}}
		var together, others []*variant
		taken := map[string]bool{}
		for _, v := range list {
			packages := v.packages()
			if slices.ContainsFunc(slices.Collect(maps.Keys(packages)), func(p string) bool { return taken[p] }) {
				others = append(others, v)
				continue
			}
			maps.Copy(taken, packages)
			together, all.edits = append(together, v), append(all.edits, v.edits...)
			maps.Copy(all.added, v.added)
		}
		if err := compile(all); err != nil {
			t.Errorf("several variants together: %v", err)
			for _, v := range together {
				if err := compile(v); err != nil {
					t.Errorf("variant %s: %v", v.name, err)
				}
			}
		}
		list = others
	}
	missing := &variant{name: "missing", edits: []edit{{"go.mod", "no such text", ""}}}
	if _, err := b.overlay(missing); err == nil || !strings.Contains(err.Error(), "go.mod") {
		t.Errorf("a variant that does not fit: %v", err)
	}
}

// packages are the packages of the repository that a variant changes, as arguments of the go
// command.
func (v *variant) packages() map[string]bool {
	packages := map[string]bool{}
	for _, e := range v.edits {
		if !strings.HasPrefix(e.file, goroot) {
			packages["./"+filepath.Dir(e.file)] = true
		}
	}
	for file := range v.added {
		packages["./"+filepath.Dir(file)] = true
	}
	return packages
}

// TestMutantsAreAboutScenarios: each mutant names a scenario.
func TestMutantsAreAboutScenarios(t *testing.T) {
	for _, p := range mutants {
		if !slices.Contains(Names(), p.scenario) {
			t.Errorf("%s: no scenario %q", p.variant.name, p.scenario)
		}
	}
	if _, err := Run(t.Context(), Options{Dir: t.TempDir(), Log: io.Discard, Scenarios: []string{"no such"}}); err == nil {
		t.Error("a scenario that does not exist was run")
	}
	if _, err := Run(t.Context(), Options{Dir: t.TempDir(), Log: io.Discard, Scenarios: []string{"release"}}); err == nil || !strings.Contains(err.Error(), "program of a release") {
		t.Errorf("a scenario without the release that it needs: %v", err)
	}
}

func TestJudge(t *testing.T) {
	good := func() *loadcheck.Report {
		return &loadcheck.Report{Counts: loadcheck.Counts{Connections: 100, Strict: 5}, Took: time.Second, New: loadcheck.Gap{Longest: time.Second, Control: time.Second, Unexplained: 19 * time.Millisecond, Ours: 4 * time.Millisecond}}
	}
	for name, c := range map[string]struct {
		spoil func(*loadcheck.Report)
		want  string
	}{
		"expected failures": {func(r *loadcheck.Report) { r.ExpectedFailures = 4 }, "4 connections or requests failed as if they had to"},
		"echo":              {func(r *loadcheck.Report) { r.Established.Ours = 200 * time.Millisecond }, "a gap of 200ms in open connections"},
		"idle":              {func(r *loadcheck.Report) { r.Control.Skipped = 1 }, "1 connections were not made in time"},
		"open noise":        {func(r *loadcheck.Report) { r.Established.Unexplained = 200 * time.Millisecond }, "the control had a gap of 200ms in open"},
		"excused":           {func(r *loadcheck.Report) { r.New.Excused = 210 * time.Millisecond }, "for 21% of the time a gap would have been excused"},
		"lax":               {func(r *loadcheck.Report) { r.Strict = 4 }, "4% of the new connections were judged by a single state"},
		"noise":             {func(r *loadcheck.Report) { r.New.Unexplained = time.Second }, "the control had a gap of 1s"},
		"good":              {func(*loadcheck.Report) {}, ""},
		"lost":              {func(r *loadcheck.Report) { r.Lost = 1 }, "1 connections or requests were lost"},
		"reset":             {func(r *loadcheck.Report) { r.Reset = 2 }, "2 connections or requests were reset"},
		"wrong endpoint":    {func(r *loadcheck.Report) { r.WrongEndpoint = 3 }, "3 connections or requests were sent to a wrong endpoint"},
		"gap":               {func(r *loadcheck.Report) { r.New.Ours = 6 * time.Millisecond }, "a gap of 6ms"},
		"busy":              {func(r *loadcheck.Report) { r.Control.Lost = 1 }, "too busy"},
	} {
		r := Result{Report: good(), Allowed: usualGap, AllowedEcho: echoGap, AllowedExcuse: mostExcused}
		c.spoil(r.Report)
		r.judge()
		if busy := slices.Contains([]string{"idle", "open noise", "excused", "noise", "busy"}, name); r.Busy != busy {
			t.Errorf("%s: busy is %v", name, r.Busy)
		}
		if got := strings.Join(r.Wrong, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	both := Result{Report: good(), Allowed: usualGap, AllowedEcho: echoGap, AllowedExcuse: mostExcused}
	both.Report.Lost, both.Report.Control.Lost = 1, 1
	if both.judge(); both.Busy || len(both.Wrong) != 2 {
		t.Errorf("a loss on a busy machine: busy is %v, %q", both.Busy, both.Wrong)
	}
	shown := Result{Report: good(), Allowed: usualGap, AllowedEcho: echoGap, AllowedExcuse: mostExcused, Wrong: []string{"not in the counts"}}
	shown.Report.Control.Lost = 1
	if shown.judge(); shown.Busy || shown.Wrong[0] != "not in the counts" {
		t.Errorf("what shows in no count, on a busy machine: busy is %v, %q", shown.Busy, shown.Wrong)
	}
	slow := Result{Report: good(), Allowed: usualGap, AllowedEcho: echoGap, AllowedExcuse: mostExcused, Slowest: 11 * time.Second, AllowedChange: usualChange}
	if slow.judge(); !strings.Contains(strings.Join(slow.Wrong, "\n"), "a change took 11s") {
		t.Errorf("a slow change: %q", slow.Wrong)
	}
	flushed := Result{Report: good(), Allowed: repairGap, MayFail: true, AllowedExcuse: mostExcused}
	flushed.Report.ExpectedFailures, flushed.Report.Established.Ours = 100, time.Second
	if flushed.judge(); len(flushed.Wrong) > 0 {
		t.Errorf("flushed: %q", flushed.Wrong)
	}
}

func TestCPUSteal(t *testing.T) {
	before, err := parseProcessors("cpu  10 20 30 40 50 60 70 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseProcessors("cpu  20 30 40 50 60 70 80 110 900 0\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := after.stealSince(before); got != 0.3 {
		t.Errorf("30 ticks of 100 were steal time, got %v", got)
	}
	if got := before.stealSince(before); got != 0 {
		t.Errorf("in no time, %v was CPU steal", got)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 x", "intr 1 2 3 4 5 6 7 8"} {
		if _, err := parseProcessors(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if now, err := readProcessors(); err != nil || now.all == 0 {
		t.Errorf("this machine: %+v, %v", now, err)
	}
}

func TestPage(t *testing.T) {
	result := func(scenario string, gap time.Duration) Result {
		r := Result{Scenario: scenario, Happened: "something", Report: &loadcheck.Report{}, Allowed: usualGap, AllowedExcuse: mostExcused}
		r.Report.Connections, r.Report.Strict, r.Report.New.Ours = 4711, 4711, gap
		r.judge()
		return r
	}
	f := Findings{
		Machine: "a machine", Dataplane: "nftables", Scale: 1, Rate: 2400,
		Ours: []Result{result("kill", 2*time.Millisecond), result("flush", 40*time.Millisecond)}, Upstream: &Beside{Machine: "another", Results: []Result{result("kill", 300*time.Millisecond)}},
		Mutants: []Mutant{{Bug: "does wrong", Result: result("kill", 0)}},
	}
	page := f.Write()
	for _, want := range []string{
		"a machine. Scale 1", "| kill | 4711 |", "kube-proxy, nftables mode\n\nMeasured on another", "Not as promised:\n\n- flush: a gap of 40ms", "does wrong | kill | 0 | 0 | 0 | **0.0** | **no** |",
		"- **kill**: SIGKILL",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if bars := strings.Count(page, "#######"); bars == 0 {
		t.Error("there are no bars")
	}
}

// TestFits: the soak compares the outcome of packets with what the oracle says.
func TestFits(t *testing.T) {
	choice := probe.Answer{Outcome: probe.Forward, Choices: []probe.Choice{{Endpoint: netip.MustParseAddrPort("10.0.0.1:80")}}}
	for _, c := range []struct {
		want probe.Answer
		got  topology.Answer
		ok   bool
	}{
		{choice, topology.Answer{Outcome: topology.Answered, Server: "10.0.0.1:80"}, true},
		{choice, topology.Answer{Outcome: topology.Answered, Server: "10.0.0.2:80"}, false},
		{choice, topology.Answer{Outcome: topology.Refused}, false},
		{probe.Answer{Outcome: probe.Reject}, topology.Answer{Outcome: topology.Refused}, true},
		{probe.Answer{Outcome: probe.Reject}, topology.Answer{Outcome: topology.TimedOut}, false},
		{probe.Answer{Outcome: probe.Drop}, topology.Answer{Outcome: topology.TimedOut}, true},
		{probe.Answer{Outcome: probe.Drop}, topology.Answer{Outcome: topology.Answered}, false},
	} {
		if err := fits(c.want, c.got); (err == nil) != c.ok {
			t.Errorf("%+v, %+v: %v", c.want, c.got, err)
		}
	}
}

// TestAPIServer: it lists, watches, and reports what it has forgotten.
func TestAPIServer(t *testing.T) {
	l := netnstest.Lab(t, topology.Options{})
	f, err := newKubeFeed(t.TempDir(), l.Node(), &dataplane{kind: &kinds[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return l.Node().Dial(ctx, state.TCP, netip.MustParseAddrPort(apiAddress), netip.AddrPort{})
	}}}
	get := func(path string, enough string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api"+path, nil)
		resp, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		var text strings.Builder
		for buf := make([]byte, 4096); !strings.Contains(text.String(), enough); {
			n, err := resp.Body.Read(buf)
			text.Write(buf[:n])
			if err != nil {
				break
			}
		}
		return text.String()
	}
	expect := func(path, want string) {
		t.Helper()
		if got := get(path, want); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", path, got, want)
		}
	}
	put := func() {
		t.Helper()
		if err := f.put([]Object{loaded[0].object()}); err != nil {
			t.Fatal(err)
		}
	}
	put()
	expect("/api/v1/services", `"metadata":{"resourceVersion":"2"},"items":[{`)
	expect("/api/v1/nodes", `"items":[]`)
	expect("/api/v1/services?watch=1&resourceVersion=1", `{"type":"ADDED"`)
	put()
	expect("/api/v1/services?watch=1&resourceVersion=2", `{"type":"MODIFIED"`)
	expect("/api/v1/services?watch=1&resourceVersion=1&sendInitialEvents=true", `"k8s.io/initial-events-end":"true"`)
	if err := f.leave(); err != nil {
		t.Fatal(err)
	}
	expect("/api/v1/services", "refused")
	if err := f.back(); err != nil {
		t.Fatal(err)
	}
	expect("/api/v1/services?watch=1&resourceVersion=3", `"code":410`)
	expect("/api/v1/services", `"items":[{`)
}

// TestNoFaults runs the scenario without faults, and then one of a process that ends by itself.
func TestNoFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds Switchyard")
	}
	o := Options{Source: "../..", Dir: t.TempDir(), Scale: 0.1, Rate: 200, Log: io.Discard, Scenarios: []string{"peace"}, timeout: 10 * time.Second}
	results, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0].Report; r.Bad() > 0 || r.Connections < 100 || r.Control.Connections < 50 {
		t.Errorf("%v", &results[0])
	}
	o.Subject = func(l *topology.Lab, dir string) (Subject, error) {
		d, err := newDataplane(&kinds[0], dir, l)
		if err != nil {
			return nil, err
		}
		f, err := newFileFeed(dir, l.Node().Name, d)
		return newSwitchyard(l, dir, "/bin/false", f, d), err
	}
	results, err = Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := strings.Join(results[0].Wrong, "\n"); !strings.Contains(wrong, "has ended") {
		t.Errorf("a proxy that ends at once: %q", wrong)
	}
}

// TestProcess: what ends by itself is distinguished from what was ended.
func TestProcess(t *testing.T) {
	l := netnstest.Lab(t, topology.Options{})
	log := filepath.Join(t.TempDir(), "log")
	p, err := startProcess(l.Node(), false, log, "/bin/sh", "-c", "echo on $0; sleep 100", "purpose")
	if err != nil {
		t.Fatal(err)
	}
	for tail(log).Error() == "" {
		time.Sleep(time.Millisecond)
	}
	if err := p.end(15); err != nil {
		t.Error(err)
	}
	if err := tail(log); !strings.Contains(err.Error(), "on purpose") {
		t.Errorf("the log says %v", err)
	}
	if p, err = startProcess(l.Node(), false, log, "/bin/false"); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.end(15); err == nil || !strings.Contains(err.Error(), "by itself") {
		t.Errorf("a process that had ended: %v", err)
	}
	if _, err := startProcess(l.Node(), false, log, "/no/such/program"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}
