package protoconv_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/protoconv/protoconvtest"
)

// The fuzz targets pass any bytes to the readers of messages. These must not panic, and accepted values must survive a
// round trip.

func FuzzParseService(f *testing.F) {
	seed, _ := proto.Marshal(protoconv.Service(fullService()))
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(localnetv1.ServiceEndpoints)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		s, err := protoconv.ParseService(m)
		if err != nil {
			return
		}
		if again, err := protoconv.ParseService(transmit(t, protoconv.Service(s))); err != nil || !again.Equal(s) {
			t.Fatalf("went %+v\ncame %+v, %v", s, again, err)
		}
	})
}

func FuzzAssembly(f *testing.F) {
	first, _ := proto.Marshal(&localnetv1.WatchResponse{Full: true, Node: protoconv.Node(fullNode()), Changed: []*localnetv1.ServiceEndpoints{protoconv.Service(fullService())}})
	last, _ := proto.Marshal(&localnetv1.WatchResponse{Full: true, Position: protoconv.Position{Instance: 1, Revision: 2}.Message()})
	f.Add(first, last)
	for _, d := range []*localnetv1.PodDetection{
		{Mode: localnetv1.PodDetectionMode_POD_DETECTION_MODE_NONE},
		{Mode: localnetv1.PodDetectionMode_POD_DETECTION_MODE_NODE_CIDR},
		{Mode: localnetv1.PodDetectionMode_POD_DETECTION_MODE_BRIDGE_INTERFACE, BridgeInterface: "cni0"},
		{Mode: localnetv1.PodDetectionMode_POD_DETECTION_MODE_INTERFACE_NAME_PREFIX, InterfaceNamePrefix: "veth"},
		{Mode: 99},
	} {
		n := protoconv.Node(fullNode())
		n.PodDetection = d
		first, _ := proto.Marshal(&localnetv1.WatchResponse{Full: true, Node: n})
		f.Add(first, last)
	}
	f.Fuzz(func(t *testing.T, first, last []byte) {
		var a protoconvtest.Assembly
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
			var again protoconvtest.Assembly
			var e protoconv.Encoder
			sameUpdate(t, assemble(t, &again, protoconv.Parts(&e, r.Update, r.Update.Node, r.Position, 100)).Update, r.Update)
		}
	})
}

func FuzzParseObject(f *testing.F) {
	for _, o := range []*clusterv1.Object{
		protoconv.Object(fullModelService()), protoconv.Object(fullSlice()), {Object: &clusterv1.Object_Namespace{Namespace: &clusterv1.Namespace{Name: "a"}}},
	} {
		seed, _ := proto.Marshal(o)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(clusterv1.Object)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		o, err := protoconv.ParseObject(m)
		if err != nil {
			return
		}
		if again, err := protoconv.ParseObject(transmit(t, protoconv.Object(o))); err != nil || !sameObject(o, again) {
			t.Fatalf("went %+v\ncame %+v, %v", o, again, err)
		}
		ref := new(clusterv1.Ref)
		if proto.Unmarshal(data, ref) == nil {
			if r, err := protoconv.ParseRef(ref); err == nil && protoconv.Ref(r).GetKind() != ref.GetKind() {
				t.Fatalf("went %v, came %v", ref, r)
			}
		}
	})
}
