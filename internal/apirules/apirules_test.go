package apirules

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func service(edit func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app.kubernetes.io/name": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	if edit != nil {
		edit(&s.Spec)
	}
	DefaultService(s)
	return s
}

// describe lists faults by their fields and texts.
func describe(list []*Fault) (lines []string) {
	for _, f := range list {
		lines = append(lines, f.Error())
	}
	return lines
}

// TestWhatAnAPIServerTakes: none of these is refused, however unusual it is.
func TestWhatAnAPIServerTakes(t *testing.T) {
	for name, edit := range map[string]func(*corev1.ServiceSpec){
		"plain":                  nil,
		"headless without ports": func(s *corev1.ServiceSpec) { s.ClusterIP, s.Ports = "None", nil },
		"no selector":            func(s *corev1.ServiceSpec) { s.Selector = nil },
		"external name": func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalName, s.Ports, s.Selector = "ExternalName", "mail.example.com.", nil, nil
		},
		"one number, two protocols": func(s *corev1.ServiceSpec) {
			s.Ports = []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: "UDP"}, {Name: "dns-tcp", Port: 53, Protocol: "TCP"}}
		},
		"one node port, two protocols": func(s *corev1.ServiceSpec) {
			s.Type = "NodePort"
			s.Ports = []corev1.ServicePort{{Name: "a", Port: 53, Protocol: "UDP", NodePort: 30053}, {Name: "b", Port: 53, Protocol: "TCP", NodePort: 30053}}
		},
		"external IPs with a policy": func(s *corev1.ServiceSpec) { s.ExternalIPs, s.ExternalTrafficPolicy = []string{"192.0.2.9"}, "Local" },
		"several ports to one target": func(s *corev1.ServiceSpec) {
			s.Ports = []corev1.ServicePort{{Name: "a", Port: 80, TargetPort: intstr.FromInt32(8080)}, {Name: "b", Port: 81, TargetPort: intstr.FromInt32(8080)}}
		},
	} {
		if got := describe(ValidateService(service(edit))); len(got) > 0 {
			t.Errorf("%s: %s", name, strings.Join(got, "; "))
		}
	}
}

// TestNamesOfServices: RFC 1123 labels (KEP-5311, RelaxedServiceNameValidation), and nothing else.
func TestNamesOfServices(t *testing.T) {
	for name, valid := range map[string]bool{"web": true, "9lives": true, "1234": true, "0--0": true, strings.Repeat("1", 63): true,
		"": false, "-9": false, "9-": false, "9.lives": false, "9Lives": false, strings.Repeat("1", 64): false} {
		s := service(nil)
		s.Name = name
		if got := describe(ValidateService(s)); (len(got) == 0) != valid {
			t.Errorf("name %q: %q, want valid %v", name, got, valid)
		}
	}
}

// TestWhatAnAPIServerRefuses: each fault, all of an object at once.
func TestWhatAnAPIServerRefuses(t *testing.T) {
	ports := func(list ...corev1.ServicePort) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.Ports = list }
	}
	for _, tt := range []struct {
		edit func(*corev1.ServiceSpec)
		want []string // beginnings
	}{
		{ports(), []string{"spec.ports: is empty"}},
		{ports(corev1.ServicePort{Port: 80}, corev1.ServicePort{Port: 81, Name: "Web_1"}), []string{"spec.ports[0].name: is empty", `spec.ports[1].name: "Web_1" is invalid: a lowercase RFC 1123 label`}},
		{ports(corev1.ServicePort{Port: 80, Name: "a"}, corev1.ServicePort{Port: 80, Name: "a"}), []string{`spec.ports[1].name: "a" is the name of spec.ports[0], too`, "spec.ports[1]: port 80/TCP is also in spec.ports[0]"}},
		{ports(corev1.ServicePort{Port: 80, TargetPort: intstr.FromString("8080")}), []string{`spec.ports[0].targetPort: "8080" is not the name of a port, which must contain at least one letter (a-z): for the number, write 8080 without quotes`}},
		{ports(corev1.ServicePort{Port: 80, NodePort: 30080}), []string{"spec.ports[0].nodePort: is for types NodePort and LoadBalancer, and the type is ClusterIP"}},
		{ports(corev1.ServicePort{Port: 70000, Protocol: "HTTP"}), []string{"spec.ports[0].port: 70000 is not in the range", `spec.ports[0].protocol: "HTTP" is none of`, "spec.ports[0].targetPort: 70000 is not in"}},
		{func(s *corev1.ServiceSpec) {
			s.Type = "NodePort"
			s.Ports = []corev1.ServicePort{{Name: "a", Port: 80, NodePort: 30080}, {Name: "b", Port: 81, NodePort: 30080}}
		}, []string{"spec.ports[1].nodePort: 30080/TCP is also in spec.ports[0]"}},
		{func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = "Local" }, []string{"spec.externalTrafficPolicy: is for Services that are reached from outside"}},
		{func(s *corev1.ServiceSpec) { s.Type, s.ClusterIP = "LoadBalancer", "None" }, []string{"spec.clusterIP: None is for Services of type ClusterIP"}},
		{func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].Port = "LoadBalancer", 10250 }, []string{"spec.ports[0].port: 10250 must not be exposed"}},
		{func(s *corev1.ServiceSpec) { s.Type = "Loadbalancer" }, []string{`spec.type: "Loadbalancer" is none of`}},
		{func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"192.0.2.1"} }, []string{"spec.loadBalancerSourceRanges: is for type LoadBalancer only", `spec.loadBalancerSourceRanges[0]: "192.0.2.1" is not a CIDR`}},
		{func(s *corev1.ServiceSpec) { s.SessionAffinity = "Cookie" }, []string{`spec.sessionAffinity: "Cookie" is neither`}},
		{func(s *corev1.ServiceSpec) { s.SessionAffinityConfig = &corev1.SessionAffinityConfig{} }, []string{"spec.sessionAffinityConfig: is for sessionAffinity ClientIP"}},
		{func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"127.0.0.1", "here"} }, []string{"spec.externalIPs[0]: 127.0.0.1 is an unspecified, loopback", `spec.externalIPs[1]: "here" is not an IP`}},
		{func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "10.0.0.1", []string{"10.0.0.2"} }, []string{"spec.clusterIPs[0]: 10.0.0.2 is not spec.clusterIP"}},
		{func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "a b"} }, []string{`spec.selector[app]: "a b" is invalid`}},
		{func(s *corev1.ServiceSpec) { s.Type = "ExternalName" }, []string{"spec.externalName: is empty"}},
		{func(s *corev1.ServiceSpec) { s.HealthCheckNodePort = 30000 }, []string{"spec.healthCheckNodePort: is for type LoadBalancer"}},
	} {
		got := describe(ValidateService(service(tt.edit)))
		if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("(-want +got):\n%s", cmp.Diff(tt.want, got))
		}
	}
}

// TestEndpointSlices: names and protocols of ports have defaults, and addresses are of the slice's type.
func TestEndpointSlices(t *testing.T) {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}, AddressType: "IPv4",
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}, Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}}}
	DefaultEndpointSlice(s)
	if *s.Ports[0].Name != "" || *s.Ports[0].Protocol != "TCP" {
		t.Errorf("port %v", s.Ports[0])
	}
	if got := describe(ValidateEndpointSlice(s)); len(got) > 0 {
		t.Error(got)
	}
	s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{}, discoveryv1.Endpoint{Addresses: []string{"fd00::1"}}, discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}})
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(""), Port: new(int32(0)), Protocol: new(corev1.ProtocolUDP)})
	want := []string{"endpoints[1].addresses: has 0 items", "endpoints[2].addresses[0]: fd00::1 is not of the addressType", "endpoints[3].addresses[0]: 127.0.0.1 is an unspecified",
		`ports[1].name: "" is the name of ports[0], too`, "ports[1].port: 0 is not in the range"}
	if got := describe(ValidateEndpointSlice(s)); !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
}
