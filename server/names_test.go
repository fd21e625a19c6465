package server_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// answer is an answer to NextNames, put together.
type answer struct {
	full     bool
	changed  []*localnetv1.ServiceNames
	removed  []string
	position *localnetv1.Position
	parts    int
}

func nextNames(t *testing.T, api localnetv1.EndpointsClient, resume *localnetv1.Position) (a answer, err error) {
	t.Helper()
	stream, err := api.NextNames(t.Context(), &localnetv1.NextNamesRequest{Resume: resume})
	if err != nil {
		return a, err
	}
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return a, nil
		case err != nil:
			return a, err
		case a.position != nil:
			t.Fatal("a part comes after the last")
		}
		a.parts++
		a.full, a.changed, a.position = part.Full, append(a.changed, part.Changed...), part.Position
		for _, n := range part.Removed {
			a.removed = append(a.removed, n.Namespace+"/"+n.Name)
		}
	}
}

func withNames(sink *model.Sink) func(*server.Options) {
	return func(o *server.Options) {
		names := store.NewNames(store.NamesOptions{})
		*sink = names.Source()
		o.Names = names
	}
}

func headless(n, endpoints int) (objects []model.Object) {
	name := fmt.Sprintf("headless-%03d", n)
	slice := &model.EndpointSlice{Namespace: "ns", Name: name, Service: name, Family: state.IPv4, Ports: []model.EndpointPort{{Name: "sql", Protocol: state.TCP, Port: 5432}}}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: address(10, n*endpoints+i), Ready: true})
		slice.Hostnames = append(slice.Hostnames, fmt.Sprintf("pod-%d", i))
	}
	return []model.Object{&model.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, Headless: true}, slice}
}

func TestNextNames(t *testing.T) {
	var sink model.Sink
	bubble(t, withNames(&sink), func(t *testing.T, w *world) {
		var all []model.Object
		for n := range 100 {
			all = append(all, headless(n, 100)...)
		}
		all = append(all, &model.Service{Name: state.ServiceName{Namespace: "ns", Name: "out"}, Type: model.TypeExternalName, ExternalName: "www.example.com"})
		sink.Update(all, nil)
		sink.Complete()
		api := w.client()
		first, err := nextNames(t, api, nil)
		if err != nil || !first.full || len(first.changed) != 101 || first.position == nil || first.parts < 3 {
			t.Fatalf("the whole: full %v, %d services in %d parts, position %v, %v", first.full, len(first.changed), first.parts, first.position, err)
		}
		e := first.changed[7].Endpoints[0]
		if got := first.changed[7].Name + " " + e.Ports[0].Name + " " + e.Endpoints[3].Hostname; got != "headless-007 sql pod-3" ||
			netip.AddrFrom4([4]byte(e.Endpoints[3].Address)) != address(10, 703) {
			t.Errorf("the fourth endpoint of the eighth service is %s %v", got, e.Endpoints[3])
		}
		if got := first.changed[100].ExternalName; got != "www.example.com" {
			t.Errorf("the external name is %q", got)
		}
		sink.Update(headless(5, 1), []model.Ref{{Kind: model.KindService, Namespace: "ns", Name: "out"}})
		second, err := nextNames(t, api, first.position)
		if err != nil || second.full || len(second.changed) != 1 || second.changed[0].Name != "headless-005" || fmt.Sprint(second.removed) != "[ns/out]" {
			t.Errorf("what has changed: full %v, %v, removed %v, %v", second.full, second.changed, second.removed, err)
		}
		// The position of another life of the server.
		if third, err := nextNames(t, api, &localnetv1.Position{InstanceId: 1, Rev: second.position.Rev}); err != nil || !third.full {
			t.Errorf("of another life: full %v, %v", third.full, err)
		}
	})
}

// TestNoNames: a server without names says so, and what would help.
func TestNoNames(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		_, err := nextNames(t, w.client(), nil)
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
	})
}
