package server_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// next makes one call of Next and returns the filter for the next one and the names of the services.
func next(t testing.TB, ctx context.Context, c localnetv1.EndpointsClient, f *localnetv1.NextFilter) (*localnetv1.NextFilter, string, error) {
	t.Helper()
	stream, err := c.Next(ctx, f)
	if err != nil {
		return nil, "", err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, "", err
	}
	if first.GetNext() == nil || first.GetNode().GetName() != nodeName || first.GetEndpoints() != nil {
		t.Errorf("the first item is %v", first)
	}
	var names []string
	for {
		item, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return first.GetNext(), strings.Join(names, " "), nil
		}
		if err != nil {
			return nil, "", err
		}
		s, err := protoconv.ParseService(item.GetEndpoints())
		if err != nil || item.GetNext() != nil || item.GetNode() != nil {
			t.Fatalf("item %v: %v", item, err)
		}
		names = append(names, s.Name.Name)
	}
}

// TestNextIsALongPoll: each answer is a whole state, as soon as there is another one than that which the filter names.
func TestNextIsALongPoll(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		type answer struct {
			filter *localnetv1.NextFilter
			names  string
			err    error
		}
		answers := make(chan answer, 1)
		client := w.client()
		ask := func(f *localnetv1.NextFilter) {
			go func() {
				filter, names, err := next(t, t.Context(), client, f)
				answers <- answer{filter, names, err}
			}()
			synctest.Wait()
		}
		expect := func(rev uint64, names string) *localnetv1.NextFilter {
			t.Helper()
			synctest.Wait()
			if len(answers) == 0 {
				t.Fatalf("there is no answer; want revision %d with %q", rev, names)
			}
			a := <-answers
			if a.err != nil || a.filter.GetInstanceId() != 7 || a.filter.GetRev() != rev || a.filter.GetNode() != nodeName || a.names != names {
				t.Fatalf("got %v, %q, %v; want revision %d with %q", a.filter, a.names, a.err, rev, names)
			}
			return a.filter
		}
		ask(&localnetv1.NextFilter{})
		w.sink.Update(service("b", 2, 2), nil)
		synctest.Wait()
		if len(answers) > 0 {
			t.Fatal("there is an answer before the source is complete")
		}
		w.sink.Complete()
		f := expect(1, "b")
		ask(f)
		if len(answers) > 0 {
			t.Fatal("there is an answer with the same state")
		}
		w.sink.Update(service("a", 1, 2), nil)
		f = expect(2, "a b")
		w.sink.Update(service("c", 3, 2), nil)
		ask(f)
		expect(3, "a b c")
		for _, other := range []*localnetv1.NextFilter{{}, {InstanceId: 6, Rev: 3}, {InstanceId: 7, Rev: 4}, {InstanceId: 7, Rev: 1, Node: nodeName}} {
			ask(other)
			expect(3, "a b c")
		}
	})
}

// failingFeed is a feed that has failed for good.
type failingFeed struct{}

func (failingFeed) Next(context.Context, state.Revision) (*state.Update, error) {
	return nil, errors.New("broken")
}

// TestNextFails with a code that reports what to do.
func TestNextFails(t *testing.T) {
	feed := func(node string) (state.Feed, error) {
		switch node {
		case "broken":
			return failingFeed{}, nil
		case "early":
			return nil, errors.New("not yet")
		}
		return nil, server.ErrNoNode
	}
	w := newWorld(t, func(o *server.Options) { o.Node, o.Feed = "", feed })
	for node, want := range map[string]struct {
		code codes.Code
		word string
	}{
		"":       {codes.InvalidArgument, "name one"},
		"other":  {codes.NotFound, `node "other"`},
		"early":  {codes.Unavailable, "not yet"},
		"broken": {codes.Unavailable, "broken"},
	} {
		_, _, err := next(t, soon(t), w.client(), &localnetv1.NextFilter{Node: node})
		if status.Code(err) != want.code || !strings.Contains(err.Error(), want.word) {
			t.Errorf("node %q: got %v, want %v with %q", node, err, want.code, want.word)
		}
		watch(t, soon(t), w.client(), &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Node: node}, Ready: true}).ends(want.code, want.word)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []server.Options{{}, {Feed: func(string) (state.Feed, error) { return nil, nil }, MaxClients: -1}} {
		if _, err := server.New(o); err == nil {
			t.Errorf("%+v: there is no error", o)
		}
	}
	o := server.Options{Feed: func(string) (state.Feed, error) { return nil, nil }}
	a, _ := server.New(o)
	b, _ := server.New(o)
	if a.InstanceID() == 0 || a.InstanceID() == b.InstanceID() {
		t.Errorf("two servers are the instances %d and %d", a.InstanceID(), b.InstanceID())
	}
}
