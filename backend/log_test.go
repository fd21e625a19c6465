package backend_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// withEndpoints returns a record with endpoints at these addresses of 10.0.0.0/16.
func withEndpoints(n string, hosts ...int) *state.Service {
	r := state.Route{Verdict: state.Reject}
	for _, h := range hosts {
		r.Verdict = state.Forward
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(h >> 8), byte(h)}), 80)})
	}
	s := withFrontend(n)
	s.Ports[0].Internal = state.Traffic{Inside: r, Outside: r}
	return s
}

func withFrontend(n string) *state.Service {
	var sum int
	for _, c := range n {
		sum = sum*31 + int(c)
	}
	addr := netip.AddrFrom4([4]byte{10, 96, byte(sum >> 8), byte(sum)})
	return &state.Service{Name: name(n), Ports: []state.Port{{
		Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: 80}},
	}}}
}

// logAt returns a logger that shows lines of a verbosity, without times and durations.
func logAt(out *bytes.Buffer, verbosity int) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.Level(-verbosity), ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "duration" && a.Value.Kind() == slog.KindDuration {
			return slog.Attr{}
		}
		return a
	}}))
}

// TestLogsWhatChanged: with verbosity 2 each applied change is one line, with verbosity 4 each of its services is one, and below neither is.
func TestLogsWhatChanged(t *testing.T) {
	change := func(revision int, full bool, changed, removed, added, gone int, services string) string {
		return fmt.Sprintf(`level=DEBUG+2 msg="applied a change" revision=%d full=%v changed=%d removed=%d failed=0 endpointsAdded=%d endpointsRemoved=%d written=N services=%s`,
			revision, full, changed, removed, added, gone, services)
	}
	service := func(revision int, attrs string) string {
		return fmt.Sprintf(`level=DEBUG msg="applied a change of a service" %s revision=%d`, attrs, revision)
	}
	for verbosity, want := range map[int][]string{
		0: nil,
		1: nil,
		2: {
			change(1, true, 2, 0, 3, 0, `"[default/redis default/web]"`),
			change(2, false, 1, 0, 1, 1, "[default/redis]"),
			change(3, false, 0, 1, 0, 1, "[default/web]"),
			change(4, false, 0, 0, 0, 0, "[]"),
		},
		4: {
			change(1, true, 2, 0, 3, 0, `"[default/redis default/web]"`),
			service(1, `service=default/redis change=new endpointsAdded=2 endpointsRemoved=0 added="[10.0.0.1 10.0.0.2]" removed=[] others=[]`),
			service(1, `service=default/web change=new endpointsAdded=1 endpointsRemoved=0 added=[10.0.0.3] removed=[] others=[]`),
			change(2, false, 1, 0, 1, 1, "[default/redis]"),
			service(2, `service=default/redis change=changed endpointsAdded=1 endpointsRemoved=1 added=[10.0.0.7] removed=[10.0.0.1] others=[affinity]`),
			change(3, false, 0, 1, 0, 1, "[default/web]"),
			service(3, `service=default/web change=removed endpointsAdded=0 endpointsRemoved=1 added=[] removed=[10.0.0.3] others=[]`),
			change(4, false, 0, 0, 0, 0, "[]"),
		},
	} {
		var out bytes.Buffer
		start(t, backend.RunOptions{Logger: logAt(&out, verbosity)}, func(b *bench) {
			b.publish(withEndpoints("redis", 1, 2), withEndpoints("web", 3))
			b.after(0)
			redis := withEndpoints("redis", 2, 7)
			redis.Ports[0].Affinity = 3e9
			b.publish(redis)
			b.after(0)
			b.feed.Publish(nil, name("web"))
			b.after(0)
			b.publish(redis) // a record that the dataplane has
			b.after(0)
		})
		text := regexp.MustCompile(`written=\d+`).ReplaceAllString(out.String(), "written=N")
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
		if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("verbosity %d: got\n%s\nwant\n%s", verbosity, got, strings.Join(want, "\n"))
		}
	}
}

// TestLogOfLargeChange: the lines of one change, and the names in a line, are bounded.
func TestLogOfLargeChange(t *testing.T) {
	var out bytes.Buffer
	start(t, backend.RunOptions{Logger: logAt(&out, 4)}, func(b *bench) {
		var all []*state.Service
		for i := range 250 {
			all = append(all, withEndpoints(fmt.Sprintf("s%03d", i), i))
		}
		var hosts []int
		for i := range 5000 {
			hosts = append(hosts, i)
		}
		all[0] = withEndpoints("s000", hosts...)
		b.publish(all...)
		b.after(0)
	})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 102 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range map[int]string{
		0:   "changed=250 removed=0 failed=0 endpointsAdded=5249",
		1:   "endpointsAdded=5000 endpointsRemoved=0 added=\"[10.0.0.0 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7]\"",
		101: `msg="leaving out further services of a change" revision=1 services=150`,
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %s", i, lines[i])
		}
	}
	for _, line := range lines {
		if len(line) > 1000 {
			t.Errorf("a line of %d bytes: %.200s", len(line), line)
		}
	}
}

// TestAttemptBefore: an observer gets the records that the dataplane held before each update.
func TestAttemptBefore(t *testing.T) {
	var got []string
	start(t, backend.RunOptions{OnAttempt: func(a backend.Attempt) {
		var line []string
		for n, s := range a.Before {
			line = append(line, fmt.Sprint(n.Name, " ", len(s.Ports[0].Internal.Inside.Endpoints)))
		}
		got = append(got, strings.Join(line, ", "))
	}}, func(b *bench) {
		b.publish(withEndpoints("a", 1))
		b.after(0)
		b.publish(withEndpoints("b", 1, 2))
		b.after(0)
		b.publish(withEndpoints("b", 1, 2, 3))
		b.after(0)
		b.feed.Publish(nil, name("b"))
		b.after(0)
		b.feed.Forget()
		b.publish(withEndpoints("a", 4))
		b.after(0)
	})
	if want := []string{"", "", "b 2", "b 3", "a 1"}; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
