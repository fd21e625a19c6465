package protoconv

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

func (e *Encoder) len() int {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return len(e.made)
}

// bytesOf returns the message of a record, without its length.
func (e *Encoder) bytesOf(s *state.Service) []byte {
	b, _ := protowire.ConsumeBytes(e.service(s).ReadOnlyData())
	return b
}

// TestEncoderMarshalsOnce: all callers that ask for a record share one piece of memory.
func TestEncoderMarshalsOnce(t *testing.T) {
	var e Encoder
	s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: "a"}}
	want, err := proto.Marshal(Service(s))
	if err != nil {
		t.Fatal(err)
	}
	got := make([][]byte, 50)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = e.bytesOf(s) })
	}
	all.Wait()
	for _, b := range got {
		if !bytes.Equal(b, want) {
			t.Fatalf("got %x, want %x", b, want)
		}
		if &b[0] != &got[0][0] {
			t.Fatal("the record was marshalled for more than one")
		}
	}
	if other := e.bytesOf(new(*s)); &other[0] == &got[0][0] {
		t.Error("another record got the same memory")
	}
}

// TestEncoderForgets checks that the encoder forgets exactly the records that have no other user.
func TestEncoderForgets(t *testing.T) {
	var e Encoder
	kept := &state.Service{Name: state.ServiceName{Name: "kept"}}
	e.service(kept)
	for range 1000 {
		e.service(&state.Service{})
	}
	for range 100 {
		runtime.GC()
		if e.len() == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := e.len(); n != 1 {
		t.Errorf("%d are remembered, want 1", n)
	}
	runtime.KeepAlive(kept)
}

// TestTextIsAlwaysUTF8: a name that is not, which no source lets in, does not keep a record from being sent.
func TestTextIsAlwaysUTF8(t *testing.T) {
	var e Encoder
	e.service(&state.Service{Name: state.ServiceName{Namespace: "n\xff", Name: "a\xff"}, Ports: []state.Port{{Name: "p\xff"}}})
	encode(Object(&model.Service{Name: state.ServiceName{Namespace: "n\xff", Name: "a\xff"}, HasProxyName: true, ProxyName: "\xff", Ports: []model.ServicePort{{Name: "p\xff"}}}))
	encode(Object(&model.EndpointSlice{Namespace: "\xff", Name: "\xff", Service: "\xff", Ports: []model.EndpointPort{{Name: "\xff"}},
		Endpoints: []model.Endpoint{{NodeName: "\xff", Zone: "\xff", ZoneHints: []string{"\xff"}, NodeHints: []string{"\xff"}}}, Pods: "\xff\xff\x00\x01\x00\x02"}))
	encode(Object(&model.Node{Name: "\xff", Zone: "\xff"}))
	encode(Object(&model.Namespace{Name: "\xff"}))
	encode(Object(&model.ServiceCIDR{Name: "\xff"}))
	var b builder
	b.merge(Node(&state.Node{Name: "\xff"}))
	b.merge(ServiceName(state.ServiceName{Namespace: "\xff", Name: "\xff"}))
	b.merge(Ref(model.Ref{Namespace: "\xff", Name: "\xff"}))
}
