package protoconv

import (
	"iter"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// Names returns the message of a service's names.
func Names(n *state.Names) *localnetv1.ServiceNames {
	return &localnetv1.ServiceNames{
		Namespace:    text(n.Name.Namespace),
		Name:         text(n.Name.Name),
		ExternalName: text(n.ExternalName),
		ClusterIps:   addresses(n.ClusterIPs),
		Ports:        messages(n.Ports, fillNamedPort),
		Endpoints: messages(n.Endpoints, func(g *state.EndpointGroup, m *localnetv1.EndpointGroup) {
			m.Ports = messages(g.Ports, fillNamedPort)
			m.Endpoints = messages(g.Endpoints, func(e *state.NamedEndpoint, m *localnetv1.NamedEndpoint) {
				m.Address, m.Hostname = bytesOf(e.Addr), text(e.Hostname)
			})
		}),
	}
}

func fillNamedPort(p *state.NamedPort, m *localnetv1.NamedPort) {
	m.Name, m.Protocol, m.Port = text(p.Name), localnetv1.Protocol(p.Protocol), uint32(p.Port)
}

// NamesParts splits an update of names into messages of about size bytes: one service more at most. They are made as they are asked
// for. at is the position, which the last of them has; the second value reports the last.
func NamesParts(u *state.NamesUpdate, at Position, size int) iter.Seq2[*localnetv1.NextNamesResponse, bool] {
	return func(yield func(*localnetv1.NextNamesResponse, bool) bool) {
		part, full := &localnetv1.NextNamesResponse{Full: u.Full}, 0
		// add counts the bytes that were added to the part, and hands the part over once it is large enough.
		add := func(m proto.Message) bool {
			if full += proto.Size(m); full < size {
				return true
			}
			ready := part
			part, full = &localnetv1.NextNamesResponse{Full: u.Full}, 0
			return yield(ready, false)
		}
		for _, n := range u.Changed {
			m := Names(n)
			part.Changed = append(part.Changed, m)
			if !add(m) {
				return
			}
		}
		for _, n := range u.Removed {
			m := ServiceName(n)
			part.Removed = append(part.Removed, m)
			if !add(m) {
				return
			}
		}
		part.Position = at.Message()
		yield(part, true)
	}
}
