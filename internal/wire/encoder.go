package wire

import (
	"runtime"
	"sync"
	"weak"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/state"
)

// Encoder marshals records, each once, however many clients get it: what it made is kept as long as the record
// itself is, and goes with it. The zero Encoder is ready. Its methods may be called concurrently.
//
// It knows a record by its address, so a record must not be modified once it has been encoded.
type Encoder struct {
	services cache[state.Service]
}

// Encoded is a marshalled message after its length, as it stands in a field of another message. It is shared and immutable.
type Encoded struct{ buffer mem.Buffer }

// Bytes returns the message without its length. The caller must not modify it.
func (e Encoded) Bytes() []byte {
	b, _ := protowire.ConsumeBytes(e.buffer.ReadOnlyData())
	return b
}

// Service returns a record as a localnet.v1.ServiceEndpoints.
func (e *Encoder) Service(s *state.Service) Encoded {
	return e.services.get(s, func() proto.Message { return Service(s) })
}

// encode marshals a message that this package made: its strings are UTF-8, so it cannot fail.
func encode(m proto.Message) Encoded {
	size := proto.Size(m)
	b := protowire.AppendVarint(make([]byte, 0, protowire.SizeBytes(size)), uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		panic("wire: cannot marshal " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return Encoded{mem.SliceBuffer(b)}
}

// cache holds what was made of each T that is still in use.
type cache[T any] struct {
	mu   sync.RWMutex
	made map[weak.Pointer[T]]Encoded
}

func (c *cache[T]) get(p *T, message func() proto.Message) Encoded {
	key := weak.Make(p)
	c.mu.RLock()
	e, ok := c.made[key]
	c.mu.RUnlock()
	if ok {
		return e
	}
	e = encode(message())
	c.mu.Lock()
	defer c.mu.Unlock()
	if made, ok := c.made[key]; ok { // meanwhile
		return made
	}
	if c.made == nil {
		c.made = make(map[weak.Pointer[T]]Encoded)
	}
	c.made[key] = e
	runtime.AddCleanup(p, c.forget, key)
	return e
}

func (c *cache[T]) forget(key weak.Pointer[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, key)
}

// Builder puts a message together from pieces that are marshalled already. The zero Builder is an empty message.
type Builder struct {
	buffers mem.BufferSlice
	size    int
}

// tags are the beginnings of fields 1 to 15 of type message.
var tags = func() (tags [16]mem.Buffer) {
	for n := range tags {
		tags[n] = mem.SliceBuffer(protowire.AppendTag(nil, protowire.Number(n), protowire.BytesType))
	}
	return tags
}()

// Field appends a field, 1 to 15, that holds a message.
func (b *Builder) Field(number int, e Encoded) {
	b.buffers = append(b.buffers, tags[number], e.buffer)
	b.size += 1 + e.buffer.Len()
}

// Merge appends all fields of m, which must be of the type that is being built and made by this package.
func (b *Builder) Merge(m proto.Message) {
	bytes, err := proto.Marshal(m)
	if err != nil {
		panic("wire: cannot marshal " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	b.buffers = append(b.buffers, mem.SliceBuffer(bytes))
	b.size += len(bytes)
}

// Size is the size of the message in bytes.
func (b *Builder) Size() int { return b.size }

// Take returns the message and leaves the builder empty.
func (b *Builder) Take() *Raw {
	m := &Raw{b.buffers}
	*b = Builder{}
	return m
}

// Raw is a marshalled message that a stream with the [Codec] sends as it is. It may be sent once.
type Raw struct{ buffers mem.BufferSlice }

// Bytes returns a copy of the message.
func (r *Raw) Bytes() []byte { return r.buffers.Materialize() }
