package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// NamesUpdate leads from the names of all services to newer ones.
type NamesUpdate struct {
	// Position is that after this update. It is none of a [Watcher]'s.
	Position Position
	// Full means that Changed is the whole: services that are not in it do not exist.
	Full bool
	// Changed are new and changed services, each whole. A record may equal the consumer's record.
	Changed []*localnetv1.ServiceNames
	// Removed are services that no longer exist; always empty in a full update. The consumer may never have seen them.
	Removed []ServiceName
}

// RunNames follows the names of all services, for DNS servers, and calls apply with each update. It returns nil when
// ctx ends. The calls pace the server: changes during a call are merged into the next update. An error means that the
// options are invalid.
//
// No failure of the server ends it, as with [Watcher.Updates]; a server without names fails with UNIMPLEMENTED. The
// options Node, Name and Resume have no effect.
func RunNames(ctx context.Context, o Options, apply func(*NamesUpdate)) error {
	conn, err := Dial(o)
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	o = o.withDefaults()
	f := namesFollower{link: link{options: &o, pace: newPacer(&o)}, apply: apply}
	f.run(ctx, "the names of "+o.Target, f.attempt)
	return nil
}

// namesFollower is one call of RunNames.
type namesFollower struct {
	link
	apply    func(*NamesUpdate)
	position Position
}

// attempt follows names over one connection until it breaks.
func (f *namesFollower) attempt(ctx context.Context) error {
	conn, err := Dial(*f.options)
	if err != nil {
		return err
	}
	defer conn.Close()
	for api := localnetv1.NewEndpointsClient(conn); ; {
		u, err := f.next(ctx, api)
		if err != nil {
			return err
		}
		f.position = u.Position
		f.pace.succeeded()
		f.apply(u)
	}
}

// next has one answer.
func (f *namesFollower) next(ctx context.Context, api localnetv1.EndpointsClient) (*NamesUpdate, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(stateTimeout, func() { cancel(errNoState) })
	defer timeout.Stop()
	request := &localnetv1.NextNamesRequest{}
	if f.position != (Position{}) {
		request.Resume = &localnetv1.Position{InstanceId: f.position.InstanceID, Rev: f.position.Rev}
	}
	stream, err := api.NextNames(ctx, request)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	if header, err := stream.Header(); timeout.Stop() && err == nil && header != nil {
		f.connected()
	}
	u, size := &NamesUpdate{}, 0
	for first := true; ; first = false {
		part, err := stream.Recv()
		switch {
		case err == io.EOF:
			return nil, errEnded
		case err != nil:
			return nil, cmp.Or(context.Cause(ctx), err)
		}
		if size += proto.Size(part) + partOverhead; size > maxUpdate {
			return nil, status.Error(codes.Internal, errTooLarge.Error())
		}
		if first {
			u.Full = part.Full
		}
		if err := u.add(part); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if part.Position != nil {
			u.Position = Position{part.Position.InstanceId, part.Position.Rev}
			return u, nil
		}
	}
}

// add takes a part of an answer.
func (u *NamesUpdate) add(part *localnetv1.NextNamesResponse) error {
	if u.Full != part.Full {
		return fmt.Errorf("broken update: full is %v in its first part and %v in another", u.Full, part.Full)
	}
	if u.Full && len(part.Removed) > 0 {
		return errors.New("broken update: the whole removes services")
	}
	u.Changed = append(u.Changed, part.Changed...)
	for _, n := range part.Removed {
		u.Removed = append(u.Removed, ServiceName{n.GetNamespace(), n.GetName()})
	}
	return nil
}

// CheckNames returns the fault of the names of a service, nil if they are valid. The error names the service and the
// first invalid field.
func CheckNames(n *localnetv1.ServiceNames) error {
	if err := checkNames(n); err != nil {
		return fmt.Errorf("service %s/%s: %w", n.GetNamespace(), n.GetName(), err)
	}
	return nil
}

func checkNames(n *localnetv1.ServiceNames) error {
	if n.GetName() == "" || n.GetNamespace() == "" {
		return errors.New("the name or namespace is empty")
	}
	for i, a := range n.GetClusterIps() {
		if !Addr(a).IsValid() {
			return fmt.Errorf("cluster_ips[%d]: %d bytes make no address", i, len(a))
		}
	}
	if err := checkNamedPorts(n.GetPorts()); err != nil {
		return err
	}
	for i, g := range n.GetEndpoints() {
		if err := checkNamedPorts(g.GetPorts()); err != nil {
			return fmt.Errorf("endpoints[%d].%w", i, err)
		}
		for j, e := range g.GetEndpoints() {
			if !Addr(e.GetAddress()).IsValid() {
				return fmt.Errorf("endpoints[%d].endpoints[%d].address: %d bytes make no address", i, j, len(e.GetAddress()))
			}
		}
	}
	return nil
}

func checkNamedPorts(ports []*localnetv1.NamedPort) error {
	for i, p := range ports {
		if err := checkEnum("protocol", p.GetProtocol(), localnetv1.Protocol_name); err != nil {
			return fmt.Errorf("ports[%d].%w", i, err)
		}
		if err := checkPortNumber("port", p.GetPort()); err != nil {
			return fmt.Errorf("ports[%d].%w", i, err)
		}
	}
	return nil
}
