//go:build linux

package main

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/client"
	api "github.com/switchyard-net/switchyard/client/localnet/v1"
)

const (
	table = "inet example" // all that is ours
	mark  = "ct mark set ct mark or 0x4000"
	guard = "loopback" // a chain
)

// writer writes the script for nft. Each frontend is an element of a map, which sends the first packet of a connection to the
// chain of its port. That one distinguishes the three kinds of client, and sends them to one of two routes.
type writer struct {
	*dataplane
	strings.Builder
	used map[string]bool // chains and sets
	// frontends, nodePortMaps and strays are the elements of maps, by what the map matches.
	frontends, nodePortMaps, strays elements
}

// elements are chains by value, by match.
type elements map[string]map[string]string

func (e *elements) add(match, value, chain string) {
	if *e == nil {
		*e = make(elements)
	}
	if (*e)[match] == nil {
		(*e)[match] = make(map[string]string)
	}
	(*e)[match][value] = chain
}

func (e elements) rules() (rules []string) {
	for match, verdicts := range e {
		var list []string
		for value, chain := range verdicts {
			list = append(list, value+" : goto "+chain)
		}
		rules = append(rules, fmt.Sprintf("%s vmap { %s }", match, strings.Join(list, ", ")))
	}
	return rules
}

// chain makes a chain of rules, without the empty ones, and returns its name.
func (w *writer) chain(name string, rules ...string) string { return w.hook(name, "", rules...) }

// hook makes a chain that the kernel calls for the first packet of each connection.
func (w *writer) hook(name, hook string, rules ...string) string {
	w.used[name] = true
	fmt.Fprintf(w, "add chain %s %s %s\n", table, name, hook)
	for _, rule := range rules {
		if rule != "" {
			fmt.Fprintf(w, "add rule %s %s %s\n", table, name, rule)
		}
	}
	return name
}

func (w *writer) hooks() {
	w.chain("services", append(w.frontends.rules(), w.nodePortMaps.rules()...)...)
	strays := w.strays.rules() // other ports of cluster IPs
	for _, cidr := range w.node.ServiceCidrs {
		p := client.Prefix(cidr)
		strays = append(strays, fmt.Sprintf("%s daddr %s drop", ipOf(p.Addr()), p)) // no service has it
	}
	// A packet keeps the rules that it has met first, but a commit takes the elements out of their maps at once. One that finds
	// nothing for this reason meets the new rules in the next chain, and only who finds nothing there either is a stray.
	for i, rules := range [][]string{{"jump services"}, {"jump services"}, strays} {
		w.hook(fmt.Sprintf("prerouting%d", i), fmt.Sprintf("{ type nat hook prerouting priority %d; }", i-100), rules...)
		w.hook(fmt.Sprintf("output%d", i), fmt.Sprintf("{ type nat hook output priority %d; }", i-100), rules...)
	}
	w.hook("postrouting", "{ type nat hook postrouting priority 100; }", "ct mark and 0x4000 == 0x4000 masquerade fully-random")
}

// guard drops what other hosts send to loopback addresses, or from them, before anything else sees it.
func (w *writer) guard() {
	w.hook(guard, "{ type filter hook prerouting priority -300; }",
		`iifname != "lo" ip daddr 127.0.0.0/8 drop`, `iifname != "lo" ip saddr 127.0.0.0/8 drop`)
}

func (w *writer) port(s *api.ServiceEndpoints, p *api.Port) {
	ip, id := "ip", fmt.Sprint(client.NameOf(s), p.Name, p.Protocol, p.Family)
	if p.Family == api.Family_FAMILY_IPV6 {
		ip = "ip6"
	}
	internal, external := w.traffic(ip, "internal", id, p, p.Internal), w.traffic(ip, "external", id, p, p.External)
	for i, f := range p.Frontends {
		addr, chain := client.Addr(f.Address).String(), external
		if f.Kind == api.FrontendKind_FRONTEND_KIND_CLUSTER_IP {
			chain = internal
			w.strays.add(ip+" daddr", addr, "refuse")
		}
		if f.Restricted {
			var rules []string
			for _, source := range client.SourceRanges(s, f) {
				rules = append(rules, fmt.Sprintf("%s saddr %s goto %s", ip, client.Prefix(source), chain))
			}
			chain = w.chain(hash("restricted", id, i), append(rules, "drop")...)
		}
		port := fmt.Sprintf("%d . %d", p.Protocol, f.Port)
		if f.Kind != api.FrontendKind_FRONTEND_KIND_NODE_PORT {
			w.frontends.add(ip+" daddr . meta l4proto . th dport", addr+" . "+port, chain)
			continue
		}
		for _, match := range w.nodePortMatches(ip) {
			w.nodePortMaps.add(match+" meta l4proto . th dport", port, chain)
		}
	}
}

// traffic makes the chain that distinguishes the kinds of client.
func (w *writer) traffic(ip, kind, port string, p *api.Port, t *api.Traffic) string {
	if t == nil {
		return ""
	}
	id := kind + " " + port
	masquerade := func(when ...api.Masquerade) string {
		if slices.Contains(when, t.Masquerade) {
			return mark
		}
		return ""
	}
	const always, unlessPod, node = api.Masquerade_MASQUERADE_ALWAYS, api.Masquerade_MASQUERADE_UNLESS_POD, api.Masquerade_MASQUERADE_NODE
	inside, outside := w.route(ip, hash("inside", id), id, port, p, t.Inside), w.route(ip, hash("outside", id), id, port, p, t.Outside)
	fromPod := w.chain(hash("pod", id), masquerade(always), "goto "+inside)
	fromNode := w.chain(hash("node", id), masquerade(always, unlessPod, node), "goto "+inside)
	var rules []string
	for _, match := range w.podMatches(ip) {
		rules = append(rules, match+" goto "+fromPod)
	}
	rules = append(rules, "fib saddr type local goto "+fromNode, masquerade(always, unlessPod), "goto "+outside)
	return w.chain(hash("clients", id), rules...)
}

// route makes the chain of a route. It has no set of its own. The kernel finds a set by walking a list of all sets,
// so a set for each route would cost the square of their number.
func (w *writer) route(ip, name, id, port string, p *api.Port, r *api.Route) string {
	switch r.Verdict {
	case api.Verdict_VERDICT_REJECT:
		return w.chain(name, "goto refuse")
	case api.Verdict_VERDICT_DROP:
		return w.chain(name, "drop")
	}
	var bound, choices []string
	for e := range client.Endpoints(p, r.Endpoints) {
		to := client.AddrPort(e)
		rules := []string{fmt.Sprintf("%s saddr %s %s", ip, to.Addr(), mark)}   // to itself: hairpin
		endpoint, set := hash("endpoint", id, to), hash("clients_of", port, to) // internal and external ones
		if p.AffinitySeconds > 0 {
			w.used[set] = true
			fmt.Fprintf(w, "add set %s %s { type %s; flags dynamic, timeout; }\n", table, set, map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[ip])
			bound = append(bound, fmt.Sprintf("%s saddr @%s goto %s", ip, set, endpoint))
			rules = append(rules, fmt.Sprintf("update @%s { %s saddr timeout %ds }", set, ip, p.AffinitySeconds))
		}
		if !w.used[endpoint] { // both routes may lead to it
			w.chain(endpoint, append(rules, fmt.Sprintf("meta l4proto %d dnat %s to %s", p.Protocol, ip, to))...)
		}
		// The first of n endpoints takes one connection in n, the next one in n-1 of the rest, and the last all that are left.
		choices = append(choices, fmt.Sprintf("numgen random mod %d 0 goto %s", len(r.Endpoints)-len(choices), endpoint))
	}
	return w.chain(name, append(bound, choices...)...)
}

// podMatches are expressions for packets of pods.
func (w *writer) podMatches(ip string) (list []string) {
	var cidrs []*api.Prefix
	switch d := w.node.PodDetection; d.GetMode() {
	case api.PodDetectionMode_POD_DETECTION_MODE_CLUSTER_CIDR:
		cidrs = d.ClusterCidrs
	case api.PodDetectionMode_POD_DETECTION_MODE_NODE_CIDR:
		cidrs = w.node.PodCidrs
	case api.PodDetectionMode_POD_DETECTION_MODE_BRIDGE_INTERFACE:
		return []string{fmt.Sprintf("iifname %q", d.BridgeInterface)}
	case api.PodDetectionMode_POD_DETECTION_MODE_INTERFACE_NAME_PREFIX:
		return []string{fmt.Sprintf("iifname %q", d.InterfaceNamePrefix+"*")}
	}
	for _, c := range cidrs {
		if p := client.Prefix(c); ipOf(p.Addr()) == ip {
			list = append(list, fmt.Sprintf("%s saddr %s", ip, p))
		}
	}
	return list
}

// nodePortMatches are expressions for packets to addresses on which node ports are served.
func (w *writer) nodePortMatches(ip string) (list []string) {
	const local = "fib daddr type local"
	on := w.node.NodePortAddresses
	if !on.GetPrimary() && len(on.GetCidrs()) == 0 {
		return []string{fmt.Sprintf("%s %s daddr != %s", local, ip, map[string]string{"ip": "127.0.0.0/8", "ip6": "::1"}[ip])}
	}
	if on.GetPrimary() {
		for _, a := range w.node.Addresses {
			if addr := client.Addr(a); ipOf(addr) == ip {
				list = append(list, fmt.Sprintf("%s %s daddr %s", local, ip, addr))
				break
			}
		}
	}
	for _, c := range on.GetCidrs() {
		p := client.Prefix(c)
		switch {
		case ipOf(p.Addr()) != ip:
		case ip == "ip" && !isLoopback(p): // loopback addresses count in ranges of their own only
			list = append(list, fmt.Sprintf("%s ip daddr %s ip daddr != 127.0.0.0/8", local, p))
		default:
			list = append(list, fmt.Sprintf("%s %s daddr %s", local, ip, p))
		}
	}
	return list
}

func ipOf(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

// hash makes a name that nft takes.
func hash(kind string, parts ...any) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q", fmt.Sprint(parts...))
	return fmt.Sprintf("%s_%x", kind, h.Sum64())
}
