package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// ttl is for how many seconds an answer may be kept, also that there is none.
const ttl = 5

// zone is what is known of the cluster's domain. It is a client.Sink.
type zone struct {
	domain string // in lower case, with a dot at its end
	soa    dnsmessage.SOAResource

	mu    sync.RWMutex
	known bool // there has been a state
	// services by namespace and name.
	services map[string]map[string]*localnetv1.ServiceEndpoints
}

func newZone(domain string) (*zone, error) {
	z := &zone{domain: strings.ToLower(strings.Trim(domain, ".")) + ".", services: make(map[string]map[string]*localnetv1.ServiceEndpoints)}
	var err error
	if z.soa.NS, err = dnsmessage.NewName("ns.dns." + z.domain); err == nil {
		z.soa.MBox, err = dnsmessage.NewName("hostmaster." + z.domain)
	}
	if err != nil {
		return nil, fmt.Errorf("domain %q: %w", domain, err)
	}
	z.soa.Refresh, z.soa.Retry, z.soa.Expire, z.soa.MinTTL = 7200, 1800, 86400, ttl
	return z, nil
}

// Apply implements client.Sink. Of a service that is not understood, what was known stays.
func (z *zone) Apply(_ context.Context, c *client.Change) (map[client.ServiceName]error, error) {
	failed := make(map[client.ServiceName]error)
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, s := range c.Changed {
		if err := client.Check(s); err != nil {
			failed[client.NameOf(s)] = err
			continue
		}
		if z.services[s.Namespace] == nil {
			z.services[s.Namespace] = make(map[string]*localnetv1.ServiceEndpoints)
		}
		z.services[s.Namespace][s.Name] = s
	}
	for _, name := range c.Removed {
		delete(z.services[name.Namespace], name.Name)
		if len(z.services[name.Namespace]) == 0 {
			delete(z.services, name.Namespace)
		}
	}
	z.known = true
	z.soa.Serial = uint32(c.Position.Rev)
	return failed, nil
}

// find returns the records of a name, which is in lower case and in the domain. If there is no such name, exists is false. A
// name exists without records if it is only a part of others, or has records of other types.
func (z *zone) find(name string, t dnsmessage.Type) (records []dnsmessage.ResourceBody, exists bool) {
	labels := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, z.domain), "."), ".")
	slices.Reverse(labels)
	switch {
	case labels[0] == "": // the domain itself
		if asks(t, dnsmessage.TypeSOA) {
			soa := z.soa // it changes with the next state
			records = append(records, &soa)
		}
		return records, true
	case labels[0] != "svc":
		return nil, false
	case len(labels) == 1:
		return nil, true
	}
	services := z.services[labels[1]]
	if len(labels) == 2 {
		return nil, services != nil
	}
	service := services[labels[2]]
	ports := portsWithClusterIP(service)
	if len(ports) == 0 || len(labels) > 5 {
		return nil, false
	}
	if len(labels) == 3 {
		return addresses(ports, t), true
	}
	ports = slices.DeleteFunc(ports, func(p *localnetv1.Port) bool {
		protocol := strings.TrimPrefix(p.Protocol.String(), "PROTOCOL_")
		return p.Name == "" || "_"+strings.ToLower(protocol) != labels[3] || len(labels) == 5 && "_"+p.Name != labels[4]
	})
	if len(labels) == 5 && asks(t, dnsmessage.TypeSRV) {
		return servers(ports, serviceName(service, z.domain)), len(ports) > 0
	}
	return nil, len(ports) > 0
}

// asks says whether a question of type t wants a record of the type have.
func asks(t, have dnsmessage.Type) bool { return t == have || t == dnsmessage.TypeALL }

func serviceName(s *localnetv1.ServiceEndpoints, domain string) string {
	return s.GetName() + "." + s.GetNamespace() + ".svc." + domain
}

// clusterIP returns the frontend of a port with the cluster IP, nil if there is none.
func clusterIP(p *localnetv1.Port) *localnetv1.Frontend {
	for _, f := range p.Frontends {
		if f.Kind == localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP {
			return f
		}
	}
	return nil
}

func portsWithClusterIP(s *localnetv1.ServiceEndpoints) (ports []*localnetv1.Port) {
	for _, p := range s.GetPorts() {
		if clusterIP(p) != nil {
			ports = append(ports, p)
		}
	}
	return ports
}

// addresses returns the cluster IPs, each once.
func addresses(ports []*localnetv1.Port, t dnsmessage.Type) (records []dnsmessage.ResourceBody) {
	seen := make(map[string]bool)
	for _, p := range ports {
		addr := clusterIP(p).Address
		if seen[string(addr)] {
			continue
		}
		seen[string(addr)] = true
		if len(addr) == 4 && asks(t, dnsmessage.TypeA) {
			records = append(records, &dnsmessage.AResource{A: [4]byte(addr)})
		}
		if len(addr) == 16 && asks(t, dnsmessage.TypeAAAA) {
			records = append(records, &dnsmessage.AAAAResource{AAAA: [16]byte(addr)})
		}
	}
	return records
}

// servers returns the numbers of ports, which are the same in both families, as SRV records.
func servers(ports []*localnetv1.Port, target string) (records []dnsmessage.ResourceBody) {
	name, err := dnsmessage.NewName(target)
	if err != nil {
		return nil // too long for DNS; Kubernetes' names are not, but the domain may be
	}
	numbers := make(map[uint16]bool)
	for _, p := range ports {
		numbers[uint16(clusterIP(p).Port)] = true
	}
	for _, number := range slices.Sorted(maps.Keys(numbers)) {
		records = append(records, &dnsmessage.SRVResource{Weight: 100, Port: number, Target: name})
	}
	return records
}
