package relay

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/model"
)

// TestNodeEdge passes the annotation of a Node through two relays. A follower that needs it and has a relay without it says so.
func TestNodeEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := &model.Node{Name: "n", Edge: "v1,7635"}
		feed, sink := newFeed(t)
		sink.Update([]model.Object{part}, nil)
		n, middle, log := newNetwork(), objectlog.New(objectlog.Options{}), &logs{}
		t.Cleanup(middle.Close)
		serve := func(at string, feed *objectlog.Feed, health, edge bool) (stop func()) {
			return n.listen(t, at, func(s *grpc.Server) {
				clusterserver.Register(s, clusterserver.Options{Feed: feed, InstanceID: 7, NodeHealth: health, NodeEdge: edge})
			})
		}
		stop := serve("top", feed, false, true)
		serve("middle", middle, false, true)
		run(t, n.source(t, nil, "top"), middle.Source("top"))
		needs, r := n.source(t, log.logger(), "middle"), &recorder{t: t}
		needs.options.Edge = true
		run(t, needs, r)
		r.expect("n", "complete")
		if got := r.objects[part.Ref()].(*model.Node).Edge; got != part.Edge {
			t.Errorf("below two relays, the annotation is %q", got)
		}
		if p := needs.Problems(); len(p) > 0 {
			t.Error("there are problems:", p)
		}
		stop()
		serve("top", feed, false, false)
		above := n.source(t, log.logger(), "top")
		above.options.Edge, above.options.NodeHealth = true, true
		log.take()
		run(t, above, &recorder{t: t})
		settle()
		lines := strings.Join(log.take(), "\n")
		for _, want := range []string{"relay passthrough:///top does not deliver which Nodes take part in the edge", "relay passthrough:///top does not deliver the health of Nodes"} {
			if p := errors.Join(above.Problems()...); p == nil || !strings.Contains(p.Error(), want) || strings.Count(lines, want) != 1 {
				t.Errorf("the problem is %v; logged was\n%s", p, lines)
			}
		}
	})
}

// TestNodeHealth passes the health of a Node through two relays. A follower that needs it and has a relay without it says so; others hear nothing
// of it.
func TestNodeHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shuts := &model.Node{Name: "n", Health: model.NodeShuttingDown, HealthSince: time.Unix(1e9, 0).UTC()}
		feed, sink := newFeed(t)
		sink.Update([]model.Object{shuts}, nil)
		n, middle, log := newNetwork(), objectlog.New(objectlog.Options{}), &logs{}
		t.Cleanup(middle.Close)
		serve := func(at string, feed *objectlog.Feed, health bool) (stop func()) {
			return n.listen(t, at, func(s *grpc.Server) {
				clusterserver.Register(s, clusterserver.Options{Feed: feed, InstanceID: 7, NodeHealth: health})
			})
		}
		stop := serve("top", feed, true)
		serve("middle", middle, true)
		run(t, n.source(t, nil, "top"), middle.Source("top"))
		needs, r := n.source(t, log.logger(), "middle"), &recorder{t: t}
		needs.options.NodeHealth = true
		run(t, needs, r)
		r.expect("n", "complete")
		if got := *r.objects[shuts.Ref()].(*model.Node); got.Health != shuts.Health || got.HealthSince != shuts.HealthSince {
			t.Errorf("below two relays, the Node is %+v", got)
		}
		sink.Update([]model.Object{&model.Node{Name: "n"}}, nil)
		r.expect("n")
		if p := needs.Problems(); len(p) > 0 {
			t.Error("there are problems:", p)
		}

		// The relays of an earlier version name nothing in the header.
		stop()
		stop = serve("top", feed, false)
		above, without := n.source(t, log.logger(), "top"), n.source(t, nil, "top")
		above.options.NodeHealth = true
		log.take()
		run(t, above, &recorder{t: t})
		run(t, without, &recorder{t: t})
		settle()
		const want = "relay passthrough:///top does not deliver the health of Nodes"
		if p := errors.Join(above.Problems()...); p == nil || !strings.Contains(p.Error(), want) {
			t.Errorf("the problem is %v", p)
		}
		if p := without.Problems(); len(p) > 0 {
			t.Error("a follower that needs no health has the problem", p)
		}
		stop()
		settle()
		stop = serve("top", feed, false)
		time.Sleep(time.Minute)
		settle()
		if lines := strings.Join(log.take(), "\n"); strings.Count(lines, want) != 1 {
			t.Errorf("logged was\n%s", lines)
		}
		stop()
		serve("top", feed, true)
		time.Sleep(time.Minute)
		settle()
		if p := above.Problems(); len(p) > 0 {
			t.Error("there are still problems:", p)
		}
	})
}
