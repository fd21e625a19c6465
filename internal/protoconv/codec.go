package protoconv

import (
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec is gRPC's codec for protocol buffers, which also sends messages of type [*Raw] as they are.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(protocodec.Name)} }

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(*Raw); ok {
		return raw.buffers, nil
	}
	return c.CodecV2.Marshal(v)
}
