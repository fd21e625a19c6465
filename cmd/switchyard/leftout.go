package main

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/internal/spelling"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

var (
	errEndpoints = errors.New("kind Endpoints has no effect: a service proxy goes by EndpointSlices, which a controller of the cluster makes of Endpoints; " +
		"write an EndpointSlice with the label kubernetes.io/service-name, or use 'switchyard lab'")
	errNoAddress = errors.New("spec.clusterIP is missing, and only an API server assigns one: add it, or use 'switchyard lab'")
	errNoLabel   = errors.New("it has no label kubernetes.io/service-name, and so is of no Service: add it")
)

// isMirrored returns the Service whose endpoints an object of kind Endpoints has.
func isMirrored(object runtime.Object) (name state.ServiceName, ok bool) {
	e, ok := object.(*corev1.Endpoints)
	if !ok || !apirules.IsMirrored(e) {
		return name, false
	}
	return state.ServiceName{Namespace: cmp.Or(e.Namespace, metav1.NamespaceDefault), Name: e.Name}, true
}

// sliced are the Services that have EndpointSlices.
func (c *clusterObjects) sliced() map[state.ServiceName]bool {
	found := make(map[state.ServiceName]bool)
	for _, o := range c.objects {
		if s, ok := o.(*model.EndpointSlice); ok {
			found[state.ServiceName{Namespace: s.Namespace, Name: s.Service}] = true
		}
	}
	return found
}

// leftOut returns objects that are not routed because they are incomplete. A cluster would complete them, or they name
// an object that does not exist.
func (c *clusterObjects) leftOut() (problems []error) {
	services := make(map[state.ServiceName]*model.Service)
	var names []string
	for _, o := range c.objects {
		s, ok := o.(*model.Service)
		if !ok {
			continue
		}
		services[s.Name] = s
		names = append(names, s.Name.String())
		if len(s.ClusterIPs) == 0 && !s.Headless && s.Type != model.TypeExternalName {
			problems = append(problems, fmt.Errorf("%v: %w", s.Ref(), errNoAddress))
		}
	}
	for _, o := range c.objects {
		s, ok := o.(*model.EndpointSlice)
		name := state.ServiceName{}
		if ok {
			name = state.ServiceName{Namespace: s.Namespace, Name: s.Service}
		}
		switch {
		case !ok:
		case services[name] != nil:
			if err := unusedPorts(services[name], s); err != nil {
				problems = append(problems, fmt.Errorf("%v: %w", s.Ref(), err))
			}
		case s.Service == "":
			problems = append(problems, fmt.Errorf("%v: %w", s.Ref(), errNoLabel))
		default:
			problems = append(problems, fmt.Errorf("%v: its label kubernetes.io/service-name names Service %v, which is not there: add it, or correct the name%s", s.Ref(), name, spelling.Meant(name.String(), names)))
		}
	}
	return problems
}

// unusedPorts is an error if no port of a slice matches a port of its Service. Ports match by name and protocol.
func unusedPorts(svc *model.Service, s *model.EndpointSlice) error {
	if svc.Headless || len(s.Ports) == 0 || len(s.Endpoints) == 0 || len(svc.Ports) == 0 {
		return nil
	}
	var has, wants []string
	for _, p := range s.Ports {
		if slices.ContainsFunc(svc.Ports, func(q model.ServicePort) bool { return q.Name == p.Name && q.Protocol == p.Protocol }) {
			return nil
		}
		has = append(has, fmt.Sprintf("%q/%v", p.Name, p.Protocol))
	}
	for _, p := range svc.Ports {
		wants = append(wants, fmt.Sprintf("%q/%v", p.Name, p.Protocol))
	}
	return fmt.Errorf("its ports (%s) match no port of Service %v (%s): give both the same name and protocol",
		strings.Join(has, ", "), svc.Name, strings.Join(wants, ", "))
}
