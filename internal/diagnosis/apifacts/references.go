package apifacts

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/spelling"
	"github.com/switchyard-net/switchyard/state"
)

// The reasons of findings about references among manifests.
const (
	// NoSuchService: an object names a Service that is not there.
	NoSuchService diagnosis.Reason = "NoSuchService"
	// NoSuchServicePort: an Ingress names a port that its Service does not have.
	NoSuchServicePort diagnosis.Reason = "NoSuchServicePort"
	// NotHeadless: the Service of a StatefulSet has a cluster IP, so that its pods have no names.
	NotHeadless diagnosis.Reason = "NotHeadless"
	// NoSuchProbePort: a probe names a port that its container does not have.
	NoSuchProbePort diagnosis.Reason = "NoSuchProbePort"
	// EndpointsIgnored: Endpoints were written for a Service with a selector, whose controller overwrites them.
	EndpointsIgnored diagnosis.Reason = "EndpointsIgnored"
)

// References finds names in objects that lead nowhere. Objects that are in no manifest may still be in the cluster.
// Therefore a missing Service is a finding only if the manifests have another Service in its namespace.
func References(objects []runtime.Object) []diagnosis.Finding {
	r := &references{services: map[state.ServiceName]*corev1.Service{}}
	for _, o := range objects {
		if s, ok := o.(*corev1.Service); ok {
			r.services[nameOf(s)] = s
		}
	}
	for _, object := range objects {
		r.about = ObjectOf(object)
		switch o := object.(type) {
		case *networkingv1.Ingress:
			r.ingress(o)
		case *appsv1.StatefulSet:
			r.statefulSet(o)
			r.probes("spec.template.spec.", &o.Spec.Template.Spec)
		case *appsv1.Deployment:
			r.probes("spec.template.spec.", &o.Spec.Template.Spec)
		case *appsv1.DaemonSet:
			r.probes("spec.template.spec.", &o.Spec.Template.Spec)
		case *corev1.Pod:
			r.probes("spec.", &o.Spec)
		case *discoveryv1.EndpointSlice:
			if name := o.Labels[discoveryv1.LabelServiceName]; name != "" {
				r.service(name, "metadata.labels", "the EndpointSlice belongs to")
			}
		case *corev1.Endpoints:
			if apirules.IsMirrored(o) {
				r.service(o.Name, "metadata.name", "the Endpoints belong to")
			}
			if s := r.services[nameOf(o)]; s != nil && len(s.Spec.Selector) > 0 && metav1.GetControllerOf(o) == nil && o.UID == "" {
				r.add(EndpointsIgnored, diagnosis.Warning, "metadata.name", fmt.Sprintf("the cluster overwrites Endpoints %s: Service %s has a selector", o.Name, o.Name), "",
					"remove spec.selector from the Service, or remove the Endpoints")
			}
		}
	}
	return r.found
}

type references struct {
	services map[state.ServiceName]*corev1.Service
	about    diagnosis.Object
	found    []diagnosis.Finding
}

func (r *references) add(reason diagnosis.Reason, severity diagnosis.Severity, field, text, cause, remedy string) {
	r.found = append(r.found, diagnosis.Finding{Reason: reason, Severity: severity, Object: r.about, Field: field, Text: text, Cause: cause, Remedy: remedy})
}

// service returns a Service of the namespace. Without it, it adds a finding if the manifests have other Services there.
func (r *references) service(name, field, why string) *corev1.Service {
	s := r.services[state.ServiceName{Namespace: r.about.Namespace, Name: name}]
	if s != nil {
		return s
	}
	var others []string
	for n := range r.services {
		if n.Namespace == r.about.Namespace {
			others = append(others, n.Name)
		}
	}
	if len(others) == 0 {
		return nil
	}
	slices.SortFunc(others, func(a, b string) int {
		return cmp.Or(cmp.Compare(commonStart(b, name), commonStart(a, name)), cmp.Compare(spelling.Distance(a, name), spelling.Distance(b, name)), strings.Compare(a, b))
	})
	cause, near := "", others[0]
	if spelling.Distance(near, name) <= 2 || commonStart(near, name) >= 3 {
		cause = "there is Service " + near
	}
	r.add(NoSuchService, diagnosis.Warning, field, fmt.Sprintf("%s Service %s, which is not in the manifests", why, name), cause, "correct the name, or add the Service")
	return nil
}

func commonStart(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func (r *references) ingress(o *networkingv1.Ingress) {
	check := func(b *networkingv1.IngressBackend, field string) {
		if b == nil || b.Service == nil {
			return
		}
		field += ".service"
		s := r.service(b.Service.Name, field+".name", "the Ingress leads to")
		if s == nil {
			return
		}
		want := b.Service.Port
		has := func(p corev1.ServicePort) bool {
			return want.Name != "" && p.Name == want.Name || want.Name == "" && p.Port == want.Number
		}
		if slices.ContainsFunc(s.Spec.Ports, has) {
			return
		}
		text, path := want.Name, field+".port.name"
		if want.Name == "" {
			text, path = fmt.Sprint(want.Number), field+".port.number"
		}
		r.add(NoSuchServicePort, diagnosis.Fault, path, fmt.Sprintf("the Ingress leads to port %s of Service %s, which has no such port", text, s.Name),
			"it has "+servicePorts(s), "use a port of the Service: not the targetPort, and not the containerPort")
	}
	check(o.Spec.DefaultBackend, "spec.defaultBackend")
	for i, rule := range o.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			check(&rule.HTTP.Paths[j].Backend, fmt.Sprintf("spec.rules[%d].http.paths[%d].backend", i, j))
		}
	}
}

func servicePorts(s *corev1.Service) string {
	var texts []string
	for _, p := range s.Spec.Ports {
		text := fmt.Sprint(p.Port)
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		texts = append(texts, text)
	}
	return cmp.Or(strings.Join(texts, ", "), "no port")
}

func (r *references) statefulSet(o *appsv1.StatefulSet) {
	if o.Spec.ServiceName == "" {
		return
	}
	s := r.service(o.Spec.ServiceName, "spec.serviceName", "the StatefulSet names")
	if s != nil && s.Spec.ClusterIP != corev1.ClusterIPNone && !slices.Contains(s.Spec.ClusterIPs, corev1.ClusterIPNone) {
		r.add(NotHeadless, diagnosis.Remark, "spec.serviceName", fmt.Sprintf("Service %s of the StatefulSet has a cluster IP", s.Name), "the Service is not headless",
			"set clusterIP: None where clients need the names of single pods")
	}
}

// probes finds probes of ports that their containers do not have: these pods never get ready.
func (r *references) probes(path string, spec *corev1.PodSpec) {
	for i, c := range spec.Containers {
		for j, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			name, port := [...]string{"livenessProbe", "readinessProbe", "startupProbe"}[j], probePort(p)
			if port == nil || port.Type != intstr.String || strings.Trim(port.StrVal, "0123456789") == "" ||
				slices.ContainsFunc(c.Ports, func(cp corev1.ContainerPort) bool { return cp.Name == port.StrVal }) {
				continue
			}
			var has []string
			for _, cp := range c.Ports {
				if cp.Name != "" {
					has = append(has, cp.Name)
				}
			}
			kind := "tcpSocket"
			if p.HTTPGet != nil {
				kind = "httpGet"
			}
			r.add(NoSuchProbePort, diagnosis.Fault, fmt.Sprintf("%scontainers[%d].%s.%s.port", path, i, name, kind),
				fmt.Sprintf("the %s of container %s names port %s, which the container does not have", name, c.Name, port.StrVal),
				"its named ports are "+cmp.Or(strings.Join(has, ", "), "none"), "correct the name, or use the number of the port")
		}
	}
}
