package apicluster

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// Package kubeconv reads objects back from the API's form unchanged.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(100) {
		h := randcluster.New(seed, randcluster.Options{NodeHealth: oracle.NodeHealth{Percent: 50, After: time.Hour, Now: time.Unix(1e9, 0).UTC()}})
		for range 10 {
			set, _ := h.Step()
			for _, want := range set {
				got, err := roundTrip(want)
				if slice, ok := want.(*model.EndpointSlice); ok && foreign(slice) {
					continue // the API has no form for it
				}
				if err != nil {
					t.Fatalf("seed %d: %v: %v", seed, want.Ref(), err)
				}
				switch want := want.(type) {
				case *model.Service:
					forget(want)
				case *model.Node: // all addresses of the API's form are internal
					want.Internal = len(want.Addresses)
				}
				if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
					t.Fatalf("seed %d:\n got %+v\nwant %+v", seed, got, want)
				}
			}
		}
	}
}

func roundTrip(object model.Object) (model.Object, error) {
	var form any
	switch o := object.(type) {
	case *model.Service:
		form = Service(o)
	case *model.EndpointSlice:
		form = EndpointSlice(o)
	case *model.Node:
		form = Node(o)
	case *model.Namespace:
		form = Namespace(o)
	case *model.ServiceCIDR:
		form = ServiceCIDR(o)
	}
	got, _, err := kubeconv.Object(form)
	return got, err
}

// foreign reports whether a slice has endpoints that do not belong into it, or that no pod can have.
func foreign(s *model.EndpointSlice) bool {
	for _, ep := range s.Endpoints {
		if !ep.Addr.IsValid() || s.Family == 0 || state.FamilyOf(ep.Addr) != s.Family || model.Special(ep.Addr) != "" {
			return true
		}
	}
	return false
}

// forget takes from a service what does not count for its type, and what the API has no field for then.
func forget(s *model.Service) {
	for i, r := range s.SourceRanges {
		s.SourceRanges[i] = r.Masked()
	}
	if s.Type == model.TypeExternalName {
		s.ExternalName = cmp.Or(s.ExternalName, externalNameValue)
		s.InternalLocal, s.ExternalLocal, s.Headless, s.ClusterIPs = false, false, false, nil
	}
	if s.Headless {
		s.ClusterIPs = nil
	}
	if s.Type == model.TypeClusterIP && len(s.ExternalIPs) == 0 {
		s.ExternalLocal = false
	}
}
