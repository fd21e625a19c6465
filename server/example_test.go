package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/switchyard-net/switchyard/brain"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// The state of this node on a unix socket, and a client that reads it once.
func Example() {
	st := store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})
	defer st.Close()
	sink := st.Source("example")
	sink.Update(service("web", 1, 3), nil)
	sink.Complete()

	s, err := server.New(server.Options{
		Node: "node-a",
		Feed: func(node string) (state.Feed, error) {
			if node != "node-a" {
				return nil, server.ErrNoNode
			}
			return st, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	address, err := server.ParseAddress("unix://" + filepath.Join(dir, "api.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := server.Listen(ctx, address, 0, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l, nil) }()

	conn, err := grpc.NewClient(address.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := localnetv1.NewEndpointsClient(conn).Next(ctx, &localnetv1.NextFilter{})
	for err == nil {
		var item *localnetv1.NextItem
		if item, err = stream.Recv(); err != nil {
			break
		}
		if e := item.GetEndpoints(); e != nil {
			fmt.Println(e.GetNamespace(), e.GetName(), "has", len(e.GetPorts()[0].GetEndpoints()), "endpoints")
		} else {
			fmt.Println("revision", item.GetNext().GetRev(), "of", item.GetNode().GetName())
		}
	}
	_ = conn.Close()
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// revision 1 of node-a
	// ns web has 3 endpoints
	// ended: <nil>
}
