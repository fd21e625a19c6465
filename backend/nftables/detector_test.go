//go:build linux

package nftables

import (
	"errors"
	"maps"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// nodeWith returns the node of the tests with a detector of its own.
func nodeWith(d *state.LocalDetector) *state.Node {
	n := *testNode
	n.LocalDetector = d
	return &n
}

// TestNodeSaysWhoIsAPod: which clients are pods is a part of the node, and may change with any update. The options count
// as long as the node does not say.
func TestNodeSaysWhoIsAPod(t *testing.T) {
	ns := netnstest.New(t)
	own := Options{LocalDetector: detectPods(families...)}
	b := newBackend(t, ns, own)
	apply(t, b, full(someServices()...))
	for _, d := range []*state.LocalDetector{{BridgeInterface: "cni0"}, {}, {NodeCIDR: true}, nil, new(detectPods(state.IPv4)), {InterfacePrefix: "veth"}} {
		u := delta()
		u.Node = nodeWith(d)
		if r := apply(t, b, u); r.Written == 0 {
			t.Errorf("%v: nothing is written", d)
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("%v: a verification writes %d objects", d, r.Written)
		}
		want := own
		if d != nil {
			want.LocalDetector = *d
		}
		closeBackend(b)
		b = newBackend(t, ns, want)
		if r := apply(t, b, full(someServices()...)); r.Written != 0 {
			t.Errorf("%v: a start with this detector in its options writes %d objects", d, r.Written)
		}
		closeBackend(b)
		b = newBackend(t, ns, own)
		whole := full(someServices()...)
		whole.Node = u.Node
		if r := apply(t, b, whole); r.Written != 0 {
			t.Errorf("%v: a start with this node writes %d objects", d, r.Written)
		}
	}
}

// refusing is a kernel that takes no commits for a while.
type refusing struct {
	kernel
	refuses bool
}

func (k *refusing) Commit(b *nft.Batch) error {
	if k.refuses {
		return errors.New("refused")
	}
	return k.kernel.Commit(b)
}

// TestDetectorOfAFailedUpdate: an update that fails changes nothing, and its detector does not count either.
func TestDetectorOfAFailedUpdate(t *testing.T) {
	ns := netnstest.New(t)
	k := &refusing{}
	b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { k.kernel = c; return k })
	first := full(someServices()...)
	first.Node = nodeWith(new(detectPods(families...)))
	apply(t, b, first)
	before := netnstest.NFT(t, ns, "list", "ruleset")
	u := delta()
	u.Node = nodeWith(&state.LocalDetector{BridgeInterface: "cni0"})
	k.refuses = true
	if _, err := b.Apply(t.Context(), u); err == nil {
		t.Fatal("the update did not fail")
	}
	k.refuses = false
	if r := verify(t, b); r.Written != 0 || netnstest.NFT(t, ns, "list", "ruleset") != before {
		t.Errorf("a verification after the failure writes %d objects", r.Written)
	}
	if r := apply(t, b, u); r.Written == 0 {
		t.Error("the update is not applied when it comes again")
	}
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("a verification after it writes %d objects", r.Written)
	}
}

// TestNodeSaysWhereNodePortsAre: so are the addresses of NodePorts.
func TestNodeSaysWhereNodePortsAre(t *testing.T) {
	ns := netnstest.New(t)
	addDevice(t, ns, "192.0.2.7/24", "2001:db8::7/64")
	b := newBackend(t, ns, Options{NodePortAddresses: state.NodePortAddresses{Primary: true}})
	apply(t, b, full(someServices()...))
	c := dial(t, ns)
	own := dump(t, c)
	u := delta()
	n := *testNode
	n.NodePorts = &state.NodePortAddresses{}
	u.Node = &n
	apply(t, b, u)
	if maps.Equal(dump(t, c), own) {
		t.Error("the addresses of the node make no difference")
	}
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("a verification writes %d objects", r.Written)
	}
	apply(t, b, delta())
	if !maps.Equal(dump(t, c), own) {
		t.Error("without them it is not as before")
	}
}
