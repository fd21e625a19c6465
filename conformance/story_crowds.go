//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// visit is a client address and where it connects to.
type visit struct {
	from netip.Addr
	to   netip.AddrPort
}

// answered says who answered a visit, and when.
type answered struct {
	server       string
	began, ended time.Time
}

// survey: survey NAME FROM PROTO TO [unchanged|changed|unchanged-except=HOST] [within=DURATION] [across|hashed]
//
// It connects once from each of the host's addresses to each frontend, and notes who answered. Then it compares with the last survey
// of that name: nobody, or somebody, was answered by another server than before. With unchanged-except, all that HOST
// answered before are answered by others now, and all the others by the same. With within, it leaves out clients whose two connections are
// further apart, as on a busy machine. With across, each client is answered by the same server at all addresses. With hashed, that is so and the
// comparison is made if the dataplane hashes. Not all clients of a family are answered by one server then. Another dataplane only has to let all
// of them connect.
func (s *story) survey(ts *testscript.TestScript, args []string) error {
	var (
		how    string
		within time.Duration
		across bool
		hashed bool
		rest   = args
	)
	for len(rest) > 4 {
		last := rest[len(rest)-1]
		if limit, ok := strings.CutPrefix(last, "within="); ok {
			d, err := time.ParseDuration(limit)
			if err != nil {
				return err
			}
			within = d
		} else if last == "across" || last == "hashed" {
			across, hashed = true, last == "hashed"
		} else {
			how = last
		}
		rest = rest[:len(rest)-1]
	}
	if len(rest) < 4 || s.hosts[rest[1]] == nil {
		return errors.New("usage: survey NAME FROM PROTO TO [unchanged|changed|unchanged-except=HOST] [within=DURATION] [across|hashed]")
	}
	if hashed && !s.cluster.programs(state.Balances) {
		how, across, hashed = "", false, false
	}
	name, host := rest[0], s.hosts[rest[1]]
	proto, err := parseProtocol(rest[2])
	if err != nil {
		return err
	}
	dsts, err := s.served(proto, rest[3])
	if err != nil {
		return err
	}
	before, now := s.surveys[name], map[visit]answered{}
	var (
		mu      sync.Mutex // guards now and errs
		errs    []error
		clients sync.WaitGroup
	)
	for _, addr := range host.Addrs {
		clients.Go(func() {
			visits, err := s.visits(host, proto, addr, dsts, across)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(now, visits)
			errs = append(errs, err)
		})
	}
	clients.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.surveys[name] = now
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		if servers := answerers(now, f); hashed && len(servers) < 2 {
			return fmt.Errorf("all clients of %v are answered by %v", f, servers)
		}
	}
	if how == "" {
		return nil
	}
	if before == nil {
		return fmt.Errorf("there is no survey %s to compare with", name)
	}
	if within > 0 {
		all := len(now)
		now = maps.Clone(now)
		maps.DeleteFunc(now, func(v visit, a answered) bool { return a.ended.Sub(before[v].began) > within })
		ts.Logf("%d of %d clients came again within %v", len(now), all, within)
		if len(now) == 0 {
			return fmt.Errorf("no client came again within %v: the machine is too busy for this story", within)
		}
	}
	return compareSurveys(before, now, how)
}

// visits connects from one address to destinations of its family, one after the other, and returns who answered. With across, all answers
// must come from the same server.
func (s *story) visits(host *topology.Host, proto state.Protocol, from netip.Addr, dsts []netip.AddrPort, across bool) (map[visit]answered, error) {
	visits, server := map[visit]answered{}, ""
	for _, dst := range dsts {
		if from.Is4() != dst.Addr().Is4() {
			continue
		}
		options := topology.ProbeOptions{Source: from, Timeout: answerTimeout}
		if proto != state.TCP {
			options.SourcePort = s.freshPorts(host, 1) // what the kernel remembers of a flow outlives affinity
		}
		began := time.Now()
		answer := host.Probe(s.ctx, proto, dst, options)
		if answer.Outcome != topology.Answered {
			return nil, fmt.Errorf("%v to %v %v: %v (%w)", from, proto, dst, answer.Outcome, answer.Err)
		}
		visits[visit{from, dst}] = answered{answer.Server, began, time.Now()}
		if across && server != "" && server != answer.Server {
			return nil, fmt.Errorf("%v to %v was answered by %s, and at another address of the Service port by %s", from, dst, answer.Server, server)
		}
		server = answer.Server
	}
	return visits, nil
}

// answerers returns the servers that answered clients of a family, and how often.
func answerers(of map[visit]answered, f state.Family) map[string]int {
	servers := map[string]int{}
	for v, a := range of {
		if state.FamilyOf(v.from) == f {
			servers[a.server]++
		}
	}
	return servers
}

func compareSurveys(before, now map[visit]answered, how string) error {
	moved := 0
	_, gone, _ := strings.Cut(how, "unchanged-except=")
	for v, a := range now {
		was := before[v].server
		changed := a.server != was
		if changed {
			moved++
		}
		if how != "changed" && changed != (was == gone) {
			return fmt.Errorf("%v to %v was answered by %s and now by %s", v.from, v.to, was, a.server)
		}
	}
	if how == "changed" && moved == 0 {
		return fmt.Errorf("all %d clients are still answered by the same server", len(now))
	}
	if gone == "" && how != "changed" && how != "unchanged" {
		return fmt.Errorf("unknown word %q", how)
	}
	return nil
}

// load is a stream of connections that goes on while the story does.
type load struct {
	host    *topology.Host
	proto   state.Protocol
	quit    context.CancelFunc
	done    sync.WaitGroup
	mu      sync.Mutex
	answers map[netip.AddrPort][]topology.Answer
}

// loadWorkers is how many connections of a load are under way for each address.
const loadWorkers = 2

// resendAfter is when a resending load sends a datagram again.
const resendAfter = 300 * time.Millisecond

// startLoad: load NAME FROM PROTO TO [resending]
//
// It connects again and again, until unload. A resending load sends each unanswered datagram again, as a resolver does. Resending is for
// endpoints that vanish without having been terminating. Flows to them must be deleted, and a deleted flow loses the datagram in flight.
// The lost datagram may even be an answer of an endpoint that still runs. On a busy machine a datagram is in flight for long, and the
// story's next change may also lose the second one.
func (s *story) startLoad(_ *testscript.TestScript, args []string) error {
	resending := len(args) == 5 && args[4] == "resending"
	if len(args) != 4 && !resending || s.hosts[args[1]] == nil || s.loads[args[0]] != nil {
		return errors.New("usage: load NAME FROM PROTO TO [resending], with a new name")
	}
	// A packet that is lost once counts: nobody sends a datagram again, and of TCP's segments it is known. So the timeout may be long
	// enough for a busy machine.
	options := topology.ProbeOptions{Timeout: answerTimeout}
	if resending {
		options.Resend = resendAfter
	}
	proto, err := parseProtocol(args[2])
	if err != nil {
		return err
	}
	dsts, err := s.served(proto, args[3])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	l := &load{host: s.hosts[args[1]], proto: proto, quit: cancel, answers: map[netip.AddrPort][]topology.Answer{}}
	s.loads[args[0]] = l
	for _, dst := range dsts {
		for range loadWorkers {
			l.done.Go(func() {
				for ctx.Err() == nil {
					answer := l.host.Probe(s.ctx, proto, dst, options) // the last one is not cut short
					l.mu.Lock()
					l.answers[dst] = append(l.answers[dst], answer)
					l.mu.Unlock()
				}
			})
		}
	}
	return nil
}

func (l *load) end() {
	l.quit()
	l.done.Wait()
}

// endLoad: unload NAME EXPECTATION...
//
// It ends the load. All of its connections must have gone as expected.
func (s *story) endLoad(_ *testscript.TestScript, args []string) error {
	if len(args) < 2 || s.loads[args[0]] == nil {
		return errors.New("usage: unload NAME EXPECTATION..., with a load that runs")
	}
	want, err := s.parseExpectation(args[1:])
	if err != nil {
		return err
	}
	l := s.loads[args[0]]
	delete(s.loads, args[0])
	l.end()
	for dst, answers := range l.answers {
		for i, answer := range answers {
			err := s.checkAnswer(l.host, l.proto, dst, answer, want)
			if err == nil && answer.Resent > 0 {
				err = fmt.Errorf("answered after %v, and %d segments had to be sent again", answer.Latency, answer.Resent)
			}
			if err != nil {
				return fmt.Errorf("connection %d of %d to %v: %w", i+1, len(answers), dst, err)
			}
		}
	}
	return nil
}
