package file

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/model"
)

// endpoints is an object of kind Endpoints. It is not delivered: a service proxy goes by EndpointSlices. In a cluster, a controller makes
// these of Endpoints that were written by hand.
type endpoints struct {
	namespace, name string
	line            int
}

// endpointsOf returns the Endpoints from which a controller would make EndpointSlices.
func endpointsOf(object any, line int) (endpoints, bool) {
	e, ok := object.(*corev1.Endpoints)
	if !ok || !apirules.IsMirrored(e) {
		return endpoints{}, false
	}
	return endpoints{cmp.Or(e.Namespace, metav1.NamespaceDefault), e.Name, line}, true
}

// hintEndpoints logs once that Endpoints have no effect, unless there is an EndpointSlice for their Service.
func (s *state) hintEndpoints() {
	type service struct{ namespace, name string }
	var sliced map[service]bool // nil until somebody asks
	for file, c := range s.files {
		for _, e := range c.endpoints {
			name := service{e.namespace, e.name}
			if s.hintedEndpoints[e.namespace+"/"+e.name] {
				continue
			}
			if sliced == nil {
				sliced = make(map[service]bool)
				for ref := range s.claims {
					if slice, ok := s.winner(ref).(*model.EndpointSlice); ok {
						sliced[service{slice.Namespace, slice.Service}] = true
					}
				}
			}
			if sliced[name] {
				continue
			}
			s.hintedEndpoints[e.namespace+"/"+e.name] = true
			s.log.Warn("Endpoints have no effect outside a cluster, where a controller makes EndpointSlices of them; write an EndpointSlice with the "+
				"label kubernetes.io/service-name or use switchyard lab", "service", e.namespace+"/"+e.name, "file", file, "line", e.line)
		}
	}
}
