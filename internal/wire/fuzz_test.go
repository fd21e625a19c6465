package wire_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/wire"
	"github.com/switchyard-net/switchyard/internal/wire/wiretest"
)

// The fuzz targets here give any bytes to what reads messages. It must not panic, and what it takes must come back as it went.

func FuzzParseService(f *testing.F) {
	seed, _ := proto.Marshal(wire.Service(fullService()))
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(localnetv1.ServiceEndpoints)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		s, err := wire.ParseService(m)
		if err != nil {
			return
		}
		if again, err := wire.ParseService(transmit(t, wire.Service(s))); err != nil || !again.Equal(s) {
			t.Fatalf("went %+v\ncame %+v, %v", s, again, err)
		}
	})
}

func FuzzAssembly(f *testing.F) {
	first, _ := proto.Marshal(&localnetv1.WatchResponse{Full: true, Node: wire.Node(fullNode()), Changed: []*localnetv1.ServiceEndpoints{wire.Service(fullService())}})
	last, _ := proto.Marshal(&localnetv1.WatchResponse{Full: true, Position: wire.Position{Instance: 1, Revision: 2}.Message()})
	f.Add(first, last)
	f.Fuzz(func(t *testing.T, first, last []byte) {
		var a wiretest.Assembly
		for _, data := range [][]byte{first, last} {
			m := new(localnetv1.WatchResponse)
			if proto.Unmarshal(data, m) != nil {
				return
			}
			r, err := a.Add(m)
			if err != nil {
				return
			}
			if r == nil {
				continue
			}
			var again wiretest.Assembly
			var e wire.Encoder
			sameUpdate(t, assemble(t, &again, wire.Parts(&e, r.Update, r.Update.Node, r.Position, 100)).Update, r.Update)
		}
	})
}

func FuzzParseObject(f *testing.F) {
	for _, o := range []*clusterv1.Object{
		wire.Object(fullModelService()), wire.Object(fullSlice()), {Object: &clusterv1.Object_Namespace{Namespace: &clusterv1.Namespace{Name: "a"}}},
	} {
		seed, _ := proto.Marshal(o)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(clusterv1.Object)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		o, err := wire.ParseObject(m)
		if err != nil {
			return
		}
		if again, err := wire.ParseObject(transmit(t, wire.Object(o))); err != nil || !sameObject(o, again) {
			t.Fatalf("went %+v\ncame %+v, %v", o, again, err)
		}
		ref := new(clusterv1.Ref)
		if proto.Unmarshal(data, ref) == nil {
			if r, err := wire.ParseRef(ref); err == nil && wire.Ref(r).GetKind() != ref.GetKind() {
				t.Fatalf("went %v, came %v", ref, r)
			}
		}
	})
}
