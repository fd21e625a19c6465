package apirules

import (
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The limits of an EndpointSlice.
const (
	maxEndpoints = 1000
	maxPorts     = 20000
	maxAddresses = 100
)

// ValidateEndpointSlice returns why an API server refuses an EndpointSlice, which has its defaults, none if it does not.
func ValidateEndpointSlice(s *discoveryv1.EndpointSlice) []*Fault {
	var f faults
	f.check("metadata.name", s.Name, validation.IsDNS1123Subdomain(s.Name))
	f.labels("metadata.labels", s.Labels)
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	default:
		f.add("addressType", "%q is none of IPv4, IPv6, FQDN", s.AddressType)
	}
	if len(s.Endpoints) > maxEndpoints {
		f.add("endpoints", "has %d items, and at most %d are allowed: use several EndpointSlices", len(s.Endpoints), maxEndpoints)
	}
	for i := range s.Endpoints {
		f.endpoint(fmt.Sprintf("endpoints[%d]", i), s.AddressType, &s.Endpoints[i])
	}
	if len(s.Ports) > maxPorts {
		f.add("ports", "has %d items, and at most %d are allowed", len(s.Ports), maxPorts)
	}
	names := make(map[string]int)
	for i, p := range s.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		if first, twice := names[*p.Name]; twice {
			f.add(at+".name", "%q is the name of ports[%d], too: give each its own", *p.Name, first)
		} else {
			names[*p.Name] = i
		}
		if *p.Name != "" {
			f.check(at+".name", *p.Name, validation.IsDNS1123Label(*p.Name))
		}
		f.protocol(at+".protocol", *p.Protocol)
		if p.Port != nil {
			f.portNumber(at+".port", *p.Port)
		}
	}
	return f
}

func (f *faults) endpoint(at string, family discoveryv1.AddressType, e *discoveryv1.Endpoint) {
	if len(e.Addresses) == 0 || len(e.Addresses) > maxAddresses {
		f.add(at+".addresses", "has %d items, and 1 to %d are allowed", len(e.Addresses), maxAddresses)
	}
	for i, text := range e.Addresses {
		field := fmt.Sprintf("%s.addresses[%d]", at, i)
		if family == discoveryv1.AddressTypeFQDN {
			f.check(field, text, validation.IsDNS1123Subdomain(text))
			continue
		}
		a := f.address(field, text, true)
		if wrong := family == discoveryv1.AddressTypeIPv4 && !a.Is4() || family == discoveryv1.AddressTypeIPv6 && !a.Is6(); wrong && a.IsValid() {
			f.add(field, "%s is not of the addressType, which is %s", text, family)
		}
	}
	if e.NodeName != nil {
		f.check(at+".nodeName", *e.NodeName, validation.IsDNS1123Subdomain(*e.NodeName))
	}
	if e.Hints != nil && len(e.Hints.ForZones) > 8 {
		f.add(at+".hints.forZones", "has %d items, and at most 8 are allowed", len(e.Hints.ForZones))
	}
}
