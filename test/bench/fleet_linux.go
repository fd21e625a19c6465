package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/resolver"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/test/certtest"
)

const (
	// fleetName is the name of relays, in their certificates.
	fleetName = "relay"
	// awaitTimeout is how long nodes may take to get the awaited update.
	awaitTimeout = 3 * time.Minute
)

// fleet is many nodes that follow relays with the client library, each over a connection with its own certificate. After a
// lost connection they reconnect as the library does.
type fleet struct {
	traffic   traffic // of TLS
	addresses relayAddresses
	nodes     []*node
	running   sync.WaitGroup
	stop      context.CancelFunc
	failures  atomic.Int64 // attempts to follow a relay that ended, the last one with lastFailure
	// lastFailure is an error's text.
	lastFailure atomic.Value
	awaited     atomic.Pointer[awaited] // nil if nothing is

	mu      sync.Mutex // guards all below
	missing int        // nodes that do not have the awaited update
	all     chan struct{}
}

// relayAddresses resolves the name that all nodes follow, for new connections. Connections that exist keep their address.
type relayAddresses struct {
	latest atomic.Pointer[resolver.State]
}

// Scheme implements [resolver.Builder].
func (*relayAddresses) Scheme() string { return "fleet" }

// Build implements [resolver.Builder].
func (a *relayAddresses) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	_ = cc.UpdateState(*a.latest.Load()) // the connection itself shows what is wrong
	return resolved{}, nil
}

// resolved is a resolver that has nothing to add.
type resolved struct{}

// ResolveNow implements [resolver.Resolver].
func (resolved) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements [resolver.Resolver].
func (resolved) Close() {}

// awaited is a change that nodes should come to have: bytes in the record of a service. The zero value is any state.
type awaited struct {
	service int
	bytes   []byte
}

// newFleet makes nodes and, in a directory, the certificates of a relay that they believe. They do not connect yet.
func newFleet(dir string, nodes, services int) (*fleet, error) {
	f := &fleet{}
	authority := certtest.NewAuthority()
	cert, key := authority.Issue(24*time.Hour, pkix.Name{CommonName: fleetName, Organization: []string{"switchyard:relays"}}, fleetName)
	for name, content := range map[string][]byte{"ca.crt": authority.PEM, "relay.crt": cert, "relay.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	for i := range nodes {
		cert, key := authority.Issue(24*time.Hour, pkix.Name{CommonName: "system:node:" + nodeNameOf(i), Organization: []string{"system:nodes"}})
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		f.nodes = append(f.nodes, &node{fleet: f, index: i, state: make([]uint32, services), tls: &tls.Config{
			RootCAs: authority.Pool(), ServerName: fleetName, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		}})
	}
	return f, nil
}

// follow gives the addresses behind the name that all nodes follow. With the first ones, all of them connect at once, as after a power cut.
func (f *fleet) follow(ctx context.Context, addresses ...string) error {
	var state resolver.State
	for _, a := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: a})
	}
	f.addresses.latest.Store(&state)
	if f.stop != nil {
		return nil
	}
	resolver.Register(&f.addresses) // no other client is in this process
	ctx, f.stop = context.WithCancel(ctx)
	for _, n := range f.nodes {
		watcher, err := client.NewWatcher(client.Options{
			Target: "fleet:///" + fleetName, TLS: n.tls, Node: nodeNameOf(n.index), Logger: slog.New(slog.DiscardHandler),
			OnError: func(err error) {
				f.failures.Add(1)
				f.lastFailure.Store(err.Error())
			},
			DialOptions: []grpc.DialOption{
				grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(4 << 10), grpc.WithContextDialer(n.dial),
				grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nodeCodec{encoding.GetCodecV2(protocodec.Name), n})),
			},
		})
		if err != nil {
			return err
		}
		f.running.Go(func() {
			for range watcher.Updates(ctx) {
				n.arrive(time.Now())
			}
		})
	}
	return nil
}

func (f *fleet) close() {
	if f.stop != nil {
		f.stop()
		f.running.Wait()
	}
}

// await begins to wait for a state, and makes the change that leads to it. It returns how long after the change each node that is
// not slow had it.
func (f *fleet) await(ctx context.Context, what awaited, change func() error) (took []time.Duration, err error) {
	for _, n := range f.nodes {
		n.mu.Lock()
		n.has = false
		n.mu.Unlock()
	}
	f.mu.Lock()
	f.missing, f.all = 0, make(chan struct{})
	for _, n := range f.nodes {
		n.at = time.Time{}
		if !n.slow.Load() {
			f.missing++
		}
	}
	f.awaited.Store(&what)
	all := f.all
	f.mu.Unlock()
	began := time.Now()
	if err := change(); err != nil {
		return nil, err
	}
	select {
	case <-all:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(awaitTimeout):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited.Store(nil)
	if f.missing > 0 {
		return nil, fmt.Errorf("after %v %d of %d nodes do not have the state that there is; the last error is %q", awaitTimeout, f.missing, len(f.nodes),
			f.lastFailure.Load())
	}
	for _, n := range f.nodes {
		if !n.at.IsZero() {
			took = append(took, n.at.Sub(began))
		}
	}
	return took, nil
}

// connected is how many nodes have a connection to an address.
func (f *fleet) connected(address string) (count int) {
	for _, n := range f.nodes {
		if c := n.conn.Load(); c != nil && c.RemoteAddr().String() == address {
			count++
		}
	}
	return count
}

// node is one node of a fleet. Of its state it keeps a checksum of each service's record. That is enough to compare
// the record with its expected value, and little enough for thousands of nodes in one process.
type node struct {
	fleet *fleet
	index int
	tls   *tls.Config
	slow  atomic.Bool
	conn  atomic.Pointer[nodeConn] // nil if there is none

	mu     sync.Mutex     // guards what follows
	state  []uint32       // by service, 0 for none
	next   []uint32       // of an update that replaces the state and is not whole yet
	deltas map[int]uint32 // of another update that is not whole yet
	has    bool           // the awaited update has arrived

	at time.Time // when the awaited update arrived; guarded by fleet.mu
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digestOf returns a checksum of a state.
func digestOf(state []uint32) (sum uint32) {
	var b [4]byte
	for _, v := range state {
		binary.LittleEndian.PutUint32(b[:], v)
		sum = crc32.Update(sum, castagnoli, b[:])
	}
	return sum
}

func (n *node) digest() uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return digestOf(n.state)
}

// arrive notes that the client library has handed out a state.
func (n *node) arrive(at time.Time) {
	n.mu.Lock()
	has := n.has
	n.mu.Unlock()
	f := n.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	what := f.awaited.Load()
	if what == nil || !n.at.IsZero() || n.slow.Load() || (!has && what.bytes != nil) {
		return
	}
	n.at = at
	if f.missing--; f.missing == 0 {
		close(f.all)
	}
}

// take takes a part of an update. It leaves to the client library all but the records. A lost connection may leave a
// part of an update, which does no harm. An update that replaces the state restarts from nothing, and another one
// from the same state has all of it again.
func (n *node) take(b []byte, m *localnetv1.WatchResponse) error {
	var records [][]byte
	rest := make([]byte, 0, 256)
	if err := fields(b, func(number protowire.Number, field, value []byte) bool {
		if number == fieldChanged {
			records = append(records, value)
		} else {
			rest = append(rest, field...)
		}
		return true
	}); err != nil {
		return err
	}
	if err := proto.Unmarshal(rest, m); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.Full && m.Node != nil { // the first part
		n.next = make([]uint32, len(n.state))
	}
	if m.Full && n.next == nil {
		return errors.New("the whole state comes without a node")
	}
	if !m.Full && n.deltas == nil {
		n.deltas = map[int]uint32{}
	}
	what := n.fleet.awaited.Load()
	for _, record := range records {
		service, err := serviceOf(record, len(n.state))
		if err != nil {
			return err
		}
		if sum := crc32.Checksum(record, castagnoli); m.Full {
			n.next[service] = sum
		} else {
			n.deltas[service] = sum
		}
		n.has = n.has || what != nil && what.bytes != nil && service == what.service && bytes.Contains(record, what.bytes)
	}
	for _, name := range m.Removed {
		service, err := serviceNumber([]byte(name.GetName()), len(n.state))
		if err != nil {
			return err
		}
		n.deltas[service] = 0
	}
	m.Removed = nil
	if m.Position != nil {
		n.commit(m.Full)
	}
	return nil
}

// commit makes an update that is whole the state.
func (n *node) commit(full bool) {
	if full {
		n.state = n.next
	}
	for service, sum := range n.deltas {
		n.state[service] = sum
	}
	n.next, n.deltas = nil, nil
}

// fields calls each with the fields of a message, with and without their tags, as long as it wants more.
func fields(b []byte, each func(number protowire.Number, field, value []byte) (more bool)) error {
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeField(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		var value []byte
		if kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ = protowire.ConsumeBytes(b[tag:])
		}
		if !each(number, b[:size], value) {
			break
		}
		b = b[size:]
	}
	return nil
}

// serviceOf returns the number of the service in a record, which is in its name.
func serviceOf(record []byte, services int) (int, error) {
	var name []byte
	err := fields(record, func(number protowire.Number, _, value []byte) bool {
		if number == fieldName {
			name = value
		}
		return name == nil
	})
	if err != nil {
		return 0, err
	}
	return serviceNumber(name, services)
}

// serviceNumber reads a name of [Cluster].
func serviceNumber(name []byte, services int) (int, error) {
	digits, ok := bytes.CutPrefix(name, []byte("service-"))
	n, err := strconv.Atoi(string(digits))
	if !ok || err != nil || n < 0 || n >= services {
		return 0, fmt.Errorf("there is no service %q", name)
	}
	return n, nil
}

var (
	fieldChanged = fieldOf(&localnetv1.WatchResponse{}, "changed")
	fieldName    = fieldOf(&localnetv1.ServiceEndpoints{}, "name")
)

func fieldOf(m proto.Message, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

// nodeCodec passes received messages to a node.
type nodeCodec struct {
	encoding.CodecV2
	node *node
}

// Unmarshal implements [encoding.CodecV2].
func (c nodeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*localnetv1.WatchResponse)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return c.node.take(buf.ReadOnlyData(), m)
}

// The bytes that a slow node reads of a connection: enough for the handshakes at once, and then nothing, or a little
// now and then.
const (
	slowAfter  = 8 << 10
	slowBuffer = 32 << 10
	slowRead   = 4 << 10
	slowPause  = 500 * time.Millisecond
)

// nodeConn is a connection of a node.
type nodeConn struct {
	countedConn
	node   *node
	read   int
	slow   bool
	closed context.Context
	close  context.CancelFunc
}

// dial makes a connection for a node.
func (n *node) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &nodeConn{countedConn: countedConn{conn, &n.fleet.traffic}, node: n, slow: n.slow.Load()}
	c.closed, c.close = context.WithCancel(context.Background())
	if tcp, ok := conn.(*net.TCPConn); ok && c.slow {
		_ = tcp.SetReadBuffer(slowBuffer)
	}
	return c, nil
}

// setSlow makes a node slow, or fast again: over a new connection.
func (n *node) setSlow(slow bool) {
	if n.slow.Swap(slow) == slow {
		return
	}
	if c := n.conn.Load(); c != nil {
		_ = c.Close()
	}
}

func (c *nodeConn) Read(b []byte) (int, error) {
	if c.slow && c.read > slowAfter {
		pause := time.Duration(1<<63 - 1) // every other node never reads again
		if c.node.index%2 == 0 {
			pause = slowPause
		}
		select {
		case <-time.After(pause):
			b = b[:min(len(b), slowRead)]
		case <-c.closed.Done():
			return 0, net.ErrClosed
		}
	}
	n, err := c.countedConn.Read(b)
	if c.read == 0 && n > 0 {
		c.node.conn.Store(c) // it is the one that gRPC has chosen
	}
	c.read += n
	return n, err
}

func (c *nodeConn) Close() error {
	c.close()
	c.node.conn.CompareAndSwap(c, nil)
	return c.Conn.Close()
}
