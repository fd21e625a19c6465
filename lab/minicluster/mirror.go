package minicluster

//lint:file-ignore SA1019 People still write Endpoints by hand.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/internal/apirules"
)

// mirrorController is the value of the label endpointslice.kubernetes.io/managed-by on slices that mirror Endpoints.
const mirrorController = "endpointslicemirroring-controller.k8s.io"

// mirror makes EndpointSlices of Endpoints that were written by hand for Services without a selector. As the
// EndpointSlice mirroring controller does, it makes one for each subset and family. Other Services' slices come from a
// controller, which makes them again.
func (b *builder) mirror(all []*corev1.Endpoints) {
	for _, e := range all {
		i := slices.IndexFunc(b.services, func(s clusterService) bool { return s.Namespace == namespaceOf(e) && s.Name == e.Name })
		switch {
		case !apirules.IsMirrored(e), i < 0:
		case len(b.services[i].Spec.Selector) == 0:
			b.mirrorOf(b.services[i], e)
		}
	}
}

func (b *builder) mirrorOf(svc clusterService, e *corev1.Endpoints) {
	number := 0
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		var ports []discoveryv1.EndpointPort
		for j, p := range subset.Ports {
			proto := p.Protocol
			if proto == "" {
				proto = corev1.ProtocolTCP
			}
			if _, err := protocolOf(proto); err != nil {
				b.fail(e, fmt.Sprintf("subsets[%d].ports[%d].protocol", i, j), err)
				return
			}
			if p.Port < 1 || p.Port > 65535 {
				b.fail(e, fmt.Sprintf("subsets[%d].ports[%d].port", i, j), fmt.Errorf("%d is not in the range 1-65535", p.Port))
				return
			}
			ports = append(ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(proto), Port: new(p.Port), AppProtocol: p.AppProtocol})
		}
		byFamily := make(map[corev1.IPFamily]*discoveryv1.EndpointSlice)
		add := func(field string, list []corev1.EndpointAddress, ready bool) bool {
			for j, a := range list {
				ip, err := netip.ParseAddr(a.IP)
				if err != nil {
					b.fail(e, fmt.Sprintf("subsets[%d].%s[%d].ip", i, field, j), fmt.Errorf("%q is not an IP address", a.IP))
					return false
				}
				s := byFamily[familyOf(ip)]
				if s == nil {
					s = &discoveryv1.EndpointSlice{
						ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Labels: map[string]string{
							discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: mirrorController}},
						AddressType: discoveryv1.AddressType(familyOf(ip)), Ports: ports,
					}
					number++
					s.Name = fmt.Sprintf("%s-mirror-%s-%d", svc.Name, strings.ToLower(string(familyOf(ip))), number)
					byFamily[familyOf(ip)] = s
					b.out.Slices = append(b.out.Slices, s)
				}
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip.String()}, NodeName: a.NodeName, TargetRef: a.TargetRef,
					Conditions: discoveryv1.EndpointConditions{Ready: new(ready)}})
			}
			return true
		}
		if !add("addresses", subset.Addresses, true) || !add("notReadyAddresses", subset.NotReadyAddresses, false) {
			return
		}
	}
}
