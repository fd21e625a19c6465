package upgrade

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
)

// node is the node whose state is recorded.
const node = "node-a"

// stream is a method whose answers are recorded.
type stream struct {
	// name is the name of its files in testdata, without the extension.
	name, method string
	answer       func() proto.Message
	// request asks for the first update, or for the next one after an update that ended with an answer.
	request func(last proto.Message) proto.Message
	// poll reports that each update is a call of its own.
	poll bool
}

var streams = []stream{
	{
		name: "watch", method: localnetv1.Endpoints_Watch_FullMethodName, answer: func() proto.Message { return new(localnetv1.WatchResponse) },
		request: func(last proto.Message) proto.Message {
			r := &localnetv1.WatchRequest{Ready: true}
			if last == nil {
				r.Subscribe = &localnetv1.Subscribe{Node: node, Client: "upgrade"}
			}
			return r
		},
	},
	{
		name: "names", method: localnetv1.Endpoints_NextNames_FullMethodName, answer: func() proto.Message { return new(localnetv1.NextNamesResponse) },
		request: func(last proto.Message) proto.Message {
			r := new(localnetv1.NextNamesRequest)
			if last != nil {
				r.Resume = last.(*localnetv1.NextNamesResponse).GetPosition()
			}
			return r
		},
		poll: true,
	},
	{
		name: "follow", method: clusterv1.Objects_Follow_FullMethodName, answer: func() proto.Message { return new(clusterv1.FollowResponse) },
		request: func(proto.Message) proto.Message { return new(clusterv1.FollowRequest) },
	},
}

// isLast reports whether an answer is the last part of an update: it has a position.
func isLast(answer proto.Message) bool {
	m := answer.ProtoReflect()
	return m.Has(m.Descriptor().Fields().ByName("position"))
}

// decode parses an answer. An unknown field is an error, since today's programs would miss it.
func (s *stream) decode(data []byte) (proto.Message, error) {
	m := s.answer()
	if err := proto.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("%s: %w", s.method, err)
	}
	if name := unknown(m.ProtoReflect()); name != "" {
		return nil, fmt.Errorf("%s: %s has a field that is not known", s.method, name)
	}
	return m, nil
}

// unknown names a message within m that has unknown fields, empty if there is none.
func unknown(m protoreflect.Message) (name string) {
	if len(m.GetUnknown()) > 0 {
		return string(m.Descriptor().FullName())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := 0; i < v.List().Len() && name == ""; i++ {
				name = unknown(v.List().Get(i).Message())
			}
		default:
			name = unknown(v.Message())
		}
		return name == ""
	})
	return name
}

// describe writes an answer as JSON, with all fields that are set.
func describe(answer proto.Message) ([]byte, error) {
	text, err := protojson.Marshal(answer)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Indent(&b, text, "", "  ") // protojson's own spaces are random
	b.WriteByte('\n')
	return b.Bytes(), err
}

// pack writes messages with their lengths, and unpack reads them.
func pack(messages [][]byte) (data []byte) {
	for _, m := range messages {
		data = append(binary.AppendUvarint(data, uint64(len(m))), m...)
	}
	return data
}

func unpack(data []byte) (messages [][]byte, err error) {
	for len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return nil, errors.New("the file ends within a message")
		}
		messages = append(messages, data[n:n+int(size)])
		data = data[n+int(size):]
	}
	return messages, nil
}

// bytesCodec has calls send and receive bytes instead of messages.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
