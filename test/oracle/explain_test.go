package oracle_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/explain"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

var explained = flag.Uint64("explained", 400, "run so many histories, all questions of which are explained")

// questionsExplained is how many questions are explained at most, each time that the feed of a history is read.
const questionsExplained = 25

// TestExplanationsAgree asks the oracle and package explain about the same packets in random histories: the verdict, the endpoints that
// get the packet, which of them see the node's address, and why each other endpoint does not.
func TestExplanationsAgree(t *testing.T) {
	histories := *explained
	if raceEnabled {
		histories /= raceDivisor
	}
	var next, failed atomic.Uint64
	var total tallyOfReasons
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < histories && failed.Load() < enoughTrouble; seed = next.Add(1) - 1 {
				r := newRun(seed)
				seen := &tallyOfReasons{}
				rng := rand.New(rand.NewPCG(seed, 2))
				r.asks = func() error { return seen.ask(r, rng) }
				if err := r.play(t.Context()); err != nil {
					failed.Add(1)
					t.Error(err)
				}
				total.add(seen)
			}
		})
	}
	wg.Wait()
	t.Logf("%d histories, %d questions, %d endpoints: %v", histories, total.questions, total.endpoints, total.reasons)
	for _, reason := range []brain.Reason{brain.OtherFamily, brain.Special, brain.NoRoom, brain.NotReady, brain.Terminating, brain.NotServing, brain.OtherNode, brain.HintedElsewhere} {
		if histories >= 100 && total.reasons[reason] == 0 {
			t.Errorf("no endpoint was left out as %s: the histories do not test what they should", reason)
		}
	}
}

// tallyOfReasons counts what has been compared.
type tallyOfReasons struct {
	mu                   sync.Mutex
	questions, endpoints int
	reasons              map[brain.Reason]int
}

func (n *tallyOfReasons) add(o *tallyOfReasons) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.questions, n.endpoints = n.questions+o.questions, n.endpoints+o.endpoints
	if n.reasons == nil {
		n.reasons = map[brain.Reason]int{}
	}
	for r, count := range o.reasons {
		n.reasons[r] += count
	}
}

// ask compares the answers to random questions.
func (n *tallyOfReasons) ask(r *run, rng *rand.Rand) error {
	w := r.history.World()
	packets := r.history.Packets()
	var local []netip.Addr
	for _, p := range packets {
		if w.NodePortAddrs(p.Dst.Addr()) && !slices.Contains(local, p.Dst.Addr()) {
			local = append(local, p.Dst.Addr())
		}
	}
	x := explain.New(explain.Options{Store: r.store, Local: append(local, netip.Addr{})}) // never none, which stands for the default
	rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	for _, p := range packets[:min(len(packets), questionsExplained)] {
		got := x.Explain(explain.Connection{Class: classes[p.From], Src: p.Src, Dst: p.Dst, Protocol: p.Protocol})
		if err := n.compare(w, p, got); err != nil {
			return fmt.Errorf("%v: %w\n%+v\n%s", p, err, *got, describe(w, r.seen, p))
		}
	}
	return nil
}

var classes = map[probe.Client]explain.Class{probe.FromPod: explain.Pod, probe.FromNode: explain.Node, probe.FromOutside: explain.Outside}

var verdicts = map[probe.Outcome]explain.Verdict{
	probe.Pass: explain.NotServed, probe.Forward: explain.Forwarded, probe.Reject: explain.Rejected, probe.Drop: explain.Dropped,
}

func (n *tallyOfReasons) compare(w *oracle.World, p probe.Packet, got *explain.Answer) error {
	n.questions++
	want := w.Ask(p)
	if got.Verdict != verdicts[want.Outcome] || got.Because == "" {
		return fmt.Errorf("verdict %q (%q), want %v", got.Verdict, got.Because, want.Outcome)
	}
	var choices []probe.Choice
	var reasons []oracle.Reasoned
	for _, e := range got.Endpoints {
		if e.Gets != (len(e.Reasons) == 0) || e.Text == "" {
			return fmt.Errorf("%v gets connections: %t, with the reasons %v (%q)", e.Addr, e.Gets, e.Reasons, e.Text)
		}
		if e.Gets && want.Outcome == probe.Forward {
			choices = append(choices, probe.Choice{Endpoint: e.Addr, Masquerade: e.Masqueraded})
		}
		if slices.Contains(e.Reasons, brain.Duplicate) {
			continue
		}
		listed := oracle.Reasoned{At: e.Addr}
		for _, reason := range e.Reasons {
			listed.Reasons = append(listed.Reasons, string(reason))
			n.count(reason)
		}
		reasons = append(reasons, listed)
	}
	if !slices.Equal(choices, want.Choices) {
		return fmt.Errorf("endpoints %v, want %v", choices, want.Choices)
	}
	if got.Verdict == explain.Dropped && got.Frontend != nil && got.Frontend.Restricted && got.Endpoints == nil {
		return nil // a client that may not connect is not led to endpoints
	}
	slices.SortFunc(reasons, func(a, b oracle.Reasoned) int {
		return cmp.Or(a.At.Compare(b.At), slices.Compare(a.Reasons, b.Reasons))
	})
	same := func(a, b oracle.Reasoned) bool { return a.At == b.At && slices.Equal(a.Reasons, b.Reasons) }
	reasons = slices.CompactFunc(reasons, same)
	n.endpoints += len(reasons)
	if should := w.Endpoints(p); !slices.EqualFunc(reasons, should, same) {
		return fmt.Errorf("reasons %v, want %v", reasons, should)
	}
	if got.Frontend != nil && got.Frontend.Kind == state.NodePort.String() && !w.NodePortAddrs(p.Dst.Addr()) {
		return fmt.Errorf("a node port where none is served")
	}
	return nil
}

func (n *tallyOfReasons) count(reason brain.Reason) {
	if n.reasons == nil {
		n.reasons = map[brain.Reason]int{}
	}
	n.reasons[reason]++
}
