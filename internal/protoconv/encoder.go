package protoconv

import (
	"runtime"
	"sync"
	"weak"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// Encoder marshals each record once, for any number of clients. It keeps a marshalled record for the life of the
// record, and keeps one full state. The zero Encoder is ready. Its methods may be called concurrently.
//
// It identifies a record by its address, and the peers of nodes by theirs. So a record, the list of a full state, and peers must not be modified after
// encoding.
type Encoder struct {
	mu   sync.RWMutex
	made map[weak.Pointer[state.Service]]mem.Buffer

	sheets sheets

	// peers belong to the node that was sent last, and encoded is the field of a WatchResponse that has them. All nodes of a cluster share them.
	peers struct {
		sync.Mutex
		of      []state.Peer
		encoded mem.Buffer
	}
}

// service returns a record as a switchyard.localnet.v1.ServiceEndpoints after its length, as it stands in a field of another
// message. It is shared and immutable.
func (e *Encoder) service(s *state.Service) mem.Buffer {
	key := weak.Make(s)
	e.mu.RLock()
	b, ok := e.made[key]
	e.mu.RUnlock()
	if ok {
		return b
	}
	b = encode(Service(s))
	e.mu.Lock()
	defer e.mu.Unlock()
	if made, ok := e.made[key]; ok { // another caller was faster
		return made
	}
	if e.made == nil {
		e.made = make(map[weak.Pointer[state.Service]]mem.Buffer)
	}
	e.made[key] = b
	runtime.AddCleanup(s, e.forget, key)
	return b
}

func (e *Encoder) forget(key weak.Pointer[state.Service]) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.made, key)
}

// node appends a node to the WatchResponse that is being built. The node without its peers and its peers come as two fields, which a client
// merges. So the peers of thousands of nodes are marshalled once.
func (e *Encoder) node(b *builder, n *state.Node) {
	b.merge(&localnetv1.WatchResponse{Node: Node(n.For(state.AllFeatures &^ state.EdgeShares))})
	if len(n.Peers) == 0 {
		return
	}
	e.peers.Lock()
	defer e.peers.Unlock()
	if len(e.peers.of) != len(n.Peers) || &e.peers.of[0] != &n.Peers[0] {
		e.peers.of, e.peers.encoded = n.Peers, encode(&localnetv1.Node{Peers: messages(n.Peers, fillPeer)})
	}
	b.field(fieldNode, e.peers.encoded)
}

// encode marshals a message that this package made, after its length: its strings are UTF-8, so it cannot fail.
func encode(m proto.Message) mem.Buffer {
	size := proto.Size(m)
	b := protowire.AppendVarint(make([]byte, 0, protowire.SizeBytes(size)), uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		panic("wire: cannot marshal " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return mem.SliceBuffer(b)
}

// builder puts a message together from pieces that are marshalled already. The zero builder is an empty message.
type builder struct {
	buffers mem.BufferSlice
	size    int // of the message in bytes
}

// tags are the beginnings of fields 1 to 15 of type message.
var tags = func() (tags [16]mem.Buffer) {
	for n := range tags {
		tags[n] = mem.SliceBuffer(protowire.AppendTag(nil, protowire.Number(n), protowire.BytesType))
	}
	return tags
}()

// field appends a field, 1 to 15, that holds a message, which comes after its length.
func (b *builder) field(number int, m mem.Buffer) {
	b.buffers = append(b.buffers, tags[number], m)
	b.size += 1 + m.Len()
}

// raw appends fields that are marshalled already.
func (b *builder) raw(fields []byte) {
	b.buffers = append(b.buffers, mem.SliceBuffer(fields))
	b.size += len(fields)
}

// merge appends all fields of m, which must be of the type that is being built and made by this package.
func (b *builder) merge(m proto.Message) { b.raw(Marshal(m)) }

// Marshal marshals a message that is made of this package's: their strings are UTF-8, so it cannot fail.
func Marshal(m proto.Message) []byte {
	bytes, err := proto.Marshal(m)
	if err != nil {
		panic("wire: cannot marshal " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return bytes
}

// take returns the message and leaves the builder empty.
func (b *builder) take() *Raw {
	m := &Raw{b.buffers}
	*b = builder{}
	return m
}

// Raw is a marshalled message that a stream with the [Codec] sends as it is. It may be sent once.
type Raw struct{ buffers mem.BufferSlice }

// NewRaw returns a message that is marshalled already. Its bytes may be shared, and must not be modified.
func NewRaw(message []byte) *Raw { return &Raw{mem.BufferSlice{mem.SliceBuffer(message)}} }

// Bytes returns a copy of the message.
func (r *Raw) Bytes() []byte { return r.buffers.Materialize() }
