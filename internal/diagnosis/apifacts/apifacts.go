// Package apifacts reads what package diagnosis wants to know beyond a service proxy's objects from objects of the Kubernetes API.
package apifacts

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/state"
)

// New returns facts without any.
func New() *diagnosis.Facts {
	return &diagnosis.Facts{Services: map[state.ServiceName]diagnosis.ServiceFacts{}, Endpoints: map[state.ServiceName]diagnosis.Endpoints{}}
}

// Add adds the useful facts of an object.
func Add(f *diagnosis.Facts, object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		f.Pods = append(f.Pods, pod(o))
	case *corev1.Service:
		f.Services[nameOf(o)] = service(o)
	case *corev1.Endpoints:
		f.Endpoints[nameOf(o)] = endpoints(o)
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelServiceName] == "" {
			f.Unlabelled = append(f.Unlabelled, nameOf(o))
		}
	case *appsv1.Deployment:
		workload(f, o, o.Spec.Replicas, &o.Spec.Template)
	case *appsv1.ReplicaSet:
		workload(f, o, o.Spec.Replicas, &o.Spec.Template)
	case *appsv1.StatefulSet:
		workload(f, o, o.Spec.Replicas, &o.Spec.Template)
	case *appsv1.DaemonSet:
		workload(f, o, nil, &o.Spec.Template)
	case *corev1.ReplicationController:
		if o.Spec.Template != nil {
			workload(f, o, o.Spec.Replicas, o.Spec.Template)
		}
	case *batchv1.Job:
		job(f, o, &o.Spec.Template)
	case *batchv1.CronJob:
		job(f, o, &o.Spec.JobTemplate.Spec.Template)
	}
}

// AddSkipped adds the useful facts of an object that [manifest.Read] skipped.
func AddSkipped(f *diagnosis.Facts, s manifest.Skipped) {
	_, name, namespaced := strings.Cut(s.Name, "/")
	if !namespaced {
		name = s.Name
	}
	group, _, _ := strings.Cut(s.APIVersion, "/")
	switch {
	case s.APIVersion == LeftOut.GroupVersion().String() && s.Kind == LeftOut.Kind:
		f.Partial = true
	case s.Kind == "CustomResourceDefinition":
		_, group, _ = strings.Cut(name, ".") // PLURAL.GROUP
		f.Custom = append(f.Custom, diagnosis.Custom{Group: group})
	case strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io"):
		f.Custom = append(f.Custom, diagnosis.Custom{Group: group, Kind: s.Kind, Name: name})
	}
}

func nameOf(o metav1.Object) state.ServiceName {
	return state.ServiceName{Namespace: cmp.Or(o.GetNamespace(), metav1.NamespaceDefault), Name: o.GetName()}
}

// ObjectOf names an object of the API.
func ObjectOf(object runtime.Object) diagnosis.Object {
	o := object.(metav1.Object)
	name := nameOf(o)
	return diagnosis.Object{Kind: kindOf(object), Namespace: name.Namespace, Name: name.Name}
}

func kindOf(object runtime.Object) string {
	t := fmt.Sprintf("%T", object) // such as *v1.Service; objects that were made here have no kind
	for i := len(t) - 1; i >= 0; i-- {
		if t[i] == '.' {
			return t[i+1:]
		}
	}
	return t
}

// workload adds what makes pods. A ReplicaSet of a Deployment says the same as that, and is left out.
func workload(f *diagnosis.Facts, o runtime.Object, replicas *int32, template *corev1.PodTemplateSpec) {
	meta := o.(metav1.Object)
	if metav1.GetControllerOf(meta) != nil {
		return
	}
	w := diagnosis.Workload{Object: ObjectOf(o), Labels: template.Labels}
	_, elsewhere := meta.GetAnnotations()[NotRun]
	switch {
	case replicas != nil && *replicas == 0:
		w.Severity, w.Idle, w.Remedy = diagnosis.Warning, "has 0 replicas", "scale it to at least 1 replica"
	case elsewhere:
		w.Severity, w.Idle, w.Remedy = diagnosis.Remark, "does not run in the lab", "check that the cluster can run its pods"
	default:
		w.Severity, w.Idle, w.Remedy = diagnosis.Fault, "has no running pod", "look at why it has no pods: kubectl describe"
	}
	f.Workloads = append(f.Workloads, w)
}

// job adds what runs pods until they complete.
func job(f *diagnosis.Facts, o runtime.Object, template *corev1.PodTemplateSpec) {
	f.Workloads = append(f.Workloads, diagnosis.Workload{Object: ObjectOf(o), Labels: template.Labels, Severity: diagnosis.Warning, Idle: "runs its pods only until they complete",
		Remedy: "select the pods of a Deployment, or expect the Service to have endpoints only while a Job runs"})
}

func service(svc *corev1.Service) diagnosis.ServiceFacts {
	s := diagnosis.ServiceFacts{Selector: svc.Spec.Selector}
	for i, p := range svc.Spec.Ports {
		t := diagnosis.Target{Name: p.Name, Protocol: protocolOf(p.Protocol), Port: uint16(p.Port), Target: p.TargetPort.String(), Field: fmt.Sprintf("spec.ports[%d].targetPort", i)}
		if t.Target == "0" || t.Target == "" { // absent
			t.Target = fmt.Sprint(p.Port)
		}
		s.Targets = append(s.Targets, t)
	}
	if d := svc.Spec.TrafficDistribution; d != nil {
		s.Prefers, s.PrefersField = "trafficDistribution "+*d, "spec.trafficDistribution"
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		addr, err := netip.ParseAddr(in.IP)
		switch {
		case err == nil && in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy:
			s.ProxyModeIPs = append(s.ProxyModeIPs, addr.Unmap())
		case in.IP == "" && in.Hostname != "":
			s.Hostnames = append(s.Hostnames, in.Hostname)
		}
	}
	return s
}

// protocolOf reads a protocol; an absent one is TCP, and an unknown one is none.
func protocolOf(p corev1.Protocol) state.Protocol {
	return map[corev1.Protocol]state.Protocol{"": state.TCP, corev1.ProtocolTCP: state.TCP, corev1.ProtocolUDP: state.UDP, corev1.ProtocolSCTP: state.SCTP}[p]
}

func endpoints(e *corev1.Endpoints) diagnosis.Endpoints {
	out := diagnosis.Endpoints{Name: e.Name}
	for _, s := range e.Subsets {
		out.Addresses += len(s.Addresses) + len(s.NotReadyAddresses)
	}
	if !apirules.IsMirrored(e) {
		out.NotMirrored = "annotation of a leader election"
		if e.Labels[discoveryv1.LabelSkipMirror] == "true" {
			out.NotMirrored = "label " + discoveryv1.LabelSkipMirror
		}
	}
	return out
}

func pod(o *corev1.Pod) diagnosis.Pod {
	p := diagnosis.Pod{Namespace: nameOf(o).Namespace, Name: o.Name, Node: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork, Labels: o.Labels, NotReady: notReady(o)}
	for _, ip := range append([]corev1.PodIP{{IP: o.Status.PodIP}}, o.Status.PodIPs...) {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && !slices.Contains(p.Addrs, addr.Unmap()) {
			p.Addrs = append(p.Addrs, addr.Unmap())
		}
	}
	if p.NotReady != "" {
		p.Gate = gate(o)
	}
	sidecars := slices.DeleteFunc(slices.Clone(o.Spec.InitContainers), func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	})
	for _, c := range slices.Concat(o.Spec.Containers, sidecars) {
		for _, port := range c.Ports {
			p.Ports = append(p.Ports, diagnosis.ContainerPort{Name: port.Name, Protocol: protocolOf(port.Protocol), Port: uint16(port.ContainerPort)})
		}
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if port := probePort(probe); port != nil && port.Type == intstr.Int {
				p.Mentioned = append(p.Mentioned, uint16(port.IntVal))
			}
		}
		for _, text := range slices.Concat(c.Command, c.Args) {
			p.Mentioned = append(p.Mentioned, numbers(text)...)
		}
		for _, e := range c.Env {
			p.Mentioned = append(p.Mentioned, numbers(e.Value)...)
		}
	}
	p.Configured = configured(&o.Spec)
	return p
}

// configured returns the name of a ConfigMap that the containers of a pod read, empty if there is none. Each namespace has one with the
// certificates of the cluster, which all pods read.
func configured(spec *corev1.PodSpec) string {
	const certificates = "kube-root-ca.crt"
	for _, v := range spec.Volumes {
		if v.ConfigMap != nil && v.ConfigMap.Name != certificates {
			return v.ConfigMap.Name
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.ConfigMap != nil && source.ConfigMap.Name != certificates {
				return source.ConfigMap.Name
			}
		}
	}
	for _, c := range spec.Containers {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				return from.ConfigMapRef.Name
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				return e.ValueFrom.ConfigMapKeyRef.Name
			}
		}
	}
	return ""
}

// numbers are the numbers in a text that may be ports.
func numbers(text string) (list []uint16) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.ParseUint(word, 10, 16); err == nil {
			list = append(list, uint16(n))
		}
	}
	return list
}

// probePort is where a probe connects to, nil if it does not.
func probePort(p *corev1.Probe) *intstr.IntOrString {
	switch {
	case p == nil:
	case p.HTTPGet != nil:
		return &p.HTTPGet.Port
	case p.TCPSocket != nil:
		return &p.TCPSocket.Port
	}
	return nil
}

// gate is the readiness gate that a pod waits for, empty if there is none.
func gate(o *corev1.Pod) string {
	for _, g := range o.Spec.ReadinessGates {
		met := slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		})
		if !met {
			return string(g.ConditionType)
		}
	}
	return ""
}

// notReady returns why a pod is not ready, as far as its status says.
func notReady(o *corev1.Pod) string {
	for _, s := range o.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "" {
			return fmt.Sprintf("container %s waits (%s)", s.Name, w.Reason)
		}
	}
	for _, cond := range o.Status.Conditions {
		if cond.Type == corev1.PodReady && cond.Status != corev1.ConditionTrue {
			return cmp.Or(cond.Message, cond.Reason, "its status says that it is not ready")
		}
	}
	if o.Status.Phase == corev1.PodPending {
		return "it is pending"
	}
	return ""
}
