//go:build linux

package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
)

// naive is the plainest dataplane that is right: with each change it writes all rules again through the nft program.
// It shows that the suite can be passed; the faults that it can be given show that the suite notices.
type naive struct {
	fault     string
	ns        *netns.NS
	nl        *netlink.Handle
	node      *state.Node
	services  map[state.ServiceName]*state.Service
	chains    map[string]bool // in the kernel, with their table
	affinity  map[string]bool // sets in the kernel, with their table
	udp       map[netip.AddrPort]map[netip.AddrPort]bool
	disturbed chan struct{}
	closing   chan struct{}
}

func newNaive(fault string) (*naive, error) {
	n := &naive{
		fault: fault, services: map[state.ServiceName]*state.Service{}, affinity: map[string]bool{},
		chains: map[string]bool{}, disturbed: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	var err error
	if n.ns, err = netns.Current(); err != nil {
		return nil, err
	}
	if n.nl, err = netlink.NewHandle(unix.NETLINK_NETFILTER); err != nil {
		return nil, err
	}
	if fault == "restarts wipe" {
		_ = n.nft("flush ruleset")
		time.Sleep(20 * time.Millisecond)
	}
	// Connections to a node port on a loopback address leave the node with that as their source, until they are masqueraded. Whether a range
	// names these or not, the guard keeps others out.
	if err := n.ns.SetSysctls(netns.Sysctl{Path: "net/ipv4/conf/all/route_localnet", Value: "1"}); err != nil {
		return nil, err
	}
	go n.watch()
	return n, nil
}

// watch looks for new addresses.
func (n *naive) watch() {
	last := fmt.Sprint(n.localAddrs())
	for {
		select {
		case <-n.closing:
			return
		case <-time.After(100 * time.Millisecond):
		}
		if now := fmt.Sprint(n.localAddrs()); now != last && n.fault != "node ports do not follow" {
			last = now
			n.disturbed <- struct{}{}
		}
	}
}

func (n *naive) Close() error {
	close(n.closing)
	n.nl.Close()
	return n.ns.Close()
}

func (n *naive) Features() state.Features {
	switch n.fault {
	case "weights do not count":
		return state.Weights
	case "hashes do not count":
		return state.Balances
	case "pings do not count":
		return state.Ping
	case "deadlines do not count":
		return state.DrainDeadline
	case "silence does not count":
		return state.Ejection
	}
	return 0
}

func (n *naive) Disturbed() <-chan struct{} { return n.disturbed }

func (n *naive) Verify(context.Context) (backend.Result, error) { return backend.Result{}, n.write() }

func (n *naive) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	if u.Full {
		clear(n.services)
	}
	for _, s := range u.Changed {
		n.services[s.Name] = s
	}
	for _, name := range u.Removed {
		delete(n.services, name)
	}
	node := *u.Node
	if n.node != nil && n.fault == "the detector stays" {
		node.LocalDetector = n.node.LocalDetector
	}
	if n.node != nil && n.fault == "service CIDRs stay" {
		node.ServiceCIDRs = slices.Concat(node.ServiceCIDRs, n.node.ServiceCIDRs)
	}
	n.node = &node
	result := backend.Result{Failed: map[state.ServiceName]error{}}
	for name, s := range n.services {
		if n.fault == "TCP only" && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Protocol != state.TCP }) {
			result.Failed[name] = errors.New("only TCP is served")
		}
	}
	return result, n.write()
}

func (n *naive) write() error {
	if n.node == nil {
		return nil
	}
	script := &strings.Builder{}
	switch n.fault {
	case "gaps between changes", "foreign tables go":
		if err := n.nft("flush ruleset"); err != nil {
			return err
		}
		clear(n.affinity)
		clear(n.chains)
		time.Sleep(20 * time.Millisecond)
	}
	sets, chains := map[string]bool{}, map[string]bool{}
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		if f == state.IPv6 && n.fault == "only IPv4" {
			continue
		}
		g := &generator{naive: n, family: f, out: script, sets: sets, used: chains, ip: "ip"}
		if f == state.IPv6 {
			g.ip = "ip6"
		}
		g.table()
	}
	for chain := range n.chains {
		if !chains[chain] {
			fmt.Fprintf(script, "flush chain %s\n", chain)
		}
	}
	for set := range n.affinity {
		if !sets[set] && n.fault != "clients of previous endpoints stay" {
			fmt.Fprintf(script, "delete set %s\n", set)
		}
	}
	if err := n.nft(script.String()); err != nil {
		return err
	}
	n.affinity = sets
	for chain := range chains {
		n.chains[chain] = true
	}
	return n.cleanUDP()
}

// nft runs a script as one transaction.
func (n *naive) nft(script string) error {
	var output []byte
	err := n.ns.Do(func() (err error) {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		output, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("nft: %w: %.2000s", err, output)
	}
	return nil
}

// cleanUDP deletes UDP flows whose endpoint no longer serves.
func (n *naive) cleanUDP() error {
	now := map[netip.AddrPort]map[netip.AddrPort]bool{}
	for _, s := range n.services {
		for _, p := range s.Ports {
			if p.Protocol != state.UDP {
				continue
			}
			for _, f := range p.Frontends {
				addrs := []netip.Addr{f.Addr}
				if f.Kind == state.NodePort {
					addrs = n.nodePortAddrs()
				}
				for _, addr := range addrs {
					if state.FamilyOf(addr) != p.Family {
						continue
					}
					serving := map[netip.AddrPort]bool{}
					for _, e := range slices.Concat(p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints,
						p.External.Inside.Endpoints, p.External.Outside.Endpoints, p.Lingering) {
						serving[e.Addr] = true
					}
					now[netip.AddrPortFrom(addr, f.Port)] = serving
				}
			}
		}
	}
	old := n.udp
	n.udp = now
	if n.fault == "UDP flows stay" || len(old)+len(now) == 0 && n.fault != "connections are cut" {
		return nil
	}
	var err error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, e := n.nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale{n.fault, now, old})
		err = errors.Join(err, e)
	}
	return err
}

type stale struct {
	fault    string
	now, old map[netip.AddrPort]map[netip.AddrPort]bool
}

func (s stale) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	dstIP, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	srcIP, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	dst := netip.AddrPortFrom(dstIP.Unmap(), flow.Forward.DstPort)
	src := netip.AddrPortFrom(srcIP.Unmap(), flow.Reverse.SrcPort)
	serving, isNow := s.now[dst]
	_, wasThen := s.old[dst]
	if s.fault == "connections are cut" && flow.Forward.DstPort != flow.Reverse.SrcPort {
		return true
	}
	return flow.Forward.Protocol == unix.IPPROTO_UDP && (isNow && (!serving[src] || s.fault == "UDP flows are cut") || !isNow && wasThen && src != dst)
}

// localAddrs leave out link-local addresses, which come with each pod. With them, all rules would be written again
// while connections are made, and a packet might meet the old rules in one chain and the new rules in the next.
func (n *naive) localAddrs() []netip.Addr {
	var list []netip.Addr
	_ = n.ns.Do(func() error {
		addrs, err := net.InterfaceAddrs()
		for _, a := range addrs {
			if addr, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); ok && !addr.IsLinkLocalUnicast() {
				list = append(list, addr.Unmap())
			}
		}
		return err
	})
	return list
}

func (n *naive) nodePortAddrs() []netip.Addr {
	switch o := *n.node.NodePorts; {
	case n.fault == "node ports everywhere":
	case o.Primary:
		var list []netip.Addr
		for _, addr := range n.node.Addresses {
			if !slices.ContainsFunc(list, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }) {
				list = append(list, addr)
			}
		}
		return list
	case len(o.CIDRs) > 0:
		return slices.DeleteFunc(n.localAddrs(), func(a netip.Addr) bool {
			return !slices.ContainsFunc(o.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
		})
	}
	return slices.DeleteFunc(n.localAddrs(), netip.Addr.IsLoopback)
}

// generator writes the script of one family.
type generator struct {
	*naive
	family state.Family
	ip     string
	out    *strings.Builder
	sets   map[string]bool
	used   map[string]bool
}

func (g *generator) add(format string, args ...any) { fmt.Fprintf(g.out, format+"\n", args...) }

// chain makes an empty chain, or empties an old one; it returns its name.
func (g *generator) chain(name, hook string) string {
	g.used[g.ip+" naive "+name] = true
	g.add("add chain %s naive %s %s", g.ip, name, hook)
	if g.fault == "old rules stay" && name == "services" {
		return name
	}
	g.add("flush chain %s naive %s", g.ip, name)
	return name
}

func (g *generator) rule(chain, format string, args ...any) {
	g.add("add rule %s naive %s %s", g.ip, chain, fmt.Sprintf(format, args...))
}

func (g *generator) table() {
	g.add("add table %s naive", g.ip)
	g.chain("services", "")
	// Every rule stands twice. A commit in the middle of the first chain takes the elements of the old rules' maps away, and the packet
	// falls out of it untranslated. The second chain is begun with the new rules.
	for i := range 2 {
		pre := g.chain(fmt.Sprint("pre", i), fmt.Sprintf("{ type nat hook prerouting priority %d; }", i-100))
		out := g.chain(fmt.Sprint("out", i), fmt.Sprintf("{ type nat hook output priority %d; }", i-100))
		g.rule(pre, "jump services")
		g.rule(out, "jump services")
	}
	if g.family == state.IPv4 && g.fault != "no loopback guard" {
		g.chain("loopback", "{ type filter hook prerouting priority -300; }")
		g.rule("loopback", "iifname != lo ip daddr 127.0.0.0/8 drop")
	}
	g.chain("post", "{ type nat hook postrouting priority 100; }")
	g.rule("post", "ct mark and 0x4000 == 0x4000 masquerade fully-random")
	if g.fault == "the mark stays" {
		g.rule("post", "meta mark and 0x4000 == 0x4000 masquerade fully-random")
	}
	g.chain("reject_now", "")
	if g.fault == "resets are ICMP" {
		g.rule("reject_now", "reject")
	}
	g.rule("reject_now", "meta l4proto tcp reject with tcp reset")
	g.rule("reject_now", "reject")
	var last, clusterIPs []string
	for _, s := range g.services {
		for _, p := range s.Ports {
			if p.Family != g.family || p.Protocol != state.TCP && strings.HasPrefix(g.fault, "TCP only") {
				continue
			}
			chains := g.port(s, &p)
			for _, f := range p.Frontends {
				traffic := chains[min(int(f.Kind)-1, 1)]
				match := fmt.Sprintf("th dport %d meta l4proto %d", f.Port, p.Protocol)
				if f.Kind == state.NodePort {
					last = append(last, match+" goto "+traffic)
					continue
				}
				match = fmt.Sprintf("%s daddr %s %s", g.ip, f.Addr, match)
				if f.Kind == state.ClusterIP {
					clusterIPs = append(clusterIPs, f.Addr.String())
				}
				if f.Restricted && g.fault != "source ranges do not count" {
					for _, src := range f.Sources {
						g.rule("services", "%s %s saddr %s goto %s", match, g.ip, src, traffic)
					}
					g.rule("services", "%s drop", match)
				}
				g.rule("services", "%s goto %s", match, traffic)
			}
		}
	}
	for _, addr := range g.nodePortAddrs() {
		if state.FamilyOf(addr) == g.family {
			for _, rule := range last {
				g.rule("services", "%s daddr %s %s", g.ip, addr, rule)
			}
		}
	}
	if g.fault == "stray ports pass" {
		return
	}
	for _, ip := range clusterIPs {
		g.rule("services", "%s daddr %s goto reject_now", g.ip, ip)
	}
	for _, cidr := range g.node.ServiceCIDRs {
		if state.FamilyOf(cidr.Addr()) == g.family {
			g.rule("services", "%s daddr %s drop", g.ip, cidr)
		}
	}
}

// port makes the chains of a port and returns the chains of internal and external traffic.
func (g *generator) port(s *state.Service, p *state.Port) (chains [2]string) {
	for i, traffic := range []*state.Traffic{&p.Internal, &p.External} {
		id := hash(s.Name, p.Name, p.Protocol, i)
		for side, route := range map[string]*state.Route{"inside": &traffic.Inside, "outside": &traffic.Outside} {
			g.chain(side+id, "")
			g.route(side+id, id, hash(s.Name, p.Name, p.Protocol), p, route)
		}
		chains[i] = g.chain("port"+id, "")
		g.masquerade(chains[i], traffic.Masquerade)
		for _, match := range g.pods() {
			g.rule(chains[i], "%s goto inside%s", match, id)
		}
		if g.fault != "the node is outside" {
			g.rule(chains[i], "fib saddr type local goto inside%s", id)
		}
		g.rule(chains[i], "goto outside%s", id)
	}
	return chains
}

func (g *generator) masquerade(chain string, m state.Masquerade) {
	mark := "ct"
	if g.fault == "the mark stays" {
		mark = "meta" // on the packet, and nothing clears it
	}
	if g.fault == "no masquerade" {
		return
	}
	if g.fault == "masquerades all" {
		m = state.MasqueradeAlways
	}
	switch m {
	case state.MasqueradeAlways:
		g.rule(chain, "%[1]s mark set %[1]s mark or 0x4000", mark)
	case state.MasqueradeNode:
		g.rule(chain, "fib saddr type local %[1]s mark set %[1]s mark or 0x4000", mark)
	case state.MasqueradeUnlessPod:
		g.rule(chain, "%[1]s mark set %[1]s mark or 0x4000", mark)
		for _, match := range g.pods() {
			g.rule(chain, "%s %s mark set 0", match, mark)
		}
	}
}

// pods returns what matches the source of a pod's packet.
func (g *generator) pods() []string {
	d := g.node.LocalDetector
	prefixes := d.ClusterCIDRs
	switch {
	case len(prefixes) > 0:
	case d.NodeCIDR:
		prefixes = g.node.PodCIDRs
	case d.BridgeInterface != "":
		return []string{"iifname " + d.BridgeInterface}
	case d.InterfacePrefix != "":
		return []string{"iifname " + d.InterfacePrefix + "*"}
	}
	var list []string
	for _, prefix := range prefixes {
		if state.FamilyOf(prefix.Addr()) == g.family {
			list = append(list, fmt.Sprintf("%s saddr %s", g.ip, prefix))
		}
	}
	return list
}

func (g *generator) route(chain, id, port string, p *state.Port, r *state.Route) {
	verdict := r.Verdict
	switch {
	case g.fault == "rejects are drops" && verdict == state.Reject:
		verdict = state.Drop
	case g.fault == "drops are rejects" && verdict == state.Drop:
		verdict = state.Reject
	}
	switch verdict {
	case state.Reject:
		g.rule(chain, "goto reject_now")
	case state.Drop:
		g.rule(chain, "drop")
	case state.Forward:
		var vmap []string
		for i, e := range r.Endpoints {
			ep := g.chain("ep"+hash(id, e.Addr), "")
			if g.fault != "no hairpin" {
				g.rule(ep, "%s saddr %s ct mark set ct mark or 0x4000", g.ip, e.Addr.Addr())
			}
			if p.Affinity > 0 && g.fault != "no affinity" {
				set := "aff" + hash(port, e.Addr)
				if g.fault == "affinity by address" {
					set = "aff" + hash(id, e.Addr)
				}
				g.sets[g.ip+" naive "+set] = true
				g.add("add set %s naive %s { type %s; flags dynamic, timeout; }", g.ip, set, map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[g.ip])
				g.rule(chain, "%s saddr @%s goto %s", g.ip, set, ep)
				verb, timeout := "update", int(p.Affinity.Seconds())
				switch g.fault {
				case "affinity does not end":
					timeout = 3600
				case "affinity is not prolonged":
					verb = "add"
				}
				g.rule(ep, "%s @%s { %s saddr timeout %ds }", verb, set, g.ip, timeout)
			}
			g.rule(ep, "meta l4proto %d dnat to %s", p.Protocol, e.Addr)
			vmap = append(vmap, fmt.Sprintf("%d : goto %s", i, ep))
		}
		if g.fault == "uneven" && len(vmap) > 1 {
			g.rule(chain, "numgen random mod 3 0 goto ep%s", hash(id, r.Endpoints[0].Addr))
		}
		g.rule(chain, "numgen random mod %d vmap { %s }", len(vmap), strings.Join(vmap, ", "))
	}
}

func hash(parts ...any) string {
	h := fnv.New64()
	fmt.Fprint(h, parts...)
	return fmt.Sprintf("_%x", h.Sum64())
}
