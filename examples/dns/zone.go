package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// ttl is for how many seconds an answer may be kept, also that there is none.
const ttl = 5

// schemaVersion is the version of the specification that the answers follow.
const schemaVersion = "1.1.0"

// zone has the names and addresses of the cluster's domain, and the names of its addresses.
type zone struct {
	domain string // in lower case, with a dot at its end
	soa    dnsmessage.SOAResource

	mu    sync.RWMutex
	known bool // there have been names
	// services by namespace and name.
	services map[string]map[string]*service
	// pointers are the names of addresses, without the domain, each with the number of times that it occurs.
	pointers map[netip.Addr]map[string]int
}

// service is what DNS shows of one Service.
type service struct {
	*localnetv1.ServiceNames
	endpoints []endpoint // of a headless service
}

// endpoint is one endpoint of a headless service in one of its groups.
type endpoint struct {
	label string // its hostname, or a name made of its address
	addr  netip.Addr
	ports []*localnetv1.NamedPort
}

func newZone(domain string) (*zone, error) {
	z := &zone{
		domain:   strings.ToLower(strings.Trim(domain, ".")) + ".",
		services: make(map[string]map[string]*service), pointers: make(map[netip.Addr]map[string]int),
	}
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

// apply applies an update. A service that cannot be parsed keeps its last known records; report is called with the
// reason.
func (z *zone) apply(u *client.NamesUpdate, report func(error)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if u.Full {
		gone := make(map[client.ServiceName]bool)
		for ns, services := range z.services {
			for name := range services {
				gone[client.ServiceName{Namespace: ns, Name: name}] = true
			}
		}
		for _, n := range u.Changed {
			delete(gone, client.ServiceName{Namespace: n.Namespace, Name: n.Name})
		}
		for name := range gone {
			z.set(name, nil)
		}
	}
	for _, n := range u.Changed {
		if err := client.CheckNames(n); err != nil {
			report(err)
			continue
		}
		z.set(client.ServiceName{Namespace: n.Namespace, Name: n.Name}, newService(n))
	}
	for _, name := range u.Removed {
		z.set(name, nil)
	}
	z.known = true
	z.soa.Serial = uint32(u.Position.Rev)
}

// set replaces a service, by nil if it is gone. It costs what the service has.
func (z *zone) set(name client.ServiceName, s *service) {
	z.point(z.services[name.Namespace][name.Name], -1)
	z.point(s, 1)
	if s != nil {
		if z.services[name.Namespace] == nil {
			z.services[name.Namespace] = make(map[string]*service)
		}
		z.services[name.Namespace][name.Name] = s
		return
	}
	delete(z.services[name.Namespace], name.Name)
	if len(z.services[name.Namespace]) == 0 {
		delete(z.services, name.Namespace)
	}
}

// point adds the names of a service's addresses, or takes them away.
func (z *zone) point(s *service, by int) {
	if s == nil {
		return
	}
	count := func(addr netip.Addr, name string) {
		if z.pointers[addr] == nil {
			z.pointers[addr] = make(map[string]int)
		}
		if z.pointers[addr][name] += by; z.pointers[addr][name] == 0 {
			delete(z.pointers[addr], name)
		}
		if len(z.pointers[addr]) == 0 {
			delete(z.pointers, addr)
		}
	}
	for _, ip := range s.ClusterIps {
		count(client.Addr(ip), s.path())
	}
	for _, e := range s.endpoints {
		count(e.addr, e.label+"."+s.path())
	}
}

func newService(n *localnetv1.ServiceNames) *service {
	s := &service{ServiceNames: n}
	for _, g := range n.Endpoints {
		for _, e := range g.Endpoints {
			addr := client.Addr(e.Address)
			s.endpoints = append(s.endpoints, endpoint{labelOf(e.Hostname, addr), addr, g.Ports})
		}
	}
	return s
}

// labelOf returns the label of an endpoint in its service: its hostname, or else its address with dashes, as CoreDNS has it.
func labelOf(hostname string, addr netip.Addr) string {
	if hostname != "" {
		return strings.ToLower(hostname)
	}
	if addr.Is4() {
		return strings.ReplaceAll(addr.String(), ".", "-")
	}
	return strings.ReplaceAll(addr.String(), ":", "-")
}

// path is the name of the service without the domain.
func (s *service) path() string { return s.Name + "." + s.Namespace + ".svc." }

// exists reports whether the service has a name: one without addresses, such as a headless one without ready endpoints, has none.
func (s *service) exists() bool {
	return s != nil && (s.ExternalName != "" || len(s.ClusterIps) > 0 || len(s.endpoints) > 0)
}

// find returns the records of a name, which is in lower case and in the domain. If there is no such name, exists is
// false. A name exists without records if it is only a suffix of other names, or has records of other types.
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
	case labels[0] == "dns-version" && len(labels) == 1:
		if asks(t, dnsmessage.TypeTXT) {
			records = append(records, &dnsmessage.TXTResource{TXT: []string{schemaVersion}})
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
	s := services[labels[2]]
	if !s.exists() || len(labels) > 5 {
		return nil, false
	}
	switch {
	case len(labels) == 3 && s.ExternalName != "":
		return alias(s.ExternalName), true
	case len(labels) == 3:
		return addresses(s.addrs(""), t), true
	case len(labels) == 4 && !strings.HasPrefix(labels[3], "_"):
		addrs := s.addrs(labels[3])
		return addresses(addrs, t), len(addrs) > 0
	}
	port := ""
	if len(labels) == 5 {
		port = labels[4]
	}
	records = s.servers(labels[3], port, z.domain)
	if exists = len(records) > 0; len(labels) == 4 || !asks(t, dnsmessage.TypeSRV) {
		records = nil
	}
	return records, exists
}

// asks reports whether a question of type t wants a record of the type have.
func asks(t, have dnsmessage.Type) bool { return t == have || t == dnsmessage.TypeALL }

// addrs returns the addresses of the service, or the addresses of its endpoints with a label.
func (s *service) addrs(label string) (addrs []netip.Addr) {
	if label == "" {
		for _, ip := range s.ClusterIps {
			addrs = append(addrs, client.Addr(ip))
		}
	}
	for _, e := range s.endpoints {
		if label == "" || e.label == label {
			addrs = append(addrs, e.addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

func addresses(addrs []netip.Addr, t dnsmessage.Type) (records []dnsmessage.ResourceBody) {
	for _, addr := range addrs {
		switch {
		case addr.Is4() && asks(t, dnsmessage.TypeA):
			records = append(records, &dnsmessage.AResource{A: addr.As4()})
		case !addr.Is4() && asks(t, dnsmessage.TypeAAAA):
			records = append(records, &dnsmessage.AAAAResource{AAAA: addr.As16()})
		}
	}
	return records
}

// alias returns the CNAME record of a service of type ExternalName. It is the answer to questions of all types.
func alias(target string) []dnsmessage.ResourceBody {
	name, err := dnsmessage.NewName(strings.TrimSuffix(target, ".") + ".")
	if err != nil {
		return nil
	}
	return []dnsmessage.ResourceBody{&dnsmessage.CNAMEResource{CNAME: name}}
}

// servers returns the SRV records of the ports with a name, of the protocol and port in a question, such as _tcp and _http. An empty
// port stands for all.
func (s *service) servers(protocol, port, domain string) (records []dnsmessage.ResourceBody) {
	type server struct {
		number uint16
		target string
	}
	found := make(map[server]bool)
	add := func(ports []*localnetv1.NamedPort, target string) {
		for _, p := range ports {
			is := "_" + strings.ToLower(strings.TrimPrefix(p.Protocol.String(), "PROTOCOL_"))
			if p.Name != "" && is == protocol && (port == "" || "_"+p.Name == port) {
				found[server{uint16(p.Port), target}] = true
			}
		}
	}
	if len(s.ClusterIps) > 0 {
		add(s.Ports, s.path()+domain)
	}
	for _, e := range s.endpoints {
		add(e.ports, e.label+"."+s.path()+domain)
	}
	sorted := slices.SortedFunc(maps.Keys(found), func(a, b server) int {
		return strings.Compare(fmt.Sprintf("%s %05d", a.target, a.number), fmt.Sprintf("%s %05d", b.target, b.number))
	})
	for _, one := range sorted {
		if name, err := dnsmessage.NewName(one.target); err == nil { // else too long for DNS
			weight := uint16(max(100/len(sorted), 1))
			records = append(records, &dnsmessage.SRVResource{Weight: weight, Port: one.number, Target: name})
		}
	}
	return records
}

// reverse returns the PTR records of a name below in-addr.arpa. or ip6.arpa. ok is false for a name that is not one of an address of the
// cluster, which is not ours to answer.
func (z *zone) reverse(name string, t dnsmessage.Type) (records []dnsmessage.ResourceBody, ok bool) {
	names := z.pointers[addressOf(name)]
	if len(names) == 0 {
		return nil, false
	}
	if asks(t, dnsmessage.TypePTR) {
		for _, n := range slices.Sorted(maps.Keys(names)) {
			if target, err := dnsmessage.NewName(n + z.domain); err == nil {
				records = append(records, &dnsmessage.PTRResource{PTR: target})
			}
		}
	}
	return records, true
}

// addressOf returns the address that a name below in-addr.arpa. or ip6.arpa. is of, in lower case, the zero Addr if of none.
func addressOf(name string) netip.Addr {
	var text string
	if digits, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		labels := strings.Split(digits, ".")
		slices.Reverse(labels)
		text = strings.Join(labels, ".")
	} else if digits, ok := strings.CutSuffix(name, ".ip6.arpa."); ok && len(digits) == 63 {
		labels := strings.Split(digits, ".")
		slices.Reverse(labels)
		var groups []string
		for nibbles := range slices.Chunk(labels, 4) {
			groups = append(groups, strings.Join(nibbles, ""))
		}
		text = strings.Join(groups, ":")
	}
	addr, _ := netip.ParseAddr(text)
	return addr
}
