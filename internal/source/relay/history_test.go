package relay

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// TestHistories has two relays between the cluster and a store, and lets anything happen to objects, relays and connections in
// any order. In the end the store must be where one is that had the objects directly.
func TestHistories(t *testing.T) {
	for seed := range randcluster.Seeds(15, 1000) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, seed) })
		})
	}
}

func play(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	log := &logs{}
	w := &stack{t: t, n: newNetwork(), log: log.logger(), history: randcluster.New(seed, admissible()), objects: make(map[model.Ref]model.Object)}
	cfg := brain.Config{NodeName: "node-a"}
	direct, far := store.New(store.Options{Brain: cfg}), store.New(store.Options{Brain: cfg})
	t.Cleanup(direct.Close)
	t.Cleanup(far.Close)
	w.direct = direct.Source("direct")
	w.step()
	w.direct.Complete()
	w.restartTop()
	w.restartMiddle()
	run(t, w.n.source(t, w.log, "middle"), far.Source("relay"))
	dice := rand.New(rand.NewPCG(seed, 3)) // used by the network alone
	w.n.mu.Lock()
	w.n.allowance = func() int {
		if dice.IntN(3) == 0 {
			return 50 + dice.IntN(8000)
		}
		return math.MaxInt
	}
	w.n.mu.Unlock()
	for range 100 {
		w.happen(r)
	}
	w.n.mu.Lock()
	w.n.allowance = nil
	w.n.mu.Unlock()
	w.heal()
	time.Sleep(answerTimeout)
	settle()
	settle()
	equalSnapshots(t, far.Snapshot(), direct.Snapshot())
	w.step()
	settle() // a connection may have ended in that step
	equalSnapshots(t, far.Snapshot(), direct.Snapshot())
	for _, line := range log.take() {
		if strings.Contains(line, "level=ERROR") {
			t.Error("an object did not come through:", line)
		}
	}
}

// admissible returns the pools of histories of objects that a real API server admits: all of them must come through.
func admissible() randcluster.Options {
	o := randcluster.Options{
		Admissible:   true,
		Annotations:  true,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("fd00:96::/112")},
	}
	for i := range byte(6) {
		o.ClusterIPs = append(o.ClusterIPs, netip.AddrFrom4([4]byte{10, 96, 0, i + 1}), netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", i+1)))
	}
	for i := range uint16(24) {
		o.NodePorts = append(o.NodePorts, 30000+i)
	}
	return o
}

// stack is a cluster, a relay that has its objects, and a relay that follows that one.
type stack struct {
	t       *testing.T
	n       *network
	log     *slog.Logger
	history *randcluster.History
	objects map[model.Ref]model.Object // what there is
	direct  model.Sink

	topFeed, middleFeed *objectlog.Feed
	topSink             model.Sink
	topWaits            bool // the source of the top relay is not complete
	stopTop, stopMiddle func()
}

// happen makes one thing happen.
func (w *stack) happen(r *rand.Rand) {
	switch r.IntN(20) {
	case 0:
		w.n.cut("top")
	case 1:
		w.n.cut("middle")
	case 2:
		w.stopTop()
	case 3:
		w.stopMiddle()
	case 4:
		w.restartTop()
	case 5:
		w.restartMiddle()
	case 6:
		w.stopTop()
		w.newTop()
		w.topWaits = true
		w.stopTop = w.n.serve(w.t, "top", w.topFeed)
	case 7:
		w.heal()
	case 8, 9:
		time.Sleep(time.Duration(r.Int64N(int64(answerTimeout))))
	case 10, 11, 12:
		time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
	default:
		w.step()
	}
}

// step changes the cluster.
func (w *stack) step() {
	set, deleted := w.history.Step()
	for _, ref := range deleted {
		delete(w.objects, ref)
	}
	for _, obj := range set {
		w.objects[obj.Ref()] = obj
	}
	if w.topSink == nil {
		w.direct.Update(set, deleted)
		return
	}
	objectlog.Tee(w.direct, w.topSink).Update(set, deleted)
}

// newTop replaces the feed of the top relay. The new feed has all objects but does not know yet that it is complete.
func (w *stack) newTop() {
	if w.topFeed != nil {
		w.topFeed.Close()
	}
	w.topFeed = objectlog.New(objectlog.Options{})
	w.t.Cleanup(w.topFeed.Close)
	w.topSink = w.topFeed.Source("cluster")
	w.topSink.Update(slices.Collect(maps.Values(w.objects)), nil)
}

func (w *stack) restartTop() {
	if w.stopTop != nil {
		w.stopTop()
	}
	w.newTop()
	w.topSink.Complete()
	w.topWaits = false
	w.stopTop = w.n.serve(w.t, "top", w.topFeed)
}

// restartMiddle restarts the relay in the middle, or replaces it.
func (w *stack) restartMiddle() {
	if w.stopMiddle != nil {
		w.stopMiddle()
	}
	feed := objectlog.New(objectlog.Options{})
	w.middleFeed = feed
	stopSource := run(w.t, w.n.source(w.t, w.log, "top"), feed.Source("relay"))
	stopServer := w.n.serve(w.t, "middle", feed)
	w.stopMiddle = func() {
		stopSource()
		feed.Close()
		stopServer()
	}
}

// heal starts what does not run.
func (w *stack) heal() {
	w.n.mu.Lock()
	top, middle := w.n.listeners["top"], w.n.listeners["middle"]
	w.n.mu.Unlock()
	if top == nil {
		w.stopTop = w.n.serve(w.t, "top", w.topFeed)
	}
	if w.topWaits {
		w.topSink.Complete()
		w.topWaits = false
	}
	if middle == nil {
		w.restartMiddle()
	}
}

func equalSnapshots(t *testing.T, got, want *store.Snapshot) {
	t.Helper()
	if got.Revision() == 0 {
		t.Error("nothing has arrived")
	}
	if !got.Node().Equal(want.Node()) {
		t.Errorf("the node is\n%+v\nwant\n%+v", got.Node(), want.Node())
	}
	for s := range want.Services() {
		if g := got.Get(s.Name); g == nil || !g.Equal(s) {
			t.Errorf("the service %s is\n%+v\nwant\n%+v", s.Name, g, s)
		}
	}
	for s := range got.Services() {
		if want.Get(s.Name) == nil {
			t.Errorf("the service %s is still there", s.Name)
		}
	}
}
