package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// node is one node of a fleet. Of its state it keeps a checksum of each service's record. That is enough to compare
// the record with its expected value, and little enough for thousands of nodes in one process.
type node struct {
	fleet *fleetNodes
	index int
	tls   *tls.Config
	slow  atomic.Bool
	conn  atomic.Pointer[nodeConn] // nil if there is none

	mu     sync.Mutex // guards what follows
	state  []uint32   // by service, 0 for none
	next   []uint32   // of an update that replaces the state and is not whole yet
	deltas []delta    // of another update that is not whole yet
	has    bool       // the state has what is awaited
	coming *bool      // likewise the update that is not whole yet; nil if it reports nothing about it

	at time.Time // when what is awaited arrived; guarded by fleet.mu
}

// delta is a service's new checksum.
type delta struct {
	service int
	sum     uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digestOf returns a checksum of a state.
func digestOf(state []uint32) uint32 {
	var sum uint32
	var b [4 << 10]byte
	for len(state) > 0 {
		n := min(len(state), len(b)/4)
		for i, v := range state[:n] {
			binary.LittleEndian.PutUint32(b[4*i:], v)
		}
		sum = crc32.Update(sum, castagnoli, b[:4*n])
		state = state[n:]
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
	if what == nil || !n.at.IsZero() || n.slow.Load() || (!has && what.Bytes != nil) {
		return
	}
	n.at = at
	if f.missing--; f.missing == 0 {
		close(f.all)
	}
}

// take takes a part of an update, parses no more of it than it has to, and fills in what the client library wants to
// see. A lost connection may leave a part of an update, which does no harm. An update that replaces the state
// restarts from nothing, and another one from the same state has all of it again.
func (n *node) take(b []byte, m *localnetv1.WatchResponse) error {
	proto.Reset(m)
	n.mu.Lock()
	defer n.mu.Unlock()
	what := n.fleet.awaited.Load()
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		value := protowire.ConsumeFieldValue(number, kind, b[size:])
		if value < 0 {
			return protowire.ParseError(value)
		}
		field := b[:size+value]
		var err error
		switch number {
		case fieldChanged:
			record, _ := protowire.ConsumeBytes(b[size:])
			err = n.change(record, m.Full, what)
		case fieldRemoved:
			removed := new(localnetv1.WatchResponse)
			if err = proto.Unmarshal(field, removed); err == nil {
				err = n.remove(removed.GetRemoved()[0])
			}
		default:
			err = proto.UnmarshalOptions{Merge: true}.Unmarshal(field, m)
			if number == fieldNode && m.Full { // the first part
				n.next = n.fleet.table(n.next, len(n.state))
			}
		}
		if err != nil {
			return err
		}
		b = b[size+value:]
	}
	if m.Position != nil {
		n.commit(m.Full)
	}
	return nil
}

func (n *node) change(record []byte, full bool, what *awaited) error {
	service, err := serviceOf(record, len(n.state))
	sum := crc32.Checksum(record, castagnoli)
	switch {
	case err != nil:
		return err
	case full && n.next == nil:
		return errors.New("the whole state comes without a node")
	case full:
		n.next[service] = sum
	default:
		n.deltas = append(n.deltas, delta{service, sum})
	}
	if what != nil && what.Bytes != nil && service == what.Service {
		n.coming = new(bytes.Contains(record, what.Bytes))
	}
	return nil
}

func (n *node) remove(name *localnetv1.ServiceName) error {
	service, err := serviceNumber([]byte(name.GetName()), len(n.state))
	if err == nil {
		n.deltas = append(n.deltas, delta{service, 0})
	}
	return err
}

// commit makes an update that is whole the state.
func (n *node) commit(full bool) {
	if full {
		n.fleet.putTable(n.state)
		n.state = n.next
	} else {
		for _, d := range n.deltas {
			n.state[d.service] = d.sum
		}
	}
	if n.coming != nil {
		n.has = *n.coming
	}
	n.next, n.deltas, n.coming = nil, nil, nil
}

// expect forgets that the state has what was awaited before.
func (n *node) expect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.has, n.coming = false, nil
}

// serviceOf returns the number of the service in a record, which is in its name.
func serviceOf(record []byte, services int) (int, error) {
	for b := record; len(b) > 0; {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		if number == fieldName {
			name, size := protowire.ConsumeBytes(b[size:])
			if size < 0 {
				return 0, protowire.ParseError(size)
			}
			return serviceNumber(name, services)
		}
		value := protowire.ConsumeFieldValue(number, kind, b[size:])
		if value < 0 {
			return 0, protowire.ParseError(value)
		}
		b = b[size+value:]
	}
	return 0, errors.New("a record has no name")
}

// serviceNumber reads a name of [Cluster].
func serviceNumber(name []byte, services int) (int, error) {
	digits, ok := bytes.CutPrefix(name, []byte("service-"))
	n := 0
	for _, d := range digits {
		if d < '0' || d > '9' {
			ok = false
			break
		}
		n = 10*n + int(d-'0')
	}
	if !ok || n >= services {
		return 0, fmt.Errorf("there is no service %q", name)
	}
	return n, nil
}

var (
	fieldChanged = fieldOf(&localnetv1.WatchResponse{}, "changed")
	fieldRemoved = fieldOf(&localnetv1.WatchResponse{}, "removed")
	fieldNode    = fieldOf(&localnetv1.WatchResponse{}, "node")
	fieldName    = fieldOf(&localnetv1.ServiceEndpoints{}, "name")
)

func fieldOf(m proto.Message, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

// nodeCodec has a node take what it receives.
type nodeCodec struct {
	encoding.CodecV2
	node *node
}

func newNodeCodec(n *node) nodeCodec { return nodeCodec{encoding.GetCodecV2(protocodec.Name), n} }

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
	net.Conn
	node   *node
	read   int
	slow   bool
	closed chan struct{}
	once   sync.Once
}

// dial makes a connection for a node.
func (n *node) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &nodeConn{Conn: conn, node: n, slow: n.slow.Load(), closed: make(chan struct{})}
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
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	n, err := c.Conn.Read(b)
	if c.read == 0 && n > 0 {
		c.node.conn.Store(c) // it is the one that gRPC has chosen
	}
	c.read += n
	c.node.fleet.bytes.Add(int64(n))
	return n, err
}

func (c *nodeConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.node.fleet.bytes.Add(int64(n))
	return n, err
}

func (c *nodeConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.node.conn.CompareAndSwap(c, nil)
	})
	return c.Conn.Close()
}
