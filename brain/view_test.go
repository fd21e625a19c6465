package brain_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// elsewhere is the same input on another node.
func (in *input) elsewhere(g *generator) *input {
	cfg := *in.cfg
	other := &input{cfg: &cfg, svc: in.svc, slices: in.slices}
	other.cfg.NodeName = one(g, []string{"a", "b", "c", "d", ""})
	if g.byte()%4 != 1 {
		other.node = &model.Node{Name: cfg.NodeName, Zone: one(g, []string{"a", "b", "c", ""}), Addresses: g.addrs()}
	}
	return other
}

func (in *input) view() brain.Viewpoint {
	if in.compute() == nil {
		return brain.Viewpoint{}
	}
	return brain.FactsOf(in.cfg, in.svc, in.slices).View(in.cfg.NodeName, in.node)
}

// checkViews describes what does not hold of the viewpoints of two nodes.
func checkViews(a, b *input) error {
	ra, rb := a.compute(), b.compute()
	if va, vb := a.view(), b.view(); va == vb && text(ra) != text(rb) {
		return fmt.Errorf("the records of nodes with the viewpoint %+v differ:\n%s\n%s", va, text(ra), text(rb))
	}
	if from := b.view().Compute(a.cfg, b.svc, b.slices); text(from) != text(rb) {
		return fmt.Errorf("from viewpoint %+v the record is\n%s\non the node it is\n%s", b.view(), text(from), text(rb))
	}
	return nil
}

// FuzzView: a viewpoint is all that counts of a node.
func FuzzView(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	f.Add([]byte{})
	for range 200 {
		f.Add(randomBytes(r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := &generator{data}
		a := g.input()
		if err := checkViews(a, a.elsewhere(g)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestViewIsSufficientAndSharp compares many pairs of nodes. Equal viewpoints mean equal records. Different viewpoints
// mostly mean different records, because each viewpoint has a cost.
func TestViewIsSufficientAndSharp(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var shared, justified, needless int
	for range 15_000 {
		g := &generator{randomBytes(r)}
		a := g.input()
		if len(a.slices) > 2 { // so many endpoints that most names are on the list
			a.slices = a.slices[:2]
		}
		b := a.elsewhere(g)
		if err := checkViews(a, b); err != nil {
			t.Fatal(err)
		}
		if a.compute() == nil {
			continue
		}
		switch {
		case a.view() == b.view():
			shared++
		case text(a.compute()) != text(b.compute()):
			justified++
		default:
			needless++
		}
	}
	t.Logf("%d pairs share a viewpoint, %d differ with reason, %d differ needlessly", shared, justified, needless)
	if shared == 0 || justified == 0 || needless > shared {
		t.Errorf("%d pairs share a viewpoint, %d differ with reason, %d differ needlessly", shared, justified, needless)
	}
}

// TestMostNodesShareAViewpoint: a service has one viewpoint for all nodes that it does not name, for any number of
// nodes.
func TestMostNodesShareAViewpoint(t *testing.T) {
	const nodes = 1000
	plain := slice(state.IPv4, "10.1.0.1", "10.1.0.2", "10.1.0.3 notready", "10.1.0.4 dying")
	for i := range plain.Endpoints {
		plain.Endpoints[i].NodeName = fmt.Sprintf("node%d", i)
	}
	hinted := slice(state.IPv4, "10.1.0.1 zones=a", "10.1.0.2 zones=b", "10.1.0.3 notready zones=c")
	toNodes := slice(state.IPv4, "10.1.0.1 nodes=node7", "10.1.0.2 nodes=node8")
	guarded := service()
	guarded.Type = model.TypeLoadBalancer
	guarded.LoadBalancerIPs = addrs("192.0.2.1")
	guarded.SourceRanges = prefixes("172.16.0.0/30")

	for _, c := range []struct {
		name  string
		svc   *model.Service
		slice *model.EndpointSlice
		want  []brain.Viewpoint // the distinct ones, in the order of nodes
	}{
		{"endpoints on three nodes", service(), plain, []brain.Viewpoint{{Node: "node0"}, {Node: "node1"}, {}, {Node: "node3"}}},
		{"hints for zones", service(), hinted, []brain.Viewpoint{{Zone: "a"}, {Zone: "b"}, {}}},
		{"hints for nodes", service(), toNodes, []brain.Viewpoint{{}, {Node: "node7"}, {Node: "node8"}}},
		{"source ranges", guarded, slice(state.IPv4), []brain.Viewpoint{{Admitted: brain.Families{IPv4: true}}, {}}},
		{"no service", nil, plain, []brain.Viewpoint{{}}},
	} {
		var got []brain.Viewpoint
		for i := range nodes {
			n := &model.Node{Name: fmt.Sprintf("node%d", i), Zone: string(rune('a' + i%4)), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i / 200), byte(i % 200)})}}
			v := (&input{cfg: &brain.Config{NodeName: n.Name}, node: n, svc: c.svc, slices: []*model.EndpointSlice{c.slice}}).view()
			if !slices.Contains(got, v) {
				got = append(got, v)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got viewpoints %+v, want %+v", c.name, got, c.want)
		}
	}
}
