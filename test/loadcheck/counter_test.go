//go:build linux

package loadcheck

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

const port = 8080

// stage is a lab with a server, which connections reach without any proxy, and a client.
type stage struct {
	*testing.T
	lab            *topology.Lab
	server, client *topology.Host
}

func newStage(t *testing.T) *stage {
	l := netnstest.Lab(t, topology.Options{})
	s := &stage{T: t, lab: l}
	for name, host := range map[string]**topology.Host{"server": &s.server, "client": &s.client} {
		pod, err := l.AddPod(topology.PodOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		*host = pod
	}
	return s
}

func (s *stage) at(family int) netip.AddrPort {
	return netip.AddrPortFrom(s.server.Addrs[family], port)
}

// stream connects to the server.
func (s *stage) stream(proto state.Protocol, family int, judge Judge) Stream {
	target := Target{Name: "server", Protocol: proto, Addr: s.at(family)}
	return Stream{From: s.client, Client: probe.FromPod, Target: target, Judge: judge, Every: 2 * time.Millisecond, Flows: 3, Pause: 2 * time.Millisecond}
}

// count runs streams for a while.
func (s *stage) count(o Options, during func()) *Report {
	s.Helper()
	// Long enough for a busy machine; what is lost is only waited for at the end.
	o.Timeout, o.EstablishedTimeout, o.CutTimeout = 10*time.Second, 11*time.Second, 50*time.Millisecond
	c := Start(o)
	during()
	r, err := c.Stop()
	if err != nil {
		s.Fatal(err)
	}
	s.Logf("%+v", *r)
	return r
}

func awhile() { time.Sleep(300 * time.Millisecond) }

// TestNothingIsCountedWithoutFaults: nothing is counted where nothing is wrong.
func TestNothingIsCountedWithoutFaults(t *testing.T) {
	s := newStage(t)
	var streams []Stream
	for family := range 2 {
		server, err := Serve(s.server, s.at(family), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			streams = append(streams, s.stream(proto, family, Plainly{}))
		}
	}
	control := s.stream(state.TCP, 0, Plainly{})
	control.Control = true
	r := s.count(Options{Streams: append(streams, control)}, awhile)
	if r.Bad() > 0 || r.ExpectedFailures+r.Ended > 0 || r.Connections < 20 || r.Requests < r.Connections || r.Control.Connections < 5 {
		t.Errorf("%+v", r)
	}
}

// rogue is a server that does what its answer function says: with what to answer, which may be nothing, and whether to reset.
type rogue func(connection, request uint64) (line string, reset bool)

func (s *stage) serveRogue(answer rogue) {
	s.Helper()
	var l net.Listener
	var p net.PacketConn
	err := s.server.Do(func() (err error) {
		if l, err = net.Listen("tcp", s.at(0).String()); err == nil {
			p, err = net.ListenPacket("udp", s.at(0).String())
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	var done sync.WaitGroup
	s.Cleanup(func() { l.Close(); p.Close(); done.Wait() })
	parse := func(text string) (string, bool) {
		var connection, request uint64
		fmt.Sscanf(text, "%d %d", &connection, &request)
		return answer(connection, request)
	}
	done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			done.Go(func() {
				defer conn.Close()
				for requests := bufio.NewScanner(conn); requests.Scan(); {
					line, reset := parse(requests.Text())
					if reset {
						conn.(*net.TCPConn).SetLinger(0)
						return
					}
					conn.Write([]byte(line))
				}
			})
		}
	})
	done.Go(func() {
		buf := make([]byte, 512)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			if line, _ := parse(string(buf[:n])); line != "" {
				p.WriteTo([]byte(line), from)
			}
		}
	})
}

// TestFaultsAreCounted has servers that do wrong.
func TestFaultsAreCounted(t *testing.T) {
	var asked atomic.Uint64
	often := func() bool { return asked.Add(1)%10 == 0 }
	right := func(s *stage, connection, request uint64) string {
		return fmt.Sprintf("%v 192.0.2.9:9 %d %d\n", s.at(0), connection, request)
	}
	cases := []struct {
		name   string
		proto  state.Protocol
		answer func(s *stage, connection, request uint64) (string, bool)
		count  func(*Report) int
		text   string
	}{
		{"lost", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if r == 1 && often() {
				return "", false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.Lost }, "no answer"},
		{"lost datagram", state.UDP, func(s *stage, c, r uint64) (string, bool) {
			if often() {
				return "", false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.Lost }, "no answer"},
		{"established falls silent", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if r == 5 {
				return "", false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.Lost }, "with "},
		{"reset", state.TCP, func(s *stage, c, r uint64) (string, bool) { return right(s, c, r), r == 1 && often() },
			func(r *Report) int { return r.Reset }, "was reset"},
		{"established reset", state.TCP, func(s *stage, c, r uint64) (string, bool) { return right(s, c, r), r == 5 },
			func(r *Report) int { return r.Reset }, "with "},
		{"another connection's answer", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if often() {
				c++
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.WrongEndpoint }, "got the answer"},
		{"another server", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if often() {
				return fmt.Sprintf("10.9.9.9:1 192.0.2.9:9 %d %d\n", c, r), false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.WrongEndpoint }, "10.9.9.9"},
		{"takes leave of a new connection", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if r == 1 && often() {
				return fmt.Sprintf("%v bye\n", s.at(0)), false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.Reset }, "which was ending"},
		{"another takes leave", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if r == 5 {
				return "10.9.9.9:1 bye\n", false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.Reset }, "which was ending"},
		{"an earlier answer again", state.UDP, func(s *stage, c, r uint64) (string, bool) {
			if r == 5 {
				r = 4
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.WrongEndpoint }, "the last of them was 5"},
		{"an established connection moves", state.TCP, func(s *stage, c, r uint64) (string, bool) {
			if r == 5 {
				return fmt.Sprintf("10.9.9.9:1 192.0.2.9:9 %d %d\n", c, r), false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.WrongEndpoint }, "was with"},
		{"an established flow moves", state.UDP, func(s *stage, c, r uint64) (string, bool) {
			if r == 5 {
				return fmt.Sprintf("10.9.9.9:1 192.0.2.9:9 %d %d\n", c, r), false
			}
			return right(s, c, r), false
		}, func(r *Report) int { return r.WrongEndpoint }, "was with"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			var faults atomic.Int64
			s.serveRogue(func(connection, request uint64) (string, bool) {
				line, reset := c.answer(s, connection, request)
				if reset || line != right(s, connection, request) {
					faults.Add(1)
				}
				return line, reset
			})
			r := s.count(Options{Streams: []Stream{s.stream(c.proto, 0, Plainly{})}}, func() {
				time.Sleep(800 * time.Millisecond)
				for end := time.Now().Add(time.Minute); faults.Load() == 0 && time.Now().Before(end); { // on a busy machine
					awhile()
				}
			})
			if n := c.count(r); n == 0 || n != r.Bad() {
				t.Errorf("%d are counted, and %d in all went wrong", n, r.Bad())
			}
			if !strings.Contains(strings.Join(r.Faults, "\n"), c.text) {
				t.Errorf("no fault says %q: %s", c.text, strings.Join(r.Faults, "\n"))
			}
		})
	}
}

// rule is a judge that always says the same.
type rule []State

func (r rule) States(*Target, probe.Client, netip.Addr, time.Time, time.Time) []State { return r }

// TestVerdictDependsOnStates: the verdict about a connection depends on the current states.
func TestVerdictDependsOnStates(t *testing.T) {
	s := newStage(t)
	server, err := Serve(s.server, s.at(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	self, other := []netip.AddrPort{s.at(0)}, []netip.AddrPort{netip.MustParseAddrPort("10.9.9.9:1")}
	for _, c := range []struct {
		name string
		rule rule
		bad  bool
	}{
		{"allowed", rule{both(self)}, false},
		{"allowed before a change", rule{both(self), both(other)}, false},
		{"another is", rule{both(other)}, true},
		{"nobody is", rule{{}}, true},
		{"keeps its flows", rule{{Allowed: self, Serving: other}, {Allowed: other, Serving: self}}, false},
	} {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			r := s.count(Options{Streams: []Stream{s.stream(proto, 0, c.rule)}}, awhile)
			if strict := r.Strict > 0; strict != (len(c.rule) == 1) {
				t.Errorf("%s, %v: %d were judged by one state", c.name, proto, r.Strict)
			}
			if bad := r.WrongEndpoint > 0; bad != c.bad || r.Lost+r.Reset > 0 {
				t.Errorf("%s, %v: %+v", c.name, proto, r.Counts)
			}
		}
	}
	// A UDP flow must not stay with an endpoint that does not serve, though new connections may still go there.
	if r := s.count(Options{Streams: []Stream{s.stream(state.UDP, 0, rule{{Allowed: self, Serving: other}})}}, awhile); r.WrongEndpoint == 0 {
		t.Errorf("a stale flow: %+v", r.Counts)
	}
	left := State{Allowed: self, Serving: other, LeftFlows: true}
	if r := s.count(Options{Streams: []Stream{s.stream(state.UDP, 0, rule{left})}}, awhile); r.Bad() > 0 {
		t.Errorf("a stale flow while nobody cuts any: %+v", r.Counts)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	r := s.count(Options{Streams: []Stream{s.stream(state.TCP, 0, rule{both(self), {}})}}, awhile)
	if r.Bad() > 0 || r.ExpectedFailures == 0 {
		t.Errorf("refused, as one of two states wants it: %+v", r.Counts)
	}
	if r := s.count(Options{Streams: []Stream{s.stream(state.TCP, 0, rule{both(self)})}}, awhile); r.Reset == 0 || r.ExpectedFailures > 0 {
		t.Errorf("refused, though allowed: %+v", r.Counts)
	}
	interrupted := both(self)
	interrupted.Interrupted = true
	r = s.count(Options{Streams: []Stream{s.stream(state.TCP, 0, rule{interrupted})}}, awhile)
	if r.Bad() > 0 || r.ExpectedFailures == 0 || r.New.Longest < 100*time.Millisecond {
		t.Errorf("refused, as somebody else wants it: %+v", *r)
	}
	var silent atomic.Bool
	s.serveRogue(func(connection, request uint64) (string, bool) {
		if request == 5 {
			silent.Store(true)
			return "", false
		}
		return fmt.Sprintf("%v 192.0.2.9:9 %d %d\n", s.at(0), connection, request), false
	})
	untilSilent := func() {
		awhile()
		await.Until(s, "the server is silent", silent.Load)
		awhile()
	}
	if r := s.count(Options{Streams: []Stream{s.stream(state.TCP, 0, rule{interrupted})}}, untilSilent); r.Lost == 0 {
		t.Errorf("an established connection falls silent for good, which nobody else wants: %+v", r.Counts)
	}
}

// wrongAnswers runs a stream whose answers are all wrong, and returns where its connections came from that had to be explained.
func (s *stage) wrongAnswers(proto state.Protocol) (from []netip.AddrPort, faults []string) {
	s.Helper()
	var mu sync.Mutex
	explain := func(p state.Protocol, a netip.AddrPort) string {
		mu.Lock()
		defer mu.Unlock()
		from = append(from, a)
		return fmt.Sprintf("; explained: %v from %v", p, a)
	}
	stream := s.stream(proto, 0, rule{{}})
	stream.Flows = 0
	r := s.count(Options{Streams: []Stream{stream}, Explain: explain}, func() {
		for end := time.Now().Add(time.Minute); time.Now().Before(end); awhile() { // on a busy machine
			mu.Lock()
			n := len(from)
			mu.Unlock()
			if n == maxFaults {
				return
			}
		}
		s.Errorf("%v: %d wrong answers were explained", proto, len(from))
	})
	return from, r.Faults
}

// TestExplained: each fault that is described has its own explanation.
func TestExplained(t *testing.T) {
	s := newStage(t)
	server, err := Serve(s.server, s.at(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		from, faults := s.wrongAnswers(proto)
		for _, a := range from {
			if a.Addr() != s.client.Addrs[0] {
				t.Errorf("%v: a connection is from %v", proto, a)
			}
		}
		for _, fault := range faults {
			_, a, _ := strings.Cut(fault, ", from ")
			a, _, _ = strings.Cut(a, ": ")
			if !strings.HasSuffix(fault, fmt.Sprintf("; explained: %v from %v", proto, a)) {
				t.Errorf("%v: %s", proto, fault)
			}
		}
	}
}

// TestPortsAreFresh: connections have ports of their own, though the system would choose the same ones again.
func TestPortsAreFresh(t *testing.T) {
	s := newStage(t)
	server, err := Serve(s.server, s.at(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := s.client.SetSysctls(netns.Sysctl{Path: "net/ipv4/ip_local_port_range", Value: "40000 40003"}); err != nil {
		t.Fatal(err)
	}
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		seen := map[netip.AddrPort]bool{}
		from, _ := s.wrongAnswers(proto)
		for _, a := range from {
			if seen[a] {
				t.Errorf("%v: another connection is from %v, too", proto, a)
			}
			seen[a] = true
		}
	}
}

// TestCutUnanswered: a new flow of datagrams is not lost if its endpoint ceases to serve before its answer is there. Who had it, the servers know.
func TestCutUnanswered(t *testing.T) {
	s := newStage(t)
	self, other := []netip.AddrPort{s.at(0)}, []netip.AddrPort{netip.MustParseAddrPort("10.9.9.9:1")}
	var receipts Receipts
	s.serveRogue(func(connection, _ uint64) (string, bool) {
		receipts.add(connection, s.at(0))
		return "", false
	})
	for _, c := range []struct {
		name     string
		rule     rule
		receipts *Receipts
		lost     bool
	}{
		{"the endpoint goes", rule{both(self), both(other)}, &receipts, false},
		{"the endpoint stays", rule{both(self)}, &receipts, true},
		{"it takes no new ones", rule{both(self), {Allowed: other, Serving: self}}, &receipts, true},
		{"nobody had it", rule{both(self), both(other)}, nil, true},
	} {
		st := s.stream(state.UDP, 0, c.rule)
		st.Flows = 0
		r := s.count(Options{Streams: []Stream{st}, Receipts: c.receipts}, awhile)
		if lost := r.Lost > 0; lost != c.lost || lost == (r.Ended > 0) || r.Bad() > r.Lost {
			t.Errorf("%s: %+v, want lost: %v", c.name, r.Counts, c.lost)
		}
	}
}

// TestReceipts: servers note who had a datagram.
func TestReceipts(t *testing.T) {
	s := newStage(t)
	var receipts Receipts
	server, err := Serve(s.server, s.at(0), &receipts)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	st := s.stream(state.UDP, 0, Plainly{})
	st.Flows = 0
	first := numbers.Load() + 1
	r := s.count(Options{Streams: []Stream{st}, Receipts: &receipts}, awhile)
	for n := first; n <= numbers.Load(); n++ {
		if got := receipts.of(n); got.IsValid() && got != s.at(0) {
			t.Errorf("connection %d: %v", n, got)
		} else if got.IsValid() {
			r.Connections--
		}
	}
	if r.Connections != 0 {
		t.Errorf("of %d connections, nobody is known to have had them", r.Connections)
	}
	if got := receipts.of(first + 1<<40); got.IsValid() {
		t.Errorf("a connection that there is not: %v", got)
	}
}

// TestEndedOpen: a process that ends takes open connections with it, but no new ones.
func TestEndedOpen(t *testing.T) {
	for _, first := range []bool{true, false} {
		s := newStage(t)
		state0 := both([]netip.AddrPort{s.at(0)})
		state0.EndedOpen = true
		s.serveRogue(func(connection, request uint64) (string, bool) {
			return fmt.Sprintf("%v 192.0.2.9:9 %d %d\n", s.at(0), connection, request), (request == 1) == first
		})
		st := s.stream(state.TCP, 0, rule{state0})
		r := s.count(Options{Streams: []Stream{st}}, awhile)
		if first != (r.Reset > 0) || first == (r.Ended > 0) {
			t.Errorf("with resets of new ones %v: %+v", first, r.Counts)
		}
	}
}

// both is a state in which endpoints are allowed and serve.
func both(endpoints []netip.AddrPort) State { return State{Allowed: endpoints, Serving: endpoints} }

// TestLeave: a server that ends as it should breaks no connection.
func TestLeave(t *testing.T) {
	s := newStage(t)
	first, err := Serve(s.server, s.at(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	st := s.stream(state.TCP, 0, Plainly{})
	st.Every = 0
	r := s.count(Options{Streams: []Stream{st}}, func() {
		awhile()
		first.Close()
	})
	if r.Ended < st.Flows {
		t.Errorf("%d of %d connections noticed the end", r.Ended, st.Flows)
	}
	if r.WrongEndpoint+r.Lost > 0 {
		t.Errorf("%+v", r.Counts)
	}
}

// TestHashed: a client of a hash that moves is a fault, unless the state has changed, or no hash counts.
func TestHashed(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.9.9.1:1"), netip.MustParseAddrPort("10.9.9.2:1")
	drawn := both([]netip.AddrPort{a, b})
	hashed := drawn
	hashed.Hashed = true
	for _, x := range []struct {
		name          string
		rule          rule
		servers       []netip.AddrPort
		compared, bad int
	}{
		{"stays", rule{hashed}, []netip.AddrPort{a, a, a}, 2, 0},
		{"moves", rule{hashed}, []netip.AddrPort{a, b, b}, 2, 1},
		{"moves while two states count", rule{hashed, hashed}, []netip.AddrPort{a, b}, 0, 0},
		{"draws", rule{drawn}, []netip.AddrPort{a, b}, 0, 0},
	} {
		s := aStream()
		s.Judge, s.counter = x.rule, &Counter{began: zero}
		for i, server := range x.servers {
			s.judgeNew(&conn{server: server}, at(2*i), at(2*i+1))
		}
		if s.counts.Hashed != x.compared || s.counts.WrongEndpoint != x.bad {
			t.Errorf("%s: %d compared and %d faults, want %d and %d", x.name, s.counts.Hashed, s.counts.WrongEndpoint, x.compared, x.bad)
		}
	}
}

// TestSticky: a client that moves although nothing made it is a fault.
func TestSticky(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.9.9.1:1"), netip.MustParseAddrPort("10.9.9.2:1"), netip.MustParseAddrPort("10.9.9.3:1")
	all := both([]netip.AddrPort{a, b, c})
	interrupted := all
	interrupted.Interrupted = true
	type step struct {
		server       netip.AddrPort
		since, until int
	}
	for _, x := range []struct {
		name  string
		rule  rule
		steps []step
		bad   int
	}{
		{"stays", rule{all}, []step{{a, 0, 1}, {a, 2, 3}, {a, 4, 5}}, 0},
		{"moves", rule{all}, []step{{a, 0, 1}, {b, 2, 3}}, 1},
		{"has moved", rule{all}, []step{{a, 0, 1}, {b, 2, 3}, {b, 4, 5}}, 1},
		{"begins side by side", rule{all}, []step{{a, 0, 3}, {b, 1, 4}, {a, 5, 6}}, 0},
		{"begins side by side and goes to a third", rule{all}, []step{{a, 0, 3}, {b, 1, 4}, {c, 5, 6}}, 1},
		{"an earlier one is answered late", rule{all}, []step{{a, 3, 4}, {b, 0, 5}, {a, 6, 7}}, 0},
		{"its endpoint is gone", rule{all, both([]netip.AddrPort{b, c})}, []step{{a, 0, 1}, {b, 2, 3}}, 0},
		{"somebody has deleted what was remembered", rule{all, interrupted}, []step{{a, 0, 1}, {b, 2, 3}}, 0},
	} {
		s := aStream()
		s.Sticky, s.Judge, s.counter = true, x.rule, &Counter{began: zero}
		for _, step := range x.steps {
			s.judgeNew(&conn{server: step.server}, at(step.since), at(step.until))
		}
		if s.counts.WrongEndpoint != x.bad {
			t.Errorf("%s: %d faults, want %d", x.name, s.counts.WrongEndpoint, x.bad)
		}
	}
}

// TestOwn: a server must see the client's own address where that is asked for, and it is counted where it does.
func TestOwn(t *testing.T) {
	own := func(s *stage, proto state.Protocol) *Report {
		stream := s.stream(proto, 0, Plainly{})
		stream.Own = true
		return s.count(Options{Streams: []Stream{stream}}, awhile)
	}
	for _, proto := range []state.Protocol{state.TCP, state.UDP} {
		s := newStage(t)
		server, err := Serve(s.server, s.at(0), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r := own(s, proto); r.Bad() > 0 || r.Own == 0 || r.Own != r.Connections {
			t.Errorf("%v: %+v", proto, r.Counts)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		s.serveRogue(func(connection, request uint64) (string, bool) {
			return fmt.Sprintf("%v 192.0.2.9:9 %d %d\n", s.at(0), connection, request), false
		})
		if r := own(s, proto); r.WrongEndpoint != r.Bad() || r.WrongEndpoint < r.Connections || r.Own > 0 || !strings.Contains(strings.Join(r.Faults, "\n"), "sees the client 192.0.2.9:9") {
			t.Errorf("%v, with another client: %+v", proto, r)
		}
	}
}
