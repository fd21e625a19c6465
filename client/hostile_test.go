package client

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// TestAnUpdateWithoutEnd: a server that sends parts without end is left before it has taken all memory, whatever they hold.
func TestAnUpdateWithoutEnd(t *testing.T) {
	large := []*localnetv1.ServiceEndpoints{{Namespace: "shop", Name: strings.Repeat("x", 1<<20)}}
	for name, part := range map[string]*localnetv1.WatchResponse{
		"the same service again and again": {Full: true, Changed: large},
		"nothing":                          {},
		"services that are gone":           {Removed: []*localnetv1.ServiceName{{Name: large[0].Name}}},
		"a growing node":                   {Full: true, Node: &localnetv1.Node{Name: large[0].Name}},
	} {
		a := assembly{}
		first := &localnetv1.WatchResponse{Full: part.Full, Node: node("a")}
		if _, err := a.add(first); err != nil {
			t.Fatal(err)
		}
		parts := 0
		var err error
		for ; err == nil && parts < 10_000_000; parts++ {
			_, err = a.add(part)
		}
		if err == nil || err.Error() != "broken update: it has more than 256 MiB and does not end" || part.Full && parts > 257 {
			t.Errorf("%s: after %d parts: %v", name, parts, err)
		}
	}
	// The size limit applies to one update, not to all together.
	a := assembly{}
	for range 1000 {
		if _, err := a.add(&localnetv1.WatchResponse{Full: true, Node: node("a"), Changed: large, Position: at(1, 1)}); err != nil {
			t.Fatal(err)
		}
	}
}

// endless never ends its answers.
type endless struct {
	localnetv1.UnimplementedEndpointsServer
	calls chan string
}

func (s *endless) Next(_ *localnetv1.NextFilter, stream grpc.ServerStreamingServer[localnetv1.NextItem]) error {
	item := &localnetv1.NextItem{Endpoints: service("web", 1, 1)}
	item.Endpoints.Name = strings.Repeat("x", 16<<20)
	err := stream.Send(&localnetv1.NextItem{Next: &localnetv1.NextFilter{InstanceId: 1, Rev: 1}, Node: node("a")})
	for n := 0; ; n++ {
		if err != nil {
			s.calls <- fmt.Sprint(n)
			return err
		}
		err = stream.Send(item)
	}
}

// TestAStateWithoutEnd is the same for the long poll, over a connection.
func TestAStateWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net wire
		srv := &endless{calls: make(chan string, 100)}
		net.serve(t, srv)
		o := net.options()
		epc := &EndpointsClient{Target: o.Target, DialOptions: o.DialOptions}
		defer epc.Cancel()
		if items, err := epc.fetch(t.Context()); err != errTooLarge {
			t.Errorf("%d items, %v", len(items), err)
		}
		epc.disconnect()
		if n := <-srv.calls; n < "16" || n > "19" {
			t.Errorf("the server could send %s items of 16 MiB", n)
		}
	})
}
