//go:build linux

package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// openFlow is a connection, or a UDP socket, that stays open.
type openFlow struct {
	host  *topology.Host
	proto state.Protocol
	dst   netip.AddrPort
	conn  net.Conn
	lines *bufio.Reader
	last  string // the server that answered last

	quit    chan struct{} // ends chatter
	chatter sync.WaitGroup
}

// open: open NAME FROM PROTO TO [chatting]
//
// It opens one flow to each address that TO stands for. A chatting flow sends all the time, also between talks.
func (s *story) open(_ *testscript.TestScript, args []string) error {
	if len(args) < 4 || s.hosts[args[1]] == nil || s.flows[args[0]] != nil {
		return errors.New("usage: open NAME FROM PROTO TO [chatting], with a new name")
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
	chatting := len(args) == 5 && args[4] == "chatting"
	if len(args) > 4 && !chatting {
		return fmt.Errorf("unknown option %q", args[4:])
	}
	ctx, cancel := context.WithTimeout(s.ctx, answerTimeout)
	defer cancel()
	s.flows[args[0]] = []*openFlow{}
	for _, dst := range dsts {
		conn, err := host.Dial(ctx, proto, dst, netip.AddrPort{})
		if err != nil {
			return err
		}
		flow := &openFlow{host: host, proto: proto, dst: dst, conn: conn, lines: bufio.NewReader(conn), quit: make(chan struct{})}
		s.flows[args[0]] = append(s.flows[args[0]], flow)
		if chatting {
			flow.chatter.Go(flow.chat)
		}
	}
	return nil
}

// chat sends until the flow is closed.
func (f *openFlow) chat() {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-f.quit:
			return
		case <-ticker.C:
			_, _ = f.conn.Write([]byte("chatter\n")) // an error is for talk to notice
		}
	}
}

// talk: talk NAME EXPECTATION...
//
// It sends a line on each of the flows. The expectation may have a source, and is one of these:
//   - reaches HOST,...: each flow reaches one of the hosts
//   - stays: the last server of each flow answers again
//   - refused, unanswered or broken
//   - fails: nobody answers, for any reason
//   - drained: the flows have ended, or the last server of each answers, as the dataplane knows drain deadlines or not
func (s *story) talk(_ *testscript.TestScript, args []string) error {
	if len(args) < 2 || s.flows[args[0]] == nil {
		return fmt.Errorf("no open flow in %q; usage: talk NAME EXPECTATION…", args)
	}
	stays, fails, drained := args[1] == "stays", args[1] == "fails", args[1] == "drained"
	var want expectation
	var err error
	switch args[1] {
	case "stays", "drained":
		want.outcome = topology.Answered
	case "broken", "fails":
	case "unanswered":
		want.outcome = topology.TimedOut
	default:
		if want, err = s.parseExpectation(args[1:]); err != nil {
			return err
		}
	}
	for _, flow := range s.flows[args[0]] {
		expected := want
		if stays || drained {
			expected.servers = []string{flow.last}
		}
		answer := flow.talk(s.ctx, expected.outcome == topology.TimedOut || fails)
		if fails && answer.Outcome != topology.Answered {
			continue
		}
		if resets, leaves := s.cluster.mayProgram(state.DrainDeadline); drained && (resets && answer.Outcome == topology.Broken || !leaves) {
			if answer.Outcome != topology.Broken {
				return fmt.Errorf("%s from %s to %v %v: %v, want it reset at the deadline", args[0], flow.host.Name, flow.proto, flow.dst, answer.Outcome)
			}
			continue
		}
		if err := s.checkAnswer(flow.host, flow.proto, flow.dst, answer, expected); err != nil {
			return fmt.Errorf("%s from %s to %v %v: %w", args[0], flow.host.Name, flow.proto, flow.dst, err)
		}
		flow.last = answer.Server
	}
	return nil
}

// talk sends a line and returns the answer to it. The connection is of no use once ctx has ended.
func (f *openFlow) talk(ctx context.Context, expectSilence bool) topology.Answer {
	defer context.AfterFunc(ctx, func() { f.conn.Close() })()
	timeout := answerTimeout
	if f.proto == state.UDP {
		timeout = 3 * time.Second // nothing is sent again
	}
	if expectSilence {
		timeout = silence
	}
	f.drain()
	_ = f.conn.SetDeadline(time.Now().Add(timeout))
	if _, err := f.conn.Write([]byte("hello\n")); err != nil {
		return topology.Answer{Outcome: topology.OutcomeOf(err), Err: err}
	}
	answer, err := topology.ReadAnswer(f.lines)
	if err != nil {
		return topology.Answer{Outcome: topology.OutcomeOf(err), Err: err}
	}
	return answer
}

// drain throws away answers that are already there, such as the greeting of a stream server. An answer that is still on its
// way will be taken for the next one; soon talks again then.
func (f *openFlow) drain() {
	if f.proto != state.UDP && f.last == "" {
		// The greeting comes in any case; wait for it.
		_ = f.conn.SetReadDeadline(time.Now().Add(answerTimeout))
		if _, err := f.lines.ReadString('\n'); err != nil {
			return
		}
	}
	_ = f.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	for {
		if _, err := f.lines.ReadString('\n'); err != nil {
			return
		}
	}
}

// closeFlows: close NAME
func (s *story) closeFlows(_ *testscript.TestScript, args []string) error {
	for _, name := range args {
		closeAll(s.flows[name])
		delete(s.flows, name)
	}
	return nil
}

func closeAll(flows []*openFlow) {
	for _, flow := range slices.Backward(flows) {
		close(flow.quit)
		flow.chatter.Wait()
		flow.conn.Close()
	}
}
