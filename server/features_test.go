package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// script is a feed of states that a test makes. Each state is one record more or another one.
type script struct {
	mu      sync.Mutex
	peers   []state.Peer    // of the node in further updates
	updates []*state.Update // by revision, from 1 on
	more    chan struct{}   // is closed by the next update
}

func newScript(records ...*state.Service) *script {
	s := &script{more: make(chan struct{}), peers: []state.Peer{{ID: state.PeerID(nodeName), Name: nodeName}}}
	s.publish(records...)
	return s
}

func (s *script) publish(changed ...*state.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates = append(s.updates, &state.Update{Revision: state.Revision(len(s.updates) + 1), Node: &state.Node{Name: nodeName, Peers: s.peers}, Changed: changed})
	close(s.more)
	s.more = make(chan struct{})
}

// Next implements [state.Feed].
func (s *script) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	for {
		s.mu.Lock()
		updates, more := s.updates, s.more
		s.mu.Unlock()
		if int(after) < len(updates) {
			u := *updates[len(updates)-1]
			u.Full = after == 0
			u.Changed = nil
			for _, earlier := range updates[after:] {
				u.Changed = append(u.Changed, earlier.Changed...)
			}
			return &u, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-more:
		}
	}
}

// withFeatures is a record that uses all features.
func withFeatures(name string, port uint16) *state.Service {
	addr := netip.MustParseAddr("10.96.0.1")
	to := state.Route{Verdict: state.Forward, Refused: 7, Endpoints: []state.Endpoint{
		{Addr: netip.MustParseAddrPort("10.1.0.1:80"), Weight: 80}, {Addr: netip.MustParseAddrPort("10.1.0.2:80"), Weight: 20}}}
	rtp := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:0")}}}
	web := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80")}}}
	return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, Ports: []state.Port{
		{
			Name: "http", Protocol: state.TCP, Family: state.IPv4, Balance: state.HashClient, Ejection: true, DrainSeconds: 30,
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: port, Ping: true}},
			Internal:  state.Traffic{Inside: to, Outside: to}, Lingering: []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.9:80")}},
		},
		{
			Name: "rtp", Protocol: state.UDP, Family: state.IPv4,
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: 1000 + port, LastPort: 1999}},
			Internal:  state.Traffic{Inside: rtp, Outside: rtp},
		},
		{
			Name: "web", Protocol: state.TCP, Family: state.IPv4,
			Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.1"), Port: port}},
			External:  state.Traffic{Inside: web, Outside: web, Masquerade: state.MasqueradeAlways},
			Edge:      &state.Edge{Shares: []state.EdgeShare{{Node: 5, Weight: 1}}, Local: state.Route{Verdict: state.Drop}, Except: state.KindsOf(state.NodePort)},
		},
	}}
}

// before is the protocol as it was before there were features: testdata/before-features.binpb was built from the last commit without them.
func before(t *testing.T) func(name string) *dynamicpb.Message {
	t.Helper()
	b, err := os.ReadFile("testdata/before-features.binpb")
	if err != nil {
		t.Fatal(err)
	}
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(b, set); err != nil {
		t.Fatal(err)
	}
	_ = timestamppb.File_google_protobuf_timestamp_proto // the set imports it
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	return func(name string) *dynamicpb.Message {
		d, err := files.FindDescriptorByName(protoreflect.FullName("switchyard.localnet.v1." + name))
		if err != nil {
			t.Fatal(err)
		}
		return dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
	}
}

// understood fails if there is anything in m that an earlier client does not know.
func understood(t *testing.T, m protoreflect.Message) {
	t.Helper()
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		t.Errorf("%s has fields that the client does not know: %x", m.Descriptor().FullName(), unknown)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				understood(t, v.List().Get(i).Message())
			}
		default:
			understood(t, v.Message())
		}
		return true
	})
}

// read reads bytes as an earlier client does, and checks that it understands them.
func read(t *testing.T, m *dynamicpb.Message, b []byte) {
	t.Helper()
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	understood(t, m)
}

// TestClientFromBeforeFeatures: a client that was built before there were features gets records without any, in Watch and in Next, and positions
// as before.
func TestClientFromBeforeFeatures(t *testing.T) {
	records := []*state.Service{withFeatures("a", 1), withFeatures("b", 2)}
	w := newWorld(t, func(o *server.Options) { o.Feed = server.Only(nodeName, newScript(records...)) })
	message := before(t)
	var want []*localnetv1.ServiceEndpoints
	for _, s := range records {
		plain, _ := s.For(0)
		want = append(want, protoconv.Service(plain))
	}
	marshal := func(name string, text proto.Message) []byte {
		m := message(name)
		if err := proto.Unmarshal(protoconv.Marshal(text), m); err != nil { // text has no field that is newer
			t.Fatal(err)
		}
		understood(t, m)
		return protoconv.Marshal(m)
	}
	conn := w.dial()
	check := func(call string, got []*localnetv1.ServiceEndpoints) {
		t.Helper()
		if !slices.EqualFunc(got, want, func(a, b *localnetv1.ServiceEndpoints) bool { return proto.Equal(a, b) }) {
			t.Errorf("%s: got %v\nwant %v", call, got, want)
		}
	}

	stream, err := conn.NewStream(soon(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/switchyard.localnet.v1.Endpoints/Watch", rawCodec)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(marshal("WatchRequest", subscribe)); err != nil {
		t.Fatal(err)
	}
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		t.Fatal(err)
	}
	read(t, message("WatchResponse"), answer)
	update := new(localnetv1.WatchResponse)
	if err := proto.Unmarshal(answer, update); err != nil || update.GetPosition().GetInstanceId() != 7 {
		t.Errorf("got %v, %v", update, err)
	}
	check("Watch", update.GetChanged())

	poll, err := conn.NewStream(soon(t), &grpc.StreamDesc{ServerStreams: true}, "/switchyard.localnet.v1.Endpoints/Next", rawCodec)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(poll.SendMsg(marshal("NextFilter", &localnetv1.NextFilter{Node: nodeName})), poll.CloseSend()); err != nil {
		t.Fatal(err)
	}
	var polled []*localnetv1.ServiceEndpoints
	for {
		if err := poll.RecvMsg(&answer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		read(t, message("NextItem"), answer)
		item := new(localnetv1.NextItem)
		if err := proto.Unmarshal(answer, item); err != nil {
			t.Fatal(err)
		}
		if item.GetEndpoints() != nil {
			polled = append(polled, item.GetEndpoints())
		}
	}
	check("Next", polled)
}

// TestServerFromBeforeFeatures: a server that was built before there were features reads the requests of a client that accepts some, as if it did
// not.
func TestServerFromBeforeFeatures(t *testing.T) {
	message := before(t)
	accepts := protoconv.Features(state.AllFeatures)
	for name, c := range map[string]struct{ with, without proto.Message }{
		"Subscribe": {&localnetv1.Subscribe{Node: "n", Client: "c", Accepts: accepts}, &localnetv1.Subscribe{Node: "n", Client: "c"}},
		"NextFilter": {&localnetv1.NextFilter{Node: "n", InstanceId: 1, Rev: 2, Accepts: accepts},
			&localnetv1.NextFilter{Node: "n", InstanceId: 1, Rev: 2}},
	} {
		got, want := message(name), message(name)
		if err := errors.Join(proto.Unmarshal(protoconv.Marshal(c.with), got), proto.Unmarshal(protoconv.Marshal(c.without), want)); err != nil {
			t.Fatal(err)
		}
		if len(got.GetUnknown()) == 0 {
			t.Errorf("%s: the protocol of the test data knows features", name)
		}
		got.SetUnknown(nil)
		if !proto.Equal(got, want) {
			t.Errorf("%s: read %v, want %v", name, got, want)
		}
	}
}

func accepting(f state.Features, resume *localnetv1.Position) *localnetv1.WatchRequest {
	return &localnetv1.WatchRequest{Ready: true, Subscribe: &localnetv1.Subscribe{Client: "test", Accepts: protoconv.Features(f), Resume: resume}}
}

// TestEachClientGetsItsFeatures: clients at one server get records for what they accept, whole and in updates.
func TestEachClientGetsItsFeatures(t *testing.T) {
	var feed *script
	bubble(t, func(o *server.Options) {
		feed = newScript(withFeatures("a", 1))
		o.Feed = server.Only(nodeName, feed)
	}, func(t *testing.T, w *world) {
		sets := []state.Features{0, state.Weights, state.AllFeatures, state.Ping | state.Ranges, state.Weights}
		var clients []*watcher
		for _, f := range sets {
			clients = append(clients, watch(t, t.Context(), w.client(), accepting(f, nil)))
		}
		for port := uint16(1); port <= 3; port++ {
			for i, f := range sets {
				r, err := clients[i].receive()
				if err != nil {
					t.Fatal(err)
				}
				want, _ := withFeatures("a", port).For(f)
				if f&state.DrainDeadline == 0 {
					want.Ports[0].Lingering = nil // of TCP, which clients know with a deadline only
				}
				if peers := len(r.Update.Node.Peers); peers != 0 != (f&state.EdgeShares != 0) {
					t.Errorf("for %v: the node has %d peers", f, peers)
				}
				if len(r.Update.Changed) != 1 || len(r.Failed) > 0 || !r.Update.Changed[0].Equal(want) || r.Update.Full != (port == 1) {
					t.Errorf("for %v: got %+v, want %+v", f, r, want)
				}
				clients[i].ready()
			}
			synctest.Wait()
			feed.publish(withFeatures("a", port+1))
		}
	})
}

// TestPeersAreForTheirClients: a change of the peers is no news of the node for a client without the edge.
func TestPeersAreForTheirClients(t *testing.T) {
	var feed *script
	bubble(t, func(o *server.Options) {
		feed = newScript(withFeatures("a", 1))
		o.Feed = server.Only(nodeName, feed)
	}, func(t *testing.T, w *world) {
		clients := map[string]*watcher{}
		for want, f := range map[string]state.Features{"2 node": state.AllFeatures, "2": state.AllFeatures &^ state.EdgeShares} {
			c := watch(t, t.Context(), w.client(), accepting(f, nil))
			c.expect("1 full node +a")
			c.ready()
			clients[want] = c
		}
		synctest.Wait()
		feed.mu.Lock()
		feed.peers = append(slices.Clone(feed.peers), state.Peer{ID: state.PeerID("other"), Name: "other"})
		slices.SortFunc(feed.peers, func(a, b state.Peer) int { return a.Compare(&b) })
		feed.mu.Unlock()
		feed.publish()
		for want, c := range clients {
			c.expect(want)
		}
	})
}

// TestOtherFeaturesGetTheWholeState: a client that names other features than before gets the whole state.
func TestOtherFeaturesGetTheWholeState(t *testing.T) {
	var feed *script
	bubble(t, func(o *server.Options) {
		feed = newScript(withFeatures("a", 1))
		o.Feed = server.Only(nodeName, feed)
	}, func(t *testing.T, w *world) {
		first := watch(t, t.Context(), w.client(), accepting(state.Weights, nil))
		r, err := first.receive()
		if err != nil || !r.Update.Full {
			t.Fatalf("%+v, %v", r, err)
		}
		filter := func(f state.Features) *localnetv1.NextFilter {
			return &localnetv1.NextFilter{InstanceId: r.Position.Instance, Rev: uint64(r.Position.Revision), Accepts: protoconv.Features(f)}
		}
		feed.publish(withFeatures("b", 2))
		for f, want := range map[state.Features]string{
			state.Weights: "2 node +b", 0: "2 full node +a +b", state.AllFeatures: "2 full node +a +b", state.Ping: "2 full node +a +b",
		} {
			c := watch(t, t.Context(), w.client(), accepting(f, r.Position.Message()))
			if got := c.update(); got != want {
				t.Errorf("for %v the update is %q, want %q", f, got, want)
			}
		}
		// A long poll answers at once for other features, and waits for the same ones. The filter for the next call has the features.
		then, names, err := next(t, t.Context(), w.client(), filter(state.Ping))
		if err != nil || names != "a b" || !slices.Equal(then.GetAccepts(), protoconv.Features(state.Ping)) {
			t.Errorf("got %v, %q, %v", then, names, err)
		}
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			_, _, _ = next(t, t.Context(), w.client(), then)
		}()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("a long poll for the same features did not wait")
		default:
		}
		feed.publish(withFeatures("c", 3))
		<-waited
	})
}

// TestLackingFeaturesAreLogged: one line for each client and feature, with the number of Services.
func TestLackingFeaturesAreLogged(t *testing.T) {
	var feed *script
	var text bytes.Buffer
	bubble(t, func(o *server.Options) {
		feed = newScript(withFeatures("a", 1), withFeatures("b", 2))
		o.Feed, o.Logger = server.Only(nodeName, feed), slog.New(slog.NewTextHandler(&text, nil))
	}, func(t *testing.T, w *world) {
		c := watch(t, t.Context(), w.client(), accepting(state.AllFeatures&^(state.Weights|state.Ping), nil))
		for port := uint16(1); port <= 3; port++ {
			if _, err := c.receive(); err != nil {
				t.Fatal(err)
			}
			c.ready()
			synctest.Wait()
			feed.publish(withFeatures("a", port+10))
		}
		w.stop()
		lines := strings.Count(text.String(), "client does not know a feature")
		for _, want := range []string{"feature=weights services=2", "feature=ping services=2", "client=test"} {
			if !strings.Contains(text.String(), want) || lines != 2 {
				t.Errorf("%d lines, without %q: %s", lines, want, &text)
			}
		}
	})
}
