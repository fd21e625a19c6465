package relay

import (
	"log/slog"
	"maps"
	"testing"

	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
	"github.com/switchyard-net/switchyard/model"
)

// FuzzUpdate reads any bytes as an update. They may be refused, but the source's delivered objects must equal the
// sink's objects.
func FuzzUpdate(f *testing.F) {
	for _, m := range []*clusterv1.FollowResponse{
		{},
		{Full: true, Position: at(1)},
		{Full: true, Set: []*clusterv1.Object{{}, namespaceMessage("a"), serviceMessage("web", 10, 0, 0, 1)}, Position: at(2)},
		{
			Set:     []*clusterv1.Object{serviceMessage("web", 1), namespaceMessage("b")},
			Deleted: []*clusterv1.Ref{{Kind: 4, Name: "b"}, {}},
		},
		{Set: []*clusterv1.Object{{Object: &clusterv1.Object_EndpointSlice{EndpointSlice: &clusterv1.EndpointSlice{
			Namespace: "ns", Name: "s", Service: "web", Family: 4,
			Endpoints: []*clusterv1.Endpoint{{Address: []byte{10, 1, 0, 1}, Ready: true}},
		}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, again bool) {
		part := &clusterv1.FollowResponse{}
		if proto.Unmarshal(b, part) != nil {
			return
		}
		log := slog.New(slog.DiscardHandler)
		r := &recorder{t: t}
		d := &delivery{log: log, sink: r}
		first := []*clusterv1.Object{namespaceMessage("a"), serviceMessage("web", 10, 0, 0, 1)}
		for _, parts := range [][]*clusterv1.FollowResponse{
			{{Full: true, Set: first, Position: at(1)}},
			{part, {Full: part.GetFull(), Position: at(2)}},
			{{Full: again, Position: at(3)}},
		} {
			u := &update{log: log}
			for _, p := range parts {
				if u.add(p) != nil {
					return
				}
			}
			if err := d.take(u); err != nil {
				t.Fatal(err)
			}
			has := make(map[model.Ref]struct{})
			for ref := range r.objects {
				has[ref] = struct{}{}
			}
			if !maps.Equal(has, d.refs) {
				t.Fatalf("the source believes the sink to have %v; it has %v", d.refs, has)
			}
		}
		if again && len(r.objects) > 0 {
			t.Fatalf("left over: %v", r.objects)
		}
	})
}
