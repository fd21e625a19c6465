package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Churn lets an hour pass in a simulated cluster of 1,000 services, 5,000 pods and 100 nodes, with all that usually goes on in
// one, and counts what one node is sent of it: through the conversion of Kubernetes objects, the store, the brain, the API over
// TCP on loopback, to a client that is always ready, so that nothing is merged on the way. The sizes of o do not count.
func Churn(ctx context.Context, r *Reporter, _ Options) error {
	defer r.Step("churn: an hour of %d services with %d pods on %d nodes", churnServices, churnServices*churnPodsEach, churnNodes)()
	c := newChurnCluster(1)
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName}})
	defer s.Close()
	sink := s.Source("bench")
	for _, o := range c.objects() {
		if err := deliver(sink.Update, o); err != nil {
			return err
		}
	}
	sink.Complete()
	var wire traffic
	api, err := serveAPI(ctx, server.Options{Feed: func(string) (state.Feed, error) { return s, nil }, Node: NodeName}, &wire)
	if err != nil {
		return err
	}
	defer api.close()
	watch, err := watchAPI(ctx, client.Options{Target: api.target})
	if err != nil {
		return err
	}
	defer watch.close()
	if u := <-watch.updates; u == nil || len(u.Changed) == 0 {
		return errors.New("the first update is not the whole state")
	}
	settle(&wire)

	var total, here tally
	byKind := make(map[*noise]*tally)
	known, before := s.Snapshot().Revision(), wire.bytes()
	c.write = func(o any) {
		here.watched++
		if err = deliver(sink.Update, o); err != nil {
			return
		}
		if now := s.Snapshot().Revision(); now != known {
			known = now
			here.revisions++
			if u := <-watch.updates; u == nil {
				err = errors.New("the client gets no more updates")
			}
		}
	}
	failed := c.hour(usualNoise, func(n *noise) error {
		here.events = c.events - total.events
		if byKind[n] == nil {
			byKind[n] = new(tally)
		}
		byKind[n].add(here)
		total.add(here)
		here = tally{}
		return err
	})
	if failed != nil {
		return failed
	}
	settle(&wire)
	report := func(name string, value float64, unit string) {
		r.Report(Result{"churn/" + name, churnServices, churnPodsEach, value, unit})
	}
	for i := range usualNoise {
		n := &usualNoise[i]
		report(n.name+" (events)", float64(byKind[n].events), "events")
		report(n.name+" (revisions)", float64(byKind[n].revisions), "revisions")
	}
	report("all events", float64(total.events), "events")
	report("events of kinds that a proxy watches", float64(total.watched), "events")
	report("revisions sent to the node", float64(total.revisions), "revisions")
	report("revisions per event", 100*float64(total.revisions)/float64(total.events), "%")
	report("revisions per watched event", 100*float64(total.revisions)/float64(total.watched), "%")
	report("bytes to and from the node", float64(wire.bytes()-before), "B")
	return nil
}

// tally counts what came of noise.
type tally struct {
	events    int // changes of objects in the cluster
	watched   int // the objects of kinds that a proxy watches
	revisions int // states sent to the node
}

func (t *tally) add(o tally) {
	t.events += o.events
	t.watched += o.watched
	t.revisions += o.revisions
}

// deliver converts a Kubernetes object and hands it to a sink.
func deliver(update func([]model.Object, []model.Ref), object any) error {
	o, ok, err := kubeconv.Object(object)
	if err != nil {
		return fmt.Errorf("convert a %T: %w", object, err)
	}
	if !ok {
		return fmt.Errorf("no source delivers a %T", object)
	}
	update([]model.Object{o}, nil)
	return nil
}
