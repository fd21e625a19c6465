//go:build linux

package nftables

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestListRuleset makes the nft tool list what each shape of the tables looks like. Some layouts make it abort.
func TestListRuleset(t *testing.T) {
	detectors := map[string]state.LocalDetector{
		"none":   {},
		"CIDRs":  detectPods(families...),
		"IPv4":   detectPods(state.IPv4),
		"any":    {ClusterCIDRs: []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}},
		"single": {ClusterCIDRs: []netip.Prefix{prefix("10.0.0.1/32"), prefix("fd00::1/128"), prefix("10.0.0.0/9")}},
		"node":   {NodeCIDR: true},
		"bridge": {BridgeInterface: "cni0"},
		"prefix": {InterfacePrefix: "veth"},
		"long":   {InterfacePrefix: "veth-of-15-char"},
	}
	for name, d := range detectors {
		t.Run("detector "+name, func(t *testing.T) {
			listAfter(t, Options{LocalDetector: d}, full(someServices()...))
		})
	}
	restricted := everyKind("restricted", 7, 1, 0)
	for i := range restricted.Ports {
		p := &restricted.Ports[i]
		last := len(p.Frontends) - 1
		p.Frontends[last-1].Sources = nil // admits nobody
		lb := p.Frontends[last-1]
		lb.Port = 82
		lb.Sources = []netip.Prefix{prefix("10.0.0.0/8"), prefix("10.0.0.0/9"), prefix("10.1.2.3/32"), prefix("192.168.0.0/31")}
		if p.Family == state.IPv6 {
			lb.Sources = []netip.Prefix{prefix("fd00::/8"), prefix("fd00::/127"), prefix("fd00::1/128"), prefix("fe00::/127")}
		}
		p.Frontends = append(p.Frontends[:last:last], lb, p.Frontends[last])
	}
	everyLength := everyKind("every-length", 8, 2, time.Hour)
	for i := range everyLength.Ports {
		p := &everyLength.Ports[i]
		lb := &p.Frontends[2]
		lb.Sources = nil
		for n := range lb.Addr.BitLen() + 1 {
			lb.Sources = append(lb.Sources, netip.PrefixFrom(lb.Addr, n).Masked())
		}
		slices.SortFunc(lb.Sources, netip.Prefix.Compare)
	}
	udp := serviceOf("protocols",
		clusterIPPort(state.IPv4, state.UDP, 1, endpointsOf(state.IPv4, 1, 2)),
		clusterIPPort(state.IPv6, state.SCTP, 2, endpointsOf(state.IPv6, 1, 2)))
	udp.Ports[0].Affinity, udp.Ports[1].Affinity = time.Second, 24*time.Hour
	for name, u := range map[string]*state.Update{
		"no services":   full(),
		"sticky":        full(dualStack("a", 1, 2, time.Second), dualStack("b", 2, 2, time.Minute), everyKind("c", 3, 17, time.Hour)),
		"16 endpoints":  full(everyKind("a", 1, 16, 0)),
		"17 endpoints":  full(everyKind("a", 1, 17, 0)),
		"40 endpoints":  full(everyKind("a", 1, 40, 0)),
		"1000":          full(dualStack("a", 1, 1000, 0)),
		"source ranges": full(restricted),
		"every length":  full(everyLength, dualStack("b", 2, 2, time.Minute)),
		"protocols":     full(udp),
	} {
		t.Run(name, func(t *testing.T) { listAfter(t, Options{LocalDetector: detectPods(families...)}, u) })
	}
}

func listAfter(t *testing.T, o Options, u *state.Update) {
	t.Helper()
	ns := netnstest.New(t)
	b := newBackend(t, ns, o)
	if r := apply(t, b, u); len(r.Failed) > 0 {
		t.Fatal(r.Failed)
	}
	// A remembered client, as rules would add it.
	for _, s := range u.Changed {
		if s.Ports[0].Affinity > 0 && s.Ports[0].Family == state.IPv4 {
			own := b.kernel.(*nft.Conn)
			h := held(t, own, state.IPv4)
			commitRaw(t, own, func(b *nft.Batch) {
				b.AddElem(table(state.IPv4), affinitySet, remembered(h, state.IPv4, s, 7, s.Ports[0].Internal.Inside.Endpoints[0].Addr))
			})
		}
	}
	text := netnstest.NFT(t, ns, "list", "ruleset")
	if !strings.Contains(text, "table ip switchyard-lock {") || !strings.Contains(text, fmt.Sprintf("PID %d", os.Getpid())) {
		t.Error("nft list ruleset does not show who programs the namespace")
	}
	for _, want := range []string{"table ip switchyard {", "table ip6 switchyard {", "chain prerouting {", "masquerade fully-random"} {
		if !strings.Contains(text, want) {
			t.Errorf("nft list ruleset does not show %q", want)
		}
	}
	for _, s := range u.Changed {
		f := s.Ports[0].Frontends[0]
		if !strings.Contains(text, f.Addr.String()) {
			t.Errorf("nft list ruleset does not show %v", f.Addr)
		}
	}
	var objects struct{ Nftables []map[string]any }
	if err := json.Unmarshal([]byte(netnstest.NFT(t, ns, "-j", "list", "ruleset")), &objects); err != nil || len(objects.Nftables) < 20 {
		t.Errorf("nft -j list ruleset: %d objects, %v", len(objects.Nftables), err)
	}
	closeBackend(b)
	if after := netnstest.NFT(t, ns, "list", "ruleset"); strings.Count(after, "\n") < strings.Count(text, "\n")-10 {
		t.Errorf("nft list ruleset of a stopped dataplane shows less:\n%s", after)
	}
}

// TestNumbersAreShown: a number looks the same wherever the nft tool shows it, and can be asked for so.
func TestNumbersAreShown(t *testing.T) {
	ns := netnstest.New(t)
	s := restrictedService("a", recordtest.Prefixes("10.0.0.0/24"))
	apply(t, newBackend(t, ns, Options{}), full(s))
	shown := func(set, pattern string) string {
		t.Helper()
		text := netnstest.NFT(t, ns, "list", "map", "ip", tableName, set)
		found := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("%s does not show %q:\n%s", set, pattern, text)
		}
		return found[1]
	}
	list := shown("service-restricted", `203.0.113.1 . tcp . 1 : (0x\w+)`)
	netnstest.NFT(t, ns, "get", "element", "ip", tableName, "allowed-24", "{ "+list+" . 10.0.0.0 }")
	port := shown("service-sticky", `203.0.113.1 . tcp . 1 : (0x\w+)`)
	endpoint := s.Ports[0].External.Inside.Endpoints[0].Addr
	number := shown("endpoint-numbers", fmt.Sprintf(`%s . %v . %d : 0x0(\w+)`, port, endpoint.Addr(), endpoint.Port()))
	if slot := shown("service-slots", `203.0.113.1 . tcp . 1 . 0x8`+number+` : (\S+)`); slot != endpoint.Addr().String() {
		t.Errorf("the slot of number %s has %s, want %v", number, slot, endpoint)
	}
}
