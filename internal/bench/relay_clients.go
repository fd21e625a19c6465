package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// allHave says when the first and the last of all nodes got an update.
type allHave struct{ First, Last time.Time }

// RelayClients connects many nodes to the relay at target, each by a connection of its own, and follows their states until
// stdin ends. Each time all of them have got one update more, it says so on stdout. It finds out only where an update ends and
// leaves the rest unread: a node's own work is not the relay's.
func RelayClients(ctx context.Context, target string, nodes int, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	counter := &arrivals{nodes: nodes, out: json.NewEncoder(stdout)}
	g, gctx := errgroup.WithContext(ctx)
	for n := range nodes {
		g.Go(func() error { return followRaw(gctx, target, nodeNameOf(n), counter) })
		if n%50 == 49 {
			time.Sleep(10 * time.Millisecond) // a cluster's nodes do not connect all at once, either
		}
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// arrivals collects when nodes get their n-th update.
type arrivals struct {
	nodes int
	out   *json.Encoder

	mu     sync.Mutex
	rounds [][]time.Time
}

func (a *arrivals) add(round int, at time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if round == len(a.rounds) {
		a.rounds = append(a.rounds, make([]time.Time, 0, a.nodes))
	}
	a.rounds[round] = append(a.rounds[round], at)
	if len(a.rounds[round]) < a.nodes {
		return nil
	}
	first, last := slices.MinFunc(a.rounds[round], time.Time.Compare), slices.MaxFunc(a.rounds[round], time.Time.Compare)
	a.rounds[round] = nil
	return a.out.Encode(allHave{first, last})
}

func followRaw(ctx context.Context, target, node string, counter *arrivals) error {
	conn, err := client.Dial(client.Options{Target: target, DialOptions: []grpc.DialOption{grpc.WithReadBufferSize(4 << 10)}})
	if err != nil {
		return err
	}
	defer conn.Close()
	watch := localnetv1.Endpoints_ServiceDesc.Streams[slices.IndexFunc(localnetv1.Endpoints_ServiceDesc.Streams, func(d grpc.StreamDesc) bool {
		return strings.HasSuffix(localnetv1.Endpoints_Watch_FullMethodName, "/"+d.StreamName)
	})]
	stream, err := conn.NewStream(ctx, &watch, localnetv1.Endpoints_Watch_FullMethodName, grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(protocodec.Name)}))
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	request := &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Node: node}, Ready: true}
	for round := 0; ; round++ {
		if err := stream.SendMsg(request); err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
		request = &localnetv1.WatchRequest{Ready: true}
		var part rawPart
		for last := false; !last; last = part.last {
			if err := stream.RecvMsg(&part); err != nil {
				return fmt.Errorf("node %s: %w", node, err)
			}
		}
		if err := counter.add(round, time.Now()); err != nil {
			return err
		}
	}
}

// rawPart is what counts of a WatchResponse.
type rawPart struct{ last bool }

// rawCodec reads no more of a WatchResponse than whether it is the last part of an update.
type rawCodec struct{ encoding.CodecV2 }

// Unmarshal implements [encoding.CodecV2].
func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	part, ok := v.(*rawPart)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	part.last = false
	for b := buf.ReadOnlyData(); len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		part.last = part.last || number == positionField
		b = b[n:]
	}
	return nil
}

// positionField is the number of WatchResponse.position.
var positionField = (&localnetv1.WatchResponse{}).ProtoReflect().Descriptor().Fields().ByName("position").Number()
