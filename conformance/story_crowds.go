//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
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

// survey: survey NAME FROM PROTO TO [unchanged|changed|unchanged-except=HOST] [across]
//
// It connects once from each of the host's addresses, in turn, and notes who answered. Then it compares with the last survey
// of that name: nobody, or somebody, was answered by another server than before. With unchanged-except, all that HOST
// answered before are answered by others now, and all the others by the same. With across, each client is answered by the same
// server at all addresses.
func (s *story) survey(_ *testscript.TestScript, args []string) error {
	across := len(args) > 4 && args[len(args)-1] == "across"
	if across {
		args = args[:len(args)-1]
	}
	if len(args) < 4 || len(args) > 5 || s.hosts[args[1]] == nil {
		return errors.New("usage: survey NAME FROM PROTO TO [unchanged|changed|unchanged-except=HOST] [across]")
	}
	host := s.hosts[args[1]]
	proto, err := parseProtocol(args[2])
	if err != nil {
		return err
	}
	dsts, err := s.served(proto, args[3])
	if err != nil {
		return err
	}
	before, now, servers := s.surveys[args[0]], map[visit]string{}, map[netip.Addr]string{}
	for _, dst := range dsts {
		for _, addr := range host.Addrs {
			if addr.Is4() != dst.Addr().Is4() {
				continue
			}
			options := topology.ProbeOptions{Source: addr, Timeout: answerTimeout}
			if proto != state.TCP {
				options.SourcePort = s.freshPorts(host, 1) // what the kernel remembers of a flow outlives affinity
			}
			answer := host.Probe(s.ctx, proto, dst, options)
			if answer.Outcome != topology.Answered {
				return fmt.Errorf("%v to %v %v: %v (%w)", addr, proto, dst, answer.Outcome, answer.Err)
			}
			now[visit{addr, dst}] = answer.Server
			if across && servers[addr] != "" && servers[addr] != answer.Server {
				return fmt.Errorf("%v to %v was answered by %s, and at another address of the Service port by %s", addr, dst, answer.Server, servers[addr])
			}
			servers[addr] = answer.Server
		}
	}
	s.surveys[args[0]] = now
	if len(args) == 4 {
		return nil
	}
	if before == nil {
		return fmt.Errorf("there is no survey %s to compare with", args[0])
	}
	return compareSurveys(before, now, args[4])
}

func compareSurveys(before, now map[visit]string, how string) error {
	moved := 0
	_, gone, _ := strings.Cut(how, "unchanged-except=")
	for v, server := range now {
		changed := server != before[v]
		if changed {
			moved++
		}
		if how != "changed" && changed != (before[v] == gone) {
			return fmt.Errorf("%v to %v was answered by %s and now by %s", v.from, v.to, before[v], server)
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
