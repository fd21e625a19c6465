// Package apirules applies an API server's rules to Services and EndpointSlices: it fills in defaults and refuses
// invalid objects.
//
// It also reports from which Endpoints a controller makes EndpointSlices.
//
// The rules come from pkg/apis/core and pkg/apis/discovery in k8s.io/kubernetes: defaults.go and validation.go of a
// create request.
package apirules

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Fault is why an API server refuses an object.
type Fault struct {
	// Field is the path within the object.
	Field string
	// Err is worded to follow the path.
	Err error
}

// Error renders the fault as field: fault.
func (f *Fault) Error() string { return f.Field + ": " + f.Err.Error() }

// Unwrap returns the fault without the field.
func (f *Fault) Unwrap() error { return f.Err }

// faults collects the faults of one object.
type faults []*Fault

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, &Fault{field, fmt.Errorf(format, args...)})
}

// check adds a fault for each complaint of package validation.
func (f *faults) check(field string, value any, complaints []string) {
	for _, c := range complaints {
		f.add(field, "%q is invalid: %s", value, c)
	}
}

func (f *faults) labels(field string, labels map[string]string) {
	for _, key := range sorted(labels) {
		f.check(field, key, validation.IsQualifiedName(key))
		f.check(fmt.Sprintf("%s[%s]", field, key), labels[key], validation.IsValidLabelValue(labels[key]))
	}
}

// Headless reports whether a Service has no cluster IP by intent.
func Headless(s *corev1.Service) bool {
	return s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// NodePorted reports whether a Service is of a type that has node ports.
func NodePorted(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// external reports whether clients outside of the cluster can reach a Service.
func external(s *corev1.Service) bool {
	return NodePorted(s) || s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// DefaultService fills in the defaults of a Service. It leaves out addresses and node ports, which are allocated.
func DefaultService(s *corev1.Service) {
	spec := &s.Spec
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 && spec.Type != corev1.ServiceTypeExternalName {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		if spec.SessionAffinityConfig == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
		}
		if spec.SessionAffinityConfig.ClientIP == nil {
			spec.SessionAffinityConfig.ClientIP = &corev1.ClientIPConfig{}
		}
		if spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = new(corev1.DefaultClientIPServiceAffinitySeconds)
		}
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == (intstr.IntOrString{}) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if spec.ExternalTrafficPolicy == "" && external(s) {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if spec.InternalTrafficPolicy == nil && spec.Type != corev1.ServiceTypeExternalName {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = new(true)
	}
}

// DefaultEndpointSlice fills in what an EndpointSlice does not say.
func DefaultEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new("")
		}
		if p.Protocol == nil {
			p.Protocol = new(corev1.ProtocolTCP)
		}
	}
}
