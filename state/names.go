package state

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
)

// Names is what DNS needs to know about one Service, routed or not. It is the same on every node. Either ExternalName is set, or there
// are ClusterIPs, or the service is headless.
type Names struct {
	Name ServiceName
	// ExternalName is what the service is an alias of.
	ExternalName string
	ClusterIPs   []netip.Addr
	// Ports are the ports of a service with cluster IPs, ordered by [NamedPort.Compare].
	Ports []NamedPort
	// Endpoints are the ready endpoints of a headless service, in groups with different ports, ordered by their ports.
	Endpoints []EndpointGroup
}

// NamedPort is a port as DNS shows it. Its name may be empty.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Compare orders by name, protocol and number.
func (p NamedPort) Compare(o NamedPort) int {
	return cmp.Or(cmp.Compare(p.Name, o.Name), cmp.Compare(p.Protocol, o.Protocol), cmp.Compare(p.Port, o.Port))
}

// EndpointGroup is endpoints with the same ports. An endpoint may be in several groups.
type EndpointGroup struct {
	// Ports are ordered by [NamedPort.Compare] and distinct.
	Ports []NamedPort
	// Endpoints are ordered by [NamedEndpoint.Compare], distinct, and never none.
	Endpoints []NamedEndpoint
}

// NamedEndpoint is an endpoint of a headless service.
type NamedEndpoint struct {
	Addr netip.Addr
	// Hostname is empty if the endpoint has none.
	Hostname string
}

// Compare orders by address and hostname.
func (e NamedEndpoint) Compare(o NamedEndpoint) int {
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Hostname, o.Hostname))
}

// Equal reports whether two records are the same in every field. Empty and nil slices are the same.
func (n *Names) Equal(o *Names) bool {
	return n.Name == o.Name && n.ExternalName == o.ExternalName && slices.Equal(n.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(n.Ports, o.Ports) && slices.EqualFunc(n.Endpoints, o.Endpoints, EndpointGroup.Equal)
}

// Equal reports whether two groups are the same in every field.
func (g EndpointGroup) Equal(o EndpointGroup) bool {
	return slices.Equal(g.Ports, o.Ports) && slices.Equal(g.Endpoints, o.Endpoints)
}

// NamesFeed hands out the names of all services at the pace of their consumer, as [Feed] does states.
type NamesFeed interface {
	// Next blocks until there is something newer than after and returns how to get there from after. With after = 0, or an
	// after that the feed no longer remembers, the update is Full. It returns an error only if ctx ends or the feed is
	// closed for good. It may be called by several consumers at once.
	Next(ctx context.Context, after Revision) (*NamesUpdate, error)
}

// NamesUpdate leads from the names at one revision to those at a newer one. It is immutable, and its records are shared.
type NamesUpdate struct {
	// Revision is the revision after this update. It is not related to the revisions of states.
	Revision Revision
	// Full means that Changed is the whole: services that are not in it do not exist.
	Full bool
	// Changed are new and changed services, ordered by name. A record may equal the one that the consumer already has.
	Changed []*Names
	// Removed are services that no longer exist, ordered by name; always empty in a full update.
	Removed []ServiceName
}
