package relay

import (
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"

	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
)

// maxUpdate limits the bytes of an update, over all parts, so that a broken relay with an endless update does not take
// all memory. The objects of 100,000 services with ten endpoints each have about 70 MiB.
const maxUpdate = 512 << 20

// partOverhead is the size of a part in addition to its content, so that a series of empty parts also ends.
const partOverhead = 64

// errProtocol is wrapped by faults of an update as a whole.
var errProtocol = errors.New("protocol violation")

// update is the sum of the parts of one update.
type update struct {
	log   *slog.Logger
	size  int // of the parts
	begun bool
	full  bool
	set   []model.Object
	// faulty are objects that exist but cannot be used.
	faulty  []model.Ref
	deleted []model.Ref
	// position is nil until the last part has come.
	position *clusterv1.Position
}

// add adds the next part. It fails if the part is invalid. An object with a fault leaves its last good version in
// force. An object of an unknown kind has come from a newer relay and is ignored.
func (u *update) add(part *clusterv1.FollowResponse) error {
	if u.size += proto.Size(part) + partOverhead; u.size > maxUpdate {
		return fmt.Errorf("%w: an update has more than %d MiB and does not end", errProtocol, maxUpdate>>20)
	}
	if u.begun && part.GetFull() != u.full {
		return fmt.Errorf("%w: an update is full in some of its parts only", errProtocol)
	}
	u.begun, u.full = true, part.GetFull()
	if u.full && len(part.GetDeleted()) > 0 {
		return fmt.Errorf("%w: a full update names deleted objects", errProtocol)
	}
	for _, m := range part.GetSet() {
		ref := refOf(m)
		if ref.Kind == 0 {
			u.log.Debug("ignoring object of unknown kind")
			continue
		}
		obj, err := protoconv.ParseObject(m)
		if err != nil {
			u.log.Error("ignoring invalid object; keeping last known good configuration", "object", ref.String(), "error", err)
			u.faulty = append(u.faulty, ref)
			continue
		}
		u.set = append(u.set, obj)
	}
	for _, m := range part.GetDeleted() {
		ref, err := protoconv.ParseRef(m)
		if err != nil {
			u.log.Debug("ignoring deletion of unknown object", "error", err)
			continue
		}
		u.deleted = append(u.deleted, ref)
	}
	u.position = part.GetPosition()
	return nil
}

// refOf names an object that may have faults. The kind is 0 if it is not known.
func refOf(m *clusterv1.Object) model.Ref {
	switch o := m.GetObject().(type) {
	case *clusterv1.Object_Service:
		return model.Ref{Kind: model.KindService, Namespace: o.Service.GetNamespace(), Name: o.Service.GetName()}
	case *clusterv1.Object_EndpointSlice:
		return model.Ref{Kind: model.KindEndpointSlice, Namespace: o.EndpointSlice.GetNamespace(), Name: o.EndpointSlice.GetName()}
	case *clusterv1.Object_Node:
		return model.Ref{Kind: model.KindNode, Name: o.Node.GetName()}
	case *clusterv1.Object_Namespace:
		return model.Ref{Kind: model.KindNamespace, Name: o.Namespace.GetName()}
	case *clusterv1.Object_ServiceCidr:
		return model.Ref{Kind: model.KindServiceCIDR, Name: o.ServiceCidr.GetName()}
	}
	return model.Ref{}
}

// delivery brings updates to the sink. It belongs to one goroutine.
type delivery struct {
	log  *slog.Logger
	sink model.Sink
	// refs are the objects of the sink, from which a full update computes the deleted objects. Their names are shared
	// with the objects.
	refs map[model.Ref]struct{}
	// position is what to resume from, nil as long as the sink has nothing.
	position *clusterv1.Position
}

// take delivers a whole update.
func (d *delivery) take(u *update) error {
	deleted := u.deleted
	switch {
	case u.full:
		deleted = d.replace(u)
	case d.position == nil:
		return fmt.Errorf("%w: the first update is not full", errProtocol)
	default:
		for _, ref := range deleted {
			delete(d.refs, ref)
		}
		for _, obj := range u.set {
			d.refs[obj.Ref()] = struct{}{}
		}
	}
	if len(u.set)+len(deleted) > 0 {
		d.sink.Update(u.set, deleted)
	}
	if d.position == nil {
		d.log.Info("initial sync complete", "objects", len(d.refs))
		d.sink.Complete()
	}
	d.position = u.position
	return nil
}

// replace notes the objects of a full update, and returns the objects that no longer exist.
func (d *delivery) replace(u *update) (gone []model.Ref) {
	before := d.refs
	d.refs = make(map[model.Ref]struct{}, len(u.set))
	for _, obj := range u.set {
		d.refs[obj.Ref()] = struct{}{}
	}
	for _, ref := range u.faulty {
		if _, ok := before[ref]; ok {
			d.refs[ref] = struct{}{}
		}
	}
	for ref := range before {
		if _, ok := d.refs[ref]; !ok {
			gone = append(gone, ref)
		}
	}
	return gone
}
