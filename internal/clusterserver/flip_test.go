package clusterserver

import (
	"fmt"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// receive returns the size of one update, in bytes, how many objects it sets and deletes, and whether it is full.
func (c *client) receive() (size, objects int, full bool) {
	c.t.Helper()
	for {
		part, err := c.stream.Recv()
		if err != nil {
			c.t.Fatal(err)
		}
		size += proto.Size(part)
		objects += len(part.GetSet()) + len(part.GetDeleted())
		if part.GetPosition() != nil {
			return size, objects, part.GetFull()
		}
	}
}

// serviceAndSlice returns the n-th service, and its slice with so many endpoints.
func serviceAndSlice(n int, namespace string, endpoints int) []model.Object {
	name, ip := fmt.Sprint("service-", n), netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	slice := &model.EndpointSlice{Namespace: namespace, Name: name, Service: name, Family: state.IPv4}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(i), byte(n >> 8), byte(n)})})
	}
	return []model.Object{
		&model.Service{Name: state.ServiceName{Namespace: namespace, Name: name}, Type: model.TypeClusterIP, ClusterIPs: []netip.Addr{ip}}, slice,
	}
}

// TestNamespaceFlips puts the opt-out label on one of 100 namespaces and removes it again. Followers of the relay get
// only the objects of that namespace.
func TestNamespaceFlips(t *testing.T) {
	const services, namespaces = 10_000, 100
	r := newRelay(t)
	var all, inside []model.Object
	var refs []model.Ref
	for i := range services {
		namespace := fmt.Sprint("team-", i%namespaces)
		pair := serviceAndSlice(i, namespace, 1)
		all = append(all, pair...)
		if namespace == "team-7" {
			inside = append(inside, pair...)
			refs = append(refs, pair[0].Ref(), pair[1].Ref())
		}
	}
	r.sink.Update(all, nil)
	r.sink.Complete()
	c := r.follow(t)
	c.ask(nil)
	whole, objects, full := c.receive()
	if objects != 2*services || !full {
		t.Fatalf("%d objects, full: %v", objects, full)
	}
	namespace := &model.Namespace{Name: "team-7", ProxyDisabled: true}
	for _, flip := range []struct {
		title   string
		set     []model.Object
		deleted []model.Ref
	}{
		{"label on", []model.Object{namespace}, refs},
		{"label off", nil, []model.Ref{namespace.Ref()}},
		{"listed", inside, nil},
	} {
		r.sink.Update(flip.set, flip.deleted)
		c.ask(nil)
		size, objects, full := c.receive()
		t.Logf("%s: %d bytes; a full update has %d", flip.title, size, whole)
		if want := len(flip.set) + len(flip.deleted); objects != want || full || size > whole*3/2/namespaces {
			t.Errorf("%s: %d objects, want %d; full: %v; %d bytes, of all objects %d", flip.title, objects, want, full, size, whole)
		}
	}
}
