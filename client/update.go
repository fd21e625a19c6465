package client

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// ServiceName identifies a Service in the cluster.
type ServiceName struct {
	Namespace, Name string
}

// String returns "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then by name.
func (n ServiceName) Compare(o ServiceName) int {
	if c := cmp.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(n.Name, o.Name)
}

// NameOf returns the name of a service.
func NameOf(s *localnetv1.ServiceEndpoints) ServiceName {
	return ServiceName{s.GetNamespace(), s.GetName()}
}

// Position names a state within the life of a server. The zero Position belongs to a client without a state.
type Position struct {
	// InstanceID is drawn at random by a server whenever it starts. Rev counts the states of its life.
	InstanceID, Rev uint64
}

// Update leads from one state of the node to a newer one. It must not be modified if records of it are shared.
type Update struct {
	// Position is the position of the state after this update.
	Position Position
	// Full reports whether Changed is the whole state: services that are not in it do not exist.
	Full bool
	// Node is the node after this update. It is nil only before the first update that has one, after a start from
	// [Options.Resume].
	Node *localnetv1.Node
	// Changed are new and changed services, each whole, in the order of the server. A record may equal the consumer's
	// record.
	Changed []*localnetv1.ServiceEndpoints
	// Removed are services that no longer exist; always empty in a full update. The consumer may never have seen them.
	Removed []ServiceName
	// Triggers are the times at which what led to changes of endpoints in this update happened in the cluster. The time from
	// there until the dataplane shows the update is the programming latency. Empty in a full update.
	Triggers []time.Time
}

// maxUpdate limits the bytes of an update, over all parts. Otherwise a broken server with an endless update could take
// all memory of the node. A state of 100,000 services with ten endpoints each has about 20 MiB.
const maxUpdate = 256 << 20

var errTooLarge = fmt.Errorf("broken update: it has more than %d MiB and does not end", maxUpdate>>20)

// partOverhead is the size of a part in addition to its content, so that a series of empty parts also ends.
const partOverhead = 64

// assembly puts an update together from its parts.
type assembly struct {
	update *Update // nil between updates
	size   int     // of its parts
}

// add takes a part. It returns the update if this was the last one, and an error if the parts do not make an update.
func (a *assembly) add(part *localnetv1.WatchResponse) (*Update, error) {
	u := a.update
	if a.size += proto.Size(part) + partOverhead; a.size > maxUpdate {
		return nil, errTooLarge
	}
	switch {
	case u == nil && part.Full && part.Node == nil:
		return nil, errors.New("broken update: the whole state comes without a node")
	case u == nil:
		u = &Update{Full: part.Full, Node: part.Node, Changed: part.Changed}
		a.update = u
	case u.Full != part.Full:
		return nil, fmt.Errorf("broken update: full is %v in its first part and %v in another", u.Full, part.Full)
	default:
		u.Changed = append(u.Changed, part.Changed...)
	}
	if u.Full && len(part.Removed) > 0 {
		return nil, fmt.Errorf("broken update: the whole state removes %d services", len(part.Removed))
	}
	for _, name := range part.Removed {
		u.Removed = append(u.Removed, ServiceName{name.GetNamespace(), name.GetName()})
	}
	for _, at := range part.Triggers {
		u.Triggers = append(u.Triggers, at.AsTime())
	}
	if part.Position == nil {
		return nil, nil
	}
	u.Position = Position{part.Position.InstanceId, part.Position.Rev}
	a.update, a.size = nil, 0
	return u, nil
}
