package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/leftovers"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// files are the files of a node on which all is well.
var files = map[string]string{
	"proc/self/status":                                "Name:\tswitchyard\nCapInh:\t0000000000000000\nCapEff:\t000001ffffffffff\n",
	"proc/sys/net/ipv4/ip_forward":                    "1\n",
	"proc/sys/net/ipv6/conf/all/forwarding":           "1\n",
	"proc/net/if_inet6":                               "fd000010024400000000000000000001 02 40 00 80     eth0\nfe800000000000000000000000000001 02 40 20 80     eth0\n",
	"proc/sys/net/ipv4/conf/all/rp_filter":            "0\n",
	"proc/sys/net/ipv4/conf/default/rp_filter":        "1\n",
	"proc/sys/net/ipv4/conf/eth0/rp_filter":           "0\n",
	"proc/sys/net/netfilter/nf_conntrack_max":         "1000\n",
	"proc/sys/net/netfilter/nf_conntrack_count":       "100\n",
	"proc/net/stat/nf_conntrack":                      "entries  searched drop early_drop\n00000064  00000000 00000000 00000000\n00000064  00000000 00000000 00000000\n",
	"proc/sys/net/ipv4/ip_local_port_range":           "32768\t60999\n",
	"proc/sys/net/ipv4/ip_local_reserved_ports":       "\n",
	"proc/sys/net/bridge/bridge-nf-call-iptables":     "1\n",
	"proc/net/tcp":                                    "  sl  local_address rem_address   st\n   0: 0100007F:2710 00000000:0000 0A\n   1: 0100007F:7531 0100007F:7532 01\n   2: 0100007F:7533 00000000:0000 0A\n",
	"sys/class/net/eth0/address":                      "",
	"sys/class/net/cni0/address":                      "",
	"proc/sys/net/ipv4/conf/cni0/rp_filter":           "2\n",
	"proc/sys/net/ipv4/conf/cni0/accept_source_route": "0\n",
}

// well is a node on which all is well, but for what change does.
func well(change func(n *Node, files map[string]string)) *Node {
	n := &Node{
		Mode: "nftables", NodePorts: [2]int{30000, 32767}, HealthAddress: "127.0.0.1:10256",
		Dataplanes: []Dataplane{{"nftables", func() error { return nil }}, {"ipvs", func() error { return errors.New("no ip_vs") }}},
		Programmed: func() (bool, error) { return true, nil },
		Holder:     func() (string, error) { return "switchyard, PID 7", nil },
		Route:      func(netip.Addr) error { return nil },
		Services: func(context.Context) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("10.96.0.1")}, nil
		},
		Leftovers:  func(context.Context) ([]leftovers.Item, error) { return nil, nil },
		BaseChains: func() ([]nft.BaseChain, error) { return nil, nil },
		Health:     func(context.Context) (Health, error) { return Health{Healthy: true}, nil },
	}
	changed := map[string]string{}
	maps.Copy(changed, files)
	if change != nil {
		change(n, changed)
	}
	fs := fstest.MapFS{}
	for path, text := range changed {
		fs[path] = &fstest.MapFile{Data: []byte(text)}
	}
	n.Files = fs
	return n
}

func TestHealthyNode(t *testing.T) {
	r := Examine(t.Context(), well(nil))
	for _, f := range r.Findings {
		if f.Level != OK && f.Level != Info || f.Meaning != "" || f.Remedy != "" {
			t.Errorf("on a node on which all is well: %+v", f)
		}
	}
	if r.Faults+r.Warnings > 0 {
		t.Errorf("%d faults, %d warnings", r.Faults, r.Warnings)
	}
}

// TestFindings changes one thing on a node on which all is well: the check that it belongs to finds it, with a remedy, and no other one
// finds anything.
func TestFindings(t *testing.T) {
	set := func(path, text string) func(*Node, map[string]string) {
		return func(_ *Node, files map[string]string) { files[path] = text }
	}
	chain := func(c nft.BaseChain) func(*Node, map[string]string) {
		return func(n *Node, _ map[string]string) {
			n.BaseChains = func() ([]nft.BaseChain, error) { return []nft.BaseChain{c}, nil }
		}
	}
	api := func(a API, err error) func(*Node, map[string]string) {
		return func(n *Node, _ map[string]string) { n.API = func(context.Context) (API, error) { return a, err } }
	}
	noTCX := func() error { return errors.New("no TCX\nno BTF") }
	noCaps := "CapEff:\t0000000000000000\n"
	for name, tt := range map[string]struct {
		change func(*Node, map[string]string)
		check  string
		level  Level
		text   string // in the summary
	}{
		"no rights": {set("proc/self/status", noCaps), "permissions", Fault, "lacks CAP_NET_ADMIN, which mode nftables needs"},
		"no rights of BPF": {func(n *Node, f map[string]string) {
			n.Mode = "ebpf"
			f["proc/self/status"] = "CapEff:\t0000000000001000\n"
		}, "permissions", Fault, "lacks CAP_BPF, CAP_PERFMON"},
		"no raw sockets": {func(n *Node, f map[string]string) {
			n.Mode = "iptables"
			f["proc/self/status"] = "CapEff:\t0000000000001000\n"
		}, "permissions", Fault, "lacks CAP_NET_RAW"},
		"mode cannot run":  {func(n *Node, _ map[string]string) { n.Mode = "ipvs" }, "dataplane", Fault, "mode ipvs, which is in use, cannot run here: no ip_vs"},
		"hooks cannot run": {func(n *Node, _ map[string]string) { n.Mode = "ebpf"; n.Dataplanes[1].Mode = "ebpf" }, "dataplane", Warning, "mode ebpf, which is in use"},
		"mode not in use":  {twoLines, "dataplane", Info, "mode ipvs, which is not in use, cannot run here: no ip_vs; no ip_vs_rr"},
		"edge not in use":  {func(n *Node, _ map[string]string) { n.EdgeAvailable = noTCX }, "edge", Info, "the edge, which is not in use, cannot run here: no TCX; no BTF"},
		"edge cannot run": {func(n *Node, _ map[string]string) { n.EdgeMode, n.EdgeAvailable = "tcx", noTCX }, "edge", Warning,
			"the edge, which is in use (edge.mode tcx), cannot run here: no TCX"},
		"edge can run": {func(n *Node, _ map[string]string) { n.EdgeMode, n.EdgeAvailable = "xdp", func() error { return nil } }, "edge", OK,
			"the edge, which is in use (edge.mode xdp), can run on this kernel"},
		"API not asked":   {nil, "API server", Info, "not asked"},
		"clock not asked": {nil, "clock", Info, "not compared"},
		"relay not asked": {nil, "relay", Info, "not asked"},
		"nobody updates": {func(n *Node, _ map[string]string) { n.Health, n.Holder = noHealth, noHolder }, "proxy", Fault,
			"that no process updates: none holds the lock of this network namespace, and none answers at 127.0.0.1:10256: connection refused"},
		"another one updates": {func(n *Node, _ map[string]string) { n.Holder = noHolder }, "proxy", Fault, "the process that answers at 127.0.0.1:10256 programs another kernel, or none"},
		"it does not answer":  {func(n *Node, _ map[string]string) { n.Health = noHealth }, "proxy", Warning, "switchyard, PID 7 programs the kernel, and no proxy answers"},
		"lock not readable": {func(n *Node, _ map[string]string) {
			n.Health, n.Holder = noHealth, func() (string, error) { return "", errors.New("operation not permitted") }
		}, "proxy", Warning, "the kernel holds rules of Switchyard, and no proxy answers"},
		"no route": {func(n *Node, _ map[string]string) {
			n.Route = func(netip.Addr) error { return errors.New("network is unreachable") }
		}, "routes", Warning,
			"this node has no route to 1 cluster IP: 10.96.0.1: network is unreachable"},
		"no Service known": {func(n *Node, _ map[string]string) { n.Services = nil }, "routes", Info, "not checked"},
		"refuses": {probing(func(a netip.AddrPort) error { return fmt.Errorf("dial tcp %v: %w", a, syscall.ECONNREFUSED) }), "endpoints", Warning,
			"4 endpoints of 4 refused a connection: shop/cart 10.0.0.1:80, shop/db 10.0.1.1:80, shop/db 10.0.1.2:80, shop/db 10.0.1.3:80"},
		"says nothing": {probing(func(a netip.AddrPort) error {
			if a.Addr() == netip.MustParseAddr("10.0.0.1") {
				return context.DeadlineExceeded
			}
			return nil
		}), "endpoints", Warning, "1 endpoint of 4 did not answer: shop/cart 10.0.0.1:80"},
		"no way":  {probing(func(a netip.AddrPort) error { return errors.New("dial tcp: connect: no route to host") }), "endpoints", Warning, "could not be connected to: shop/cart 10.0.0.1:80 (no route to host)"},
		"accepts": {probing(func(netip.AddrPort) error { return nil }), "endpoints", OK, "all 4 endpoints that were tried accept connections, of 6"},
		"nothing to probe": {func(n *Node, _ map[string]string) {
			n.Endpoints = func(context.Context) ([]Endpoint, error) { return nil, errors.New("no such socket") }
		}, "endpoints", Warning, "no endpoint is known: no such socket"},
		"another namespace": {func(n *Node, _ map[string]string) { n.Programmed = func() (bool, error) { return false, nil } }, "proxy", Warning, "holds no rules of Switchyard in this network namespace"},
		"unhealthy": {func(n *Node, _ map[string]string) {
			n.Health = func(context.Context) (Health, error) { return Health{}, nil }
		}, "proxy", Fault, "not healthy"},
		"problems": {func(n *Node, _ map[string]string) {
			n.Health = func(context.Context) (Health, error) {
				return Health{Healthy: true, Problems: []Problem{{"source", "no API server"}}}, nil
			}
		}, "proxy", Warning, "reports: source: no API server"},
		"kube-proxy": {func(n *Node, _ map[string]string) {
			n.Leftovers = func(context.Context) ([]leftovers.Item, error) {
				return []leftovers.Item{{Kind: leftovers.Tables, Place: "nftables", Names: []string{"ip kube-proxy"}}}, nil
			}
		}, "leftovers", Warning, "1 table in nftables: ip kube-proxy"},
		"leftovers unread": {func(n *Node, _ map[string]string) {
			n.Leftovers = func(context.Context) ([]leftovers.Item, error) { return nil, errors.New("not permitted") }
		}, "leftovers", Warning, "not permitted"},
		"Cilium":        {set("sys/class/net/cilium_host/address", ""), "other proxies", Warning, "Cilium is on this node"},
		"earlier chain": {chain(nft.BaseChain{Family: "inet", Table: "vpn", Name: "pre", Type: "nat", Priority: -150}), "other proxies", Warning, "inet vpn pre translates at priority -150"},
		"relay":         {chain(nft.BaseChain{Family: "ip", Table: "switchyard-relay-7", Name: "own", Type: "nat", Priority: -102}), "other proxies", OK, "nothing else translates"},
		"other chain":   {chain(nft.BaseChain{Family: "ip", Table: "nat", Name: "PREROUTING", Type: "nat", Priority: -100}), "other proxies", OK, "other chains that translate: ip nat PREROUTING"},
		"no forwarding": {set("proc/sys/net/ipv4/ip_forward", "0\n"), "forwarding", Fault, "ip_forward is 0"},
		"no IPv6":       {set("proc/sys/net/ipv6/conf/all/forwarding", "0\n"), "forwarding", Warning, "this node has IPv6 addresses"},
		"dropping":      {chain(nft.BaseChain{Family: "ip", Table: "filter", Name: "FORWARD", Type: "filter", Hook: nft.Forward, Drops: true}), "firewall", Warning, "ip filter FORWARD drops forwarded packets"},
		"legacy":        {set("proc/net/ip_tables_names", "nat\nfilter\n"), "firewall", OK, "iptables-legacy has a table filter"},
		"strict device": {set("proc/sys/net/ipv4/conf/eth0/rp_filter", "1\n"), "reverse path", Warning, "strict) for eth0"},
		"strict all":    {set("proc/sys/net/ipv4/conf/all/rp_filter", "1\n"), "reverse path", Warning, "strict) for eth0"},
		"bridge":        {set("proc/sys/net/bridge/bridge-nf-call-iptables", "0\n"), "bridges", Warning, "pods are on bridge cni0"},
		"nearly full":   {set("proc/sys/net/netfilter/nf_conntrack_count", "800\n"), "conntrack", Warning, "800 of at most 1000 connections are tracked (80%)"},
		"full":          {set("proc/sys/net/netfilter/nf_conntrack_count", "999\n"), "conntrack", Fault, "(99%)"},
		"not liberal":   {set("proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "0\n"), "conntrack", Info, "nf_conntrack_tcp_be_liberal is 0"},
		"drops":         {set("proc/net/stat/nf_conntrack", "entries drop\n00000064 0000000a\n00000064 00000001\n"), "conntrack", Warning, "dropped 11 packets"},
		"ports":         {set("proc/sys/net/ipv4/ip_local_port_range", "1024 65535"), "ports", Warning, "is 1024-65535, and NodePorts are 30000-32767"},
		"reserved ports": {func(_ *Node, f map[string]string) {
			f["proc/sys/net/ipv4/ip_local_port_range"] = "1024 65535"
			f["proc/sys/net/ipv4/ip_local_reserved_ports"] = "8080,30000-31000,31001-40000"
		}, "ports", OK, "nothing of this node uses"},
		"a gap": {func(_ *Node, f map[string]string) {
			f["proc/sys/net/ipv4/ip_local_port_range"] = "1024 65535"
			f["proc/sys/net/ipv4/ip_local_reserved_ports"] = "30000-31000,31002-40000"
		}, "ports", Warning, "NodePorts are 30000-32767"},
		"listener":        {set("proc/net/tcp6", "sl\n 0: 00000000000000000000000000000000:7531 0:0 0A\n"), "ports", Warning, "processes listen on TCP ports in the range of NodePorts: 30001"},
		"API down":        {api(API{}, errors.New("connection refused")), "API server", Fault, "cannot be asked: connection refused"},
		"API slow":        {api(API{Server: "https://a", Version: "v1", Took: 2 * time.Second}, nil), "API server", Warning, "took 2s"},
		"API refuses":     {api(API{Refused: []error{errors.New("list services: forbidden")}}, nil), "API server", Fault, "list services: forbidden"},
		"no such Node":    {api(API{Node: "node-a", NodeMissing: true}, nil), "API server", Warning, `no Node "node-a"`},
		"clock behind":    {api(API{Ahead: 10 * time.Second}, nil), "clock", Warning, "this clock is 10s behind the API server's"},
		"clock far ahead": {api(API{Ahead: -time.Hour}, nil), "clock", Fault, "this clock is 1h0m0s ahead of"},
		"relay down": {func(n *Node, _ map[string]string) {
			n.Relay = func(context.Context) (Relay, error) { return Relay{}, errors.New("no route") }
		}, "relay", Fault, "does not answer: no route"},
		"unreadable": {func(_ *Node, f map[string]string) { delete(f, "proc/sys/net/ipv4/ip_forward") }, "forwarding", Warning, "sysctl net.ipv4.ip_forward: "},
		"nonsense":   {set("proc/sys/net/ipv4/ip_forward", "yes"), "forwarding", Warning, `"yes" is no number`},
	} {
		t.Run(name, func(t *testing.T) {
			found := false
			for _, f := range Examine(t.Context(), well(tt.change)).Findings {
				if f.Check == tt.check && f.Level == tt.level && strings.Contains(f.Summary, tt.text) {
					found = true
				}
				if f.Level != OK && f.Level != Info && f.Check != tt.check {
					t.Errorf("another check: %+v", f)
				}
				if f.Level != OK && f.Level != Info && (f.Remedy == "" || strings.Contains(f.Remedy, "docs/")) {
					t.Errorf("no remedy in the text: %+v", f)
				}
			}
			if !found {
				t.Errorf("no %s %q of %s", tt.level, tt.text, tt.check)
			}
		})
	}
}

// twoLines: a mode that is not in use cannot run for two reasons.
func twoLines(n *Node, _ map[string]string) {
	n.Dataplanes[1].Available = func() error { return errors.Join(errors.New("no ip_vs"), errors.New("no ip_vs_rr")) }
}

// probing lets a node have endpoints of two Services, one of which has more than are tried.
func probing(connect func(netip.AddrPort) error) func(*Node, map[string]string) {
	return func(n *Node, _ map[string]string) {
		n.Endpoints = func(context.Context) ([]Endpoint, error) {
			all := []Endpoint{{"shop/cart", netip.MustParseAddrPort("10.0.0.1:80")}}
			for i := range 5 {
				all = append(all, Endpoint{"shop/db", netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), 80)})
			}
			return all, nil
		}
		n.Connect = func(_ context.Context, a netip.AddrPort) error { return connect(a) }
	}
}

func noHolder() (string, error) { return "", nil }

func noHealth(context.Context) (Health, error) { return Health{}, errors.New("connection refused") }

// TestNodeBeforeItsFirstProxy: a node before its first proxy has no warning for that.
func TestNodeBeforeItsFirstProxy(t *testing.T) {
	r := Examine(t.Context(), well(func(n *Node, files map[string]string) {
		n.Health, n.Programmed = noHealth, func() (bool, error) { return false, nil }
		for _, path := range []string{"max", "count"} {
			delete(files, "proc/sys/net/netfilter/nf_conntrack_"+path)
		}
	}))
	if r.Faults+r.Warnings > 0 {
		t.Errorf("found %+v", r.Findings)
	}
}

// TestAPIIsAskedOnce: two checks go by the same answer.
func TestAPIIsAskedOnce(t *testing.T) {
	asked := 0
	Examine(t.Context(), well(func(n *Node, _ map[string]string) {
		n.API = func(context.Context) (API, error) { asked++; return API{}, errors.New("down") }
	}))
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestWrite(t *testing.T) {
	r := &Report{Faults: 1, Findings: []Finding{
		{Check: "ports", Level: OK, Summary: "fine"},
		{Check: "relay", Level: Info, Summary: "not asked"},
		{Check: "clock", Level: Fault, Summary: "late", Meaning: "two\nlines", Remedy: "set it"},
	}}
	for problems, want := range map[bool]string{
		false: "✓ ports          fine\n- relay          not asked\n",
		true:  "",
	} {
		want += "✗ clock          late\n                 two\n                 lines\n                 remedy: set it\n1 fault, 0 warnings\n"
		var b strings.Builder
		if err := (Style{Problems: problems}).Write(&b, r); err != nil || b.String() != want {
			t.Errorf("wrote\n%s(%v), want\n%s", b.String(), err, want)
		}
	}
}
