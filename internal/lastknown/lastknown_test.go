package lastknown

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/await"
)

// world is the content of a sink.
type world struct {
	nodes    map[string]*model.Node
	complete bool
}

func (w *world) Update(set []model.Object, deleted []model.Ref) {
	for _, ref := range deleted {
		delete(w.nodes, ref.Name)
	}
	for _, o := range set {
		w.nodes[o.Ref().Name] = o.(*model.Node)
	}
}

func (w *world) Complete() { w.complete = true }

// oracle remembers everything that was ever said about a Node, and looks through it for what counts.
type oracle struct {
	said      []*model.Node // the oldest first
	deletedAt time.Time
}

// last returns what of returns for the last version of the Node for which that is not empty.
func last[T any](o *oracle, of func(*model.Node) []T) []T {
	for _, n := range slices.Backward(o.said) {
		if list := of(n); len(list) > 0 {
			return list
		}
	}
	return nil
}

func ofFamily(list []netip.Addr, is4 bool) (out []netip.Addr) {
	for _, a := range list {
		if a.Is4() == is4 {
			out = append(out, a)
		}
	}
	return out
}

// addresses returns the internal and external addresses of a family.
func (o *oracle) addresses(is4 bool) (in, ex []netip.Addr) {
	in = last(o, func(n *model.Node) []netip.Addr { return ofFamily(n.Addresses[:n.Internal], is4) })
	for _, n := range slices.Backward(o.said) {
		if len(ofFamily(n.Addresses, is4)) > 0 {
			return in, ofFamily(n.Addresses[n.Internal:], is4)
		}
	}
	return in, nil
}

func (o *oracle) podCIDRs() []netip.Prefix {
	return last(o, func(n *model.Node) []netip.Prefix { return n.PodCIDRs })
}

// check compares a Node that was handed on.
func (o *oracle) check(name string, got *model.Node) error {
	now := o.said[len(o.said)-1]
	if got == nil {
		return fmt.Errorf("%s is not there", name)
	}
	lost := false
	for _, is4 := range []bool{true, false} {
		in, ex := o.addresses(is4)
		if !slices.Equal(ofFamily(got.Addresses[:got.Internal], is4), in) || !slices.Equal(ofFamily(got.Addresses[got.Internal:], is4), ex) {
			return fmt.Errorf("%s has %v, %d of them internal; want %v and %v of its family", name, got.Addresses, got.Internal, in, ex)
		}
		lost = lost || len(in)+len(ex) > len(ofFamily(now.Addresses, is4))
	}
	if !lost && !slices.Equal(got.Addresses, now.Addresses) {
		return fmt.Errorf("%s has %v, which is not the order of %v", name, got.Addresses, now.Addresses)
	}
	if !slices.Equal(got.PodCIDRs, o.podCIDRs()) || got.Zone != now.Zone {
		return fmt.Errorf("%s has the pod CIDRs %v in zone %q, want %v in %q", name, got.PodCIDRs, got.Zone, o.podCIDRs(), now.Zone)
	}
	return nil
}

// reasons are the reasons of the Node's problems.
func (o *oracle) reasons(own string, needs Needs) (list []Reason) {
	if own == "" && !o.deletedAt.IsZero() {
		return nil
	}
	now := &model.Node{}
	var known []netip.Addr
	if len(o.said) > 0 {
		now = o.said[len(o.said)-1]
		for _, is4 := range []bool{true, false} {
			in, ex := o.addresses(is4)
			known = slices.Concat(known, in, ex)
		}
	}
	switch {
	case !o.deletedAt.IsZero():
		list = append(list, NodeLost)
	case len(known) > len(now.Addresses):
		list = append(list, AddressesLost)
	}
	if needs.Addresses && len(known) == 0 {
		list = append(list, AddressesMissing)
	}
	if needs.PodCIDRs && len(o.podCIDRs()) == 0 {
		list = append(list, PodCIDRsMissing)
	} else if needs.PodCIDRs && len(now.PodCIDRs) == 0 {
		list = append(list, PodCIDRsLost)
	}
	return list
}

// draw returns a version of a Node.
func draw(rng *rand.Rand, name string) *model.Node {
	n := &model.Node{Name: name, Zone: []string{"", "west", "east"}[rng.IntN(3)]}
	some := func(kind string) {
		for _, a := range []string{"10.0." + kind + ".1", "fd00:" + kind + "::1", "10.0." + kind + ".2"} {
			if rng.IntN(3) == 0 {
				n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
			}
		}
	}
	some("1")
	rng.Shuffle(len(n.Addresses), func(i, j int) { n.Addresses[i], n.Addresses[j] = n.Addresses[j], n.Addresses[i] })
	n.Internal = len(n.Addresses)
	some("2")
	for _, p := range []string{"10.244.1.0/24", "fd44:1::/64", "10.244.2.0/24"} {
		if rng.IntN(4) == 0 {
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
		}
	}
	return n
}

// TestNodeChanges makes 1,000 changes to Nodes, with each seed: addresses, zones and CIDRs come and go, and so do
// Nodes. An oracle that remembers everything checks the objects and the reports.
func TestNodeChanges(t *testing.T) {
	for _, own := range []string{"", "a"} {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("node %q, seed %d", own, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { nodeChanges(t, own, rand.New(rand.NewPCG(seed, 26))) })
			})
		}
	}
}

func nodeChanges(t *testing.T, own string, rng *rand.Rand) {
	w := &world{nodes: map[string]*model.Node{}}
	sink := New(Options{Sink: w, Node: own, Logger: slog.New(slog.DiscardHandler)})
	oracles := map[string]*oracle{}
	if own != "" {
		oracles[own] = &oracle{}
	}
	sink.Complete()
	names := []string{"a", "b", "c", "d"}
	if own != "" {
		names = names[:1]
	}
	var needs Needs
	for range 1000 {
		var set []model.Object
		var deleted []model.Ref
		for range 1 + rng.IntN(2) {
			name := names[rng.IntN(len(names))]
			if rng.IntN(4) == 0 {
				deleted = append(deleted, model.Ref{Kind: model.KindNode, Name: name})
				if o := oracles[name]; o != nil && len(o.said) > 0 && o.deletedAt.IsZero() {
					o.deletedAt = time.Now()
				}
			}
			if rng.IntN(3) > 0 {
				set = append(set, draw(rng, name))
			}
		}
		for _, o := range set { // an object that is both deleted and set is set
			n := o.(*model.Node)
			if oracles[n.Name] == nil {
				oracles[n.Name] = &oracle{}
			}
			of := oracles[n.Name]
			of.said, of.deletedAt = append(of.said, n), time.Time{}
		}
		sink.Update(set, deleted)
		for name, o := range oracles {
			if name != own && !o.deletedAt.IsZero() && time.Since(o.deletedAt) >= goneFor {
				delete(oracles, name)
			}
		}
		if rng.IntN(10) == 0 {
			needs = Needs{rng.IntN(2) == 0, rng.IntN(2) == 0}
			sink.SetNeeds(needs)
		}
		compare(t, w, sink, own, oracles, needs)
		time.Sleep(time.Duration(rng.IntN(300)) * time.Second)
	}
}

func compare(t *testing.T, w *world, sink *Nodes, own string, oracles map[string]*oracle, needs Needs) {
	t.Helper()
	reported := map[string][]Reason{}
	for _, err := range sink.Problems() {
		p := err.(Problem)
		reported[p.Node] = append(reported[p.Node], p.Reason)
	}
	there, troubled := 0, 0
	for name, o := range oracles {
		if len(o.said) > 0 {
			there++
			if err := o.check(name, w.nodes[name]); err != nil {
				t.Fatal(err)
			}
		}
		want := o.reasons(own, needs)
		if len(want) > 0 {
			troubled++
		}
		if !slices.Equal(reported[name], want) {
			t.Fatalf("%s: the problems are %v, want %v", name, reported[name], want)
		}
	}
	if len(w.nodes) != there || sink.Count() != troubled {
		t.Fatalf("there are %d nodes, %d with problems; want %d, %d", len(w.nodes), sink.Count(), there, troubled)
	}
}

// TestGoneNodesAreBounded deletes more Nodes than are remembered.
func TestGoneNodesAreBounded(t *testing.T) {
	w := &world{nodes: map[string]*model.Node{}}
	sink := New(Options{Sink: w, Logger: slog.New(slog.DiscardHandler)})
	for i := range maxGone + 10 {
		name := fmt.Sprint("n", i)
		sink.Update([]model.Object{&model.Node{Name: name}}, nil)
		sink.Update(nil, []model.Ref{{Kind: model.KindNode, Name: name}})
	}
	if len(w.nodes) != maxGone || len(sink.of) != maxGone || w.nodes["n9"] != nil || w.nodes["n10"] == nil {
		t.Errorf("%d deleted nodes are there and %d are remembered, want the last %d", len(w.nodes), len(sink.of), maxGone)
	}
	if got := sink.Problems(); len(got) > 0 {
		t.Errorf("machines that were taken away are problems: %v", got)
	}
}

// TestListedNodesAreBounded has more Nodes lack fields than are listed.
func TestListedNodesAreBounded(t *testing.T) {
	sink := New(Options{Sink: &world{nodes: map[string]*model.Node{}}, Needs: Needs{PodCIDRs: true}, Logger: slog.New(slog.DiscardHandler)})
	for i := range 1000 {
		sink.Update([]model.Object{&model.Node{Name: fmt.Sprint("n", i)}}, nil)
	}
	sink.Complete()
	if got := sink.Problems(); len(got) != maxListed+1 || !strings.Contains(got[maxListed].Error(), "980 more nodes") || sink.Count() != 1000 {
		t.Errorf("%d problems of %d nodes are listed: %v", len(got), sink.Count(), got)
	}
}

// busy is a sink that is busy with whatever it gets until it is closed.
type busy struct{ in, out chan struct{} }

func (b busy) Update([]model.Object, []model.Ref) {
	b.in <- struct{}{}
	<-b.out
}

func (b busy) Complete() { b.Update(nil, nil) }

// TestProblemsDoNotWait asks for the problems while the sink is busy, as probes and metrics do.
func TestProblemsDoNotWait(t *testing.T) {
	for what, call := range map[string]func(*Nodes){
		"Update":   func(n *Nodes) { n.Update([]model.Object{&model.Namespace{Name: "b"}}, nil) },
		"Complete": func(n *Nodes) { n.Complete() },
	} {
		t.Run(what, func(t *testing.T) {
			b := busy{make(chan struct{}), make(chan struct{})}
			defer close(b.out)
			n := New(Options{Sink: b, Node: "n", Needs: Needs{PodCIDRs: true}, Logger: slog.New(slog.DiscardHandler)})
			go call(n)
			<-b.in
			answered := make(chan struct{})
			go func() {
				n.Problems()
				n.Count()
				close(answered)
			}()
			await.Receive(t, "they do not wait for the sink", answered)
		})
	}
}

// TestNothingIsMissingEarly judges what Nodes lack when the source is complete, which may wait for it.
func TestNothingIsMissingEarly(t *testing.T) {
	for _, own := range []string{"n", ""} {
		var reported []Reason
		n := New(Options{Sink: &world{nodes: map[string]*model.Node{}}, Node: own, Needs: Needs{true, true}, Logger: slog.New(slog.DiscardHandler),
			OnProblem: func(p Problem) { reported = append(reported, p.Reason) }})
		n.Update([]model.Object{&model.Node{Name: "n"}}, nil)
		n.SetNeeds(Needs{Addresses: true})
		n.SetNeeds(Needs{true, true})
		if len(reported) > 0 || n.Count() > 0 {
			t.Errorf("node %q: %v are reported before the source is complete", own, reported)
		}
		n.Complete()
		if !slices.Equal(reported, []Reason{AddressesMissing, PodCIDRsMissing}) {
			t.Errorf("node %q: %v are reported when the source is complete", own, reported)
		}
	}
}

// TestInherit switches to another source, whose Node lacks fields that the previous source had.
func TestInherit(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	previous := New(Options{Sink: &world{nodes: map[string]*model.Node{}}, Node: "a", Logger: slog.New(slog.DiscardHandler)})
	previous.Update([]model.Object{&model.Node{Name: "a", Addresses: []netip.Addr{addr}, Internal: 1}}, nil)
	w := &world{nodes: map[string]*model.Node{}}
	next := New(Options{Sink: w, Node: "a", Previous: previous, Needs: Needs{Addresses: true}, Logger: slog.New(slog.DiscardHandler)})
	if len(w.nodes) > 0 {
		t.Fatalf("%v was handed on before it came", w.nodes)
	}
	next.Update([]model.Object{&model.Node{Name: "a"}}, nil)
	if n := w.nodes["a"]; n == nil || !slices.Equal(n.Addresses, []netip.Addr{addr}) || next.Count() != 1 {
		t.Errorf("the node is %+v with the problems %v", n, next.Problems())
	}
}

// TestInheritFromASourceThatNeverAnswered goes over to another source twice: the one between has no objects.
func TestInheritFromASourceThatNeverAnswered(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	w := &world{nodes: map[string]*model.Node{}}
	o := Options{Sink: w, Node: "n", Logger: slog.New(slog.DiscardHandler)}
	o.Previous = New(o)
	o.Previous.Update([]model.Object{&model.Node{Name: "n", Addresses: []netip.Addr{addr}, Internal: 1}}, nil)
	o.Previous = New(o)
	New(o).Update([]model.Object{&model.Node{Name: "n"}}, nil)
	if got := w.nodes["n"].Addresses; !slices.Equal(got, []netip.Addr{addr}) {
		t.Errorf("the node has the addresses %v, want %v", got, addr)
	}
}
