//go:build linux

package lab

import (
	"context"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

const (
	// perEndpoint is how many connections a call makes for each endpoint that may answer, before it asks whether all did.
	perEndpoint = 8
	// maxRounds bounds how often it asks again. An endpoint with an even share of the connections is missed that often
	// once in 10^13 times.
	maxRounds = 4
	// answerTimeout is longer than TCP's first retransmission takes.
	answerTimeout = 2 * time.Second
	// ejectTimeout is how long a connection may take if its Service ejects silent endpoints, one of which it may meet. On a quiet machine, it takes 3 s.
	ejectTimeout = 10 * time.Second
	// dropTimeout is how long silence must last to count as silence.
	dropTimeout = 800 * time.Millisecond
	// parallelCalls keeps the processor busy without making the latencies a measure of its queue.
	parallelCalls = 2
)

// measure makes the calls and judges each. The results are in the order of the calls.
func (s *stage) measure(ctx context.Context, calls []call, servers directory) []result {
	results, silent := make([]result, len(calls)), s.silent()
	slots := make(chan struct{}, parallelCalls)
	var wg sync.WaitGroup
	for i, c := range calls {
		c.relayed = s.relays && c.packet.Protocol != state.SCTP
		c.meets(silent)
		wg.Go(func() {
			// Those that wait for silence cost nothing but time.
			if c.expect.Outcome != probe.Drop {
				slots <- struct{}{}
				defer func() { <-slots }()
			}
			results[i] = judge(c, s.connect(ctx, c), servers, s.lab.Node().Addrs)
		})
	}
	wg.Wait()
	return results
}

// connect makes the connections of one call. The first unexpected result ends the call: it may have cost a timeout,
// and one is enough.
func (s *stage) connect(ctx context.Context, c call) []topology.Answer {
	var answers []topology.Answer
	try := func(n int, want topology.Outcome, timeout time.Duration) (ok bool) {
		for range n {
			a := s.host(c.packet.From).Probe(ctx, c.packet.Protocol, c.packet.Dst, topology.ProbeOptions{Source: c.packet.Src, Timeout: timeout})
			answers = append(answers, a)
			if a.Outcome != want {
				return false
			}
		}
		return true
	}
	switch c.expect.Outcome {
	case probe.Drop:
		try(1, topology.TimedOut, dropTimeout)
	case probe.Reject:
		try(3, topology.Refused, answerTimeout)
	default:
		timeout := answerTimeout
		if len(c.silent) > 0 {
			timeout = ejectTimeout
		}
		for range maxRounds {
			if !try(c.inRound(), topology.Answered, timeout) || c.sticks() || allHeard(&c, answers) {
				break
			}
		}
	}
	return answers
}

// allHeard reports whether as many servers have answered as there are endpoints that must.
func allHeard(c *call, answers []topology.Answer) bool {
	heard := make(map[string]bool)
	for _, a := range answers {
		heard[a.Server] = true
	}
	due := 0
	for _, choice := range c.expect.Choices {
		if c.isDue(choice.Endpoint, maxRounds*c.inRound()) {
			due++
		}
	}
	return len(heard) >= due
}
