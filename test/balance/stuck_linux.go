package balance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

const (
	// lonePods is how many servers have a pod of their own, so that one of them can be silent. Their numbers follow the numbers of the other servers.
	lonePods = 3
	// stuckClients is how many clients connect at once. All of them reach an endpoint that answers once in a million times with one of three silent.
	stuckClients = 40
)

func loneName(i int) string { return serverName(endpoints + i) }

// addLonePods adds the servers that can be silent.
func (n *node) addLonePods() error {
	for i := range lonePods {
		pod, err := n.lab.AddPod(topology.PodOptions{Name: loneName(i)})
		if err != nil {
			return err
		}
		for _, a := range pod.Addrs {
			if err := pod.Serve(state.TCP, netip.AddrPortFrom(a, port), loneName(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// stuck checks how long clients wait that meet an endpoint which answers nothing, until ejection leads them to another one. Without it, they wait for more
// than two minutes.
func (m *measurement) stuck(ctx context.Context, n *node) error {
	if backend.FeaturesOf(n.dataplane)&state.Ejection == 0 {
		m.report(Row{Mode: m.mode, Check: "stuck clients", Missing: "this mode ejects no endpoints"})
		return nil
	}
	if err := n.addLonePods(); err != nil {
		return err
	}
	for _, c := range []struct{ silent, of int }{{1, 2}, {1, 3}, {2, 3}} {
		for i, f := range families {
			row := Row{
				Mode: m.mode, Check: fmt.Sprintf("stuck clients, %d of %d silent, %v", c.silent, c.of, f), Connections: stuckClients, Wanted: "at most " + m.wait.String(),
			}
			if err := n.eject(ctx, c.of); err != nil {
				return err
			}
			if err := n.silence(c.silent, true); err != nil {
				return err
			}
			answers, err := n.connectAll(ctx, clusterIPs[i], m.wait)
			if err := errors.Join(err, n.silence(c.silent, false)); err != nil {
				return err
			}
			row.Got, row.Err = judgeStuck(answers, m.wait)
			m.report(row)
		}
	}
	return nil
}

// eject programs the service with some lone servers and ejection. The dataplane forgets its earlier findings about them.
func (n *node) eject(ctx context.Context, servers int) error {
	var part slicePart
	for i := range servers {
		part.servers = append(part.servers, endpoints+i)
	}
	for _, n.ejects = range []bool{false, true} {
		if err := n.apply(ctx, "", part); err != nil {
			return err
		}
	}
	n.ejects = false // the next Service does not
	return nil
}

// silence has the first lone servers answer nothing, or answer again.
func (n *node) silence(servers int, silent bool) error {
	for i := range servers {
		if err := n.lab.Pod(loneName(i)).Silence(silent); err != nil {
			return err
		}
	}
	return nil
}

// connectAll makes connections at once, and does what [backend.Run] does until all have an answer.
func (n *node) connectAll(ctx context.Context, to netip.Addr, wait time.Duration) ([]topology.Answer, error) {
	answered := make(chan []topology.Answer, 1)
	go func() {
		answered <- n.clients.ProbeMany(ctx, stuckClients, stuckClients, state.TCP, netip.AddrPortFrom(to, port), topology.ProbeOptions{Timeout: wait})
	}()
	var err error
	for {
		select {
		case answers := <-answered:
			return answers, err
		case <-n.disturbed:
			if _, failed := n.dataplane.Verify(ctx); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}
}

// judgeStuck returns how long connections took, and an error if one had no answer in time, or if no client was stuck at all.
func judgeStuck(answers []topology.Answer, wait time.Duration) (got string, err error) {
	var took []time.Duration
	stuck := 0
	for _, a := range answers {
		if a.Outcome != topology.Answered {
			err = fmt.Errorf("a connection was %v after %v: %w", a.Outcome, wait, a.Err)
			continue
		}
		took = append(took, a.Latency)
		if a.Resent > 0 {
			stuck++
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		got = fmt.Sprintf("%d stuck, p50 %.1fs, longest %.1fs", stuck, took[len(took)/2].Seconds(), took[len(took)-1].Seconds())
	}
	if err == nil && stuck == 0 {
		err = errors.New("no client has met a silent endpoint")
	}
	return got, err
}
