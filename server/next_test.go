package server_test

import (
	"context"
	"errors"
	"io"
	"testing"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/wire"
)

// next makes one call of Next and returns the filter for the next one and the names of the services.
func next(t testing.TB, ctx context.Context, c localnetv1.EndpointsClient, f *localnetv1.NextFilter) (*localnetv1.NextFilter, []string, error) {
	t.Helper()
	stream, err := c.Next(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	if first.GetNext() == nil || first.GetNode().GetName() != nodeName || first.GetEndpoints() != nil {
		t.Errorf("the first item is %v", first)
	}
	var names []string
	for {
		item, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return first.GetNext(), names, nil
		}
		if err != nil {
			return nil, nil, err
		}
		s, err := wire.ParseService(item.GetEndpoints())
		if err != nil || item.GetNext() != nil || item.GetNode() != nil {
			t.Fatalf("item %v: %v", item, err)
		}
		names = append(names, s.Name.Name)
	}
}

func TestNextGivesTheWholeState(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Update(services(3, 2), nil)
	w.sink.Complete()
	f, names, err := next(t, soon(t), w.client(), &localnetv1.NextFilter{})
	if err != nil || len(names) != 3 || f.GetInstanceId() != 7 || f.GetRev() != 1 || f.GetNode() != nodeName {
		t.Fatalf("got %v, %v, %v", f, names, err)
	}
}
