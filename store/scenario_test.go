package store

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata/*.scenario")

// TestScenarios runs testdata/*.scenario. A scenario is a list of commands, each followed by the output expected from it, indented.
// The commands are:
//
//	source A              register a source
//	complete A            it has delivered everything
//	A: OBJECT; OBJECT     one Update of source A, see [parseObject]
//	next                  what the consumer gets, or "nothing" if it would have to wait
//	logs                  the warnings since the last time
//	limit N               bound the change log to N names
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.scenario")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".scenario"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			synctest.Test(t, func(t *testing.T) { got = play(t, string(want)) })
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("the scenario went differently:\n%s", diff(string(want), got))
			}
		})
	}
}

// diff shows the first line that differs, in its place.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	i := 0
	for i < len(w) && i < len(g) && w[i] == g[i] {
		i++
	}
	return fmt.Sprintf("line %d\n--- want\n%s\n--- got\n%s", i+1, strings.Join(w[max(0, i-3):], "\n"), strings.Join(g[max(0, i-3):], "\n"))
}

// play runs a scenario and returns it with the output that came.
func play(t *testing.T, scenario string) string {
	var logs, out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
	s := New(Options{Brain: brain.Config{NodeName: "n1"}, Logger: logger})
	defer s.Close()
	sinks := make(map[string]model.Sink)
	consumer := &consumer{feed: s}
	for line := range strings.Lines(scenario) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || verb == "#":
		case verb == "source":
			sinks[rest] = s.Source(rest)
		case verb == "complete":
			sinks[rest].Complete()
		case verb == "next":
			consumer.next(t, &out)
		case verb == "limit":
			n, err := strconv.Atoi(rest)
			if err != nil {
				t.Fatal(err)
			}
			s.feed.SetLimit(n)
		case verb == "logs":
			for l := range strings.Lines(logs.String()) {
				fmt.Fprint(&out, "  ", l)
			}
			logs.Reset()
		case strings.HasSuffix(verb, ":") && sinks[strings.TrimSuffix(verb, ":")] != nil:
			set, deleted := parseObjects(t, rest)
			sinks[strings.TrimSuffix(verb, ":")].Update(set, deleted)
		default:
			t.Fatalf("not a command: %q", line)
		}
	}
	return out.String()
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}

// consumer asks for what is newer than what it has.
type consumer struct {
	feed  state.Feed
	after state.Revision
	node  *state.Node
}

func (c *consumer) next(t *testing.T, out *bytes.Buffer) {
	u := tryNext(t, c.feed, c.after)
	if u == nil {
		fmt.Fprintln(out, "  nothing")
		return
	}
	full := ""
	if u.Full {
		full = ", full"
	}
	fmt.Fprintf(out, "  revision %d%s\n", u.Revision, full)
	if u.Node != c.node {
		fmt.Fprintf(out, "  node %s %v pods %v services %v\n", u.Node.Name, u.Node.Addresses, u.Node.PodCIDRs, u.Node.ServiceCIDRs)
	}
	for _, r := range u.Changed {
		fmt.Fprintf(out, "  %v\n", r.Name)
		for _, p := range r.Ports {
			for _, f := range p.Frontends {
				fmt.Fprintf(out, "    %v\n", describe(&p, &f))
			}
		}
	}
	for _, name := range u.Removed {
		fmt.Fprintf(out, "  %v removed\n", name)
	}
	c.after, c.node = u.Revision, u.Node
}

// tryNext returns nil if Next would have to wait. It works in a synctest bubble only.
func tryNext(t *testing.T, feed state.Feed, after state.Revision) *state.Update {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan *state.Update, 1)
	go func() {
		u, _ := feed.Next(ctx, after)
		got <- u
	}()
	synctest.Wait()
	cancel()
	return <-got
}

func describe(p *state.Port, f *state.Frontend) string {
	traffic := p.External
	if f.Kind == state.ClusterIP {
		traffic = p.Internal
	}
	to := traffic.Inside.Verdict.String()
	if traffic.Inside.Verdict == state.Forward {
		var addrs []string
		for _, e := range traffic.Inside.Endpoints {
			addrs = append(addrs, e.Addr.String())
		}
		to = strings.Join(addrs, " ")
	}
	return fmt.Sprintf("%v %v -> %s", f.Kind, p.Key(f), to)
}

func parseObjects(t *testing.T, text string) (set []model.Object, deleted []model.Ref) {
	for item := range strings.SplitSeq(text, ";") {
		words := strings.Fields(item)
		if words[0] == "delete" {
			deleted = append(deleted, parseObject(t, words[1:]).Ref())
		} else {
			set = append(set, parseObject(t, words))
		}
	}
	return set, deleted
}

// parseObject reads one of
//
//	service NS/NAME ADDR:PORT... [proxy=NAME] [headless] [udp] [external=ADDR] [balancer=ADDR] [created=SECONDS] [nodePort=PORT] [local]
//	slice NS/NAME SERVICE ADDR... [ADDR!unready] [ADDR@NODE]
//	namespace NAME [disabled]
//	node NAME [zone=ZONE] [ADDR...] [PREFIX...]
//	cidr NAME PREFIX...
//
// An endpoint's port is 8080.
func parseObject(t *testing.T, words []string) model.Object {
	t.Helper()
	kind, name, words := words[0], words[1], words[2:]
	switch kind {
	case "service":
		return parseService(t, name, words)
	case "slice":
		return parseSlice(t, name, words)
	case "namespace":
		return &model.Namespace{Name: name, ProxyDisabled: len(words) == 1 && words[0] == "disabled"}
	case "cidr":
		c := &model.ServiceCIDR{Name: name}
		for _, w := range words {
			c.CIDRs = append(c.CIDRs, netip.MustParsePrefix(w))
		}
		return c
	case "node":
		n := &model.Node{Name: name}
		for _, w := range words {
			if zone, ok := strings.CutPrefix(w, "zone="); ok {
				n.Zone = zone
			} else if strings.Contains(w, "/") {
				n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(w))
			} else {
				n.Addresses = append(n.Addresses, netip.MustParseAddr(w))
			}
		}
		return n
	}
	t.Fatalf("not a kind: %q", kind)
	return nil
}

func parseService(t *testing.T, name string, words []string) *model.Service {
	s := &model.Service{Name: parseName(name), Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "headless":
			s.Headless = true
		case "local":
			s.ExternalLocal = true
		case "udp":
			s.Ports[0].Protocol = state.UDP
		case "proxy":
			s.HasProxyName, s.ProxyName = true, value
		case "created":
			seconds, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			s.Created = time.Unix(seconds, 0).UTC()
		case "balancer":
			s.Type = model.TypeLoadBalancer
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.MustParseAddr(value))
		case "external":
			s.ExternalIPs = append(s.ExternalIPs, netip.MustParseAddr(value))
		case "nodePort":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				t.Fatal(err)
			}
			s.Type = model.TypeNodePort
			s.Ports[0].NodePort = uint16(port)
		default:
			addr := netip.MustParseAddrPort(w)
			s.ClusterIPs = append(s.ClusterIPs, addr.Addr())
			s.Ports[0].Port = addr.Port()
		}
	}
	return s
}

func parseSlice(t *testing.T, name string, words []string) *model.EndpointSlice {
	n := parseName(name)
	s := &model.EndpointSlice{Namespace: n.Namespace, Name: n.Name, Family: state.IPv4}
	for i, w := range words {
		if i == 0 && !strings.Contains(w, ".") {
			s.Service = w
			continue
		}
		w, node, _ := strings.Cut(w, "@")
		w, unready := strings.CutSuffix(w, "!unready")
		addr, err := netip.ParseAddr(w)
		if err != nil {
			t.Fatal(err)
		}
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: addr, Ready: !unready, Serving: !unready, NodeName: node})
	}
	s.Ports = []model.EndpointPort{{Protocol: state.TCP, Port: 8080}, {Protocol: state.UDP, Port: 8080}}
	return s
}

func parseName(text string) state.ServiceName {
	namespace, name, _ := strings.Cut(text, "/")
	return state.ServiceName{Namespace: namespace, Name: name}
}
