//go:build linux

package leftovers

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIsProxyChain(t *testing.T) {
	ours := "KUBE-SERVICES KUBE-EXTERNAL-SERVICES KUBE-NODEPORTS KUBE-POSTROUTING KUBE-MARK-MASQ KUBE-FORWARD KUBE-PROXY-FIREWALL " +
		"KUBE-PROXY-CANARY KUBE-NODE-PORT KUBE-LOAD-BALANCER KUBE-SOURCE-RANGES-FIREWALL KUBE-IPVS-FILTER KUBE-IPVS-OUT-FILTER " +
		"KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-SVL-NPX46M4PTMTKRN6Y KUBE-EXT-NPX46M4PTMTKRN6Y KUBE-XLB-NPX46M4PTMTKRN6Y " +
		"KUBE-FW-NPX46M4PTMTKRN6Y KUBE-SEP-2222222222222222"
	for name := range strings.FieldsSeq(ours) {
		if !isProxyChain(name) {
			t.Errorf("%s is not taken for kube-proxy's", name)
		}
	}
	others := "KUBE-FIREWALL KUBE-KUBELET-CANARY KUBE-IPTABLES-HINT KUBE-MARK-DROP KUBE-SVC-MY-OWN KUBE-SVC- KUBE-SVC-npx46m4ptmtkrn6y " +
		"KUBE-SVC-NPX46M4PTMTKRN61 KUBE-SVC-NPX46M4PTMTKRN6YA KUBE-POD-FW-NPX46M4PTMTKRN6Y KUBE-NWPLCY-NPX46M4PTMTKRN6Y " +
		"KUBE-ROUTER-FORWARD KUBE-SERVICES-2 DOCKER cali-FORWARD PREROUTING"
	for name := range strings.FieldsSeq(others) {
		if isProxyChain(name) {
			t.Errorf("%s is taken for kube-proxy's", name)
		}
	}
}

func TestIsProxySet(t *testing.T) {
	for name := range strings.FieldsSeq("KUBE-CLUSTER-IP KUBE-6-CLUSTER-IP KUBE-LOAD-BALANCER-SOURCE-CIDR KUBE-6-LOAD-BALANCER-SOURCE-CID " +
		"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS KUBE-IPVS-IPS") {
		if !isProxySet(name) {
			t.Errorf("%s is not taken for kube-proxy's", name)
		}
	}
	for name := range strings.FieldsSeq("KUBE-SRC-ABCDEFGHIJKLMNOP KUBE-DST-X KUBE- KUBE-6- CLUSTER-IP KUBE-6-LOAD-BALANCER-SOURCE-CIDR kube-cluster-ip") {
		if isProxySet(name) {
			t.Errorf("%s is taken for kube-proxy's", name)
		}
	}
}

// table reads chains from lines such as "*OUTPUT: KUBE-SERVICES, DOCKER, -": the targets of rules, * for built in.
func table(text string) []chain {
	var chains []chain
	id := uint64(0)
	for line := range strings.Lines(text) {
		name, rules, _ := strings.Cut(strings.TrimSpace(line), ":")
		c := chain{name: strings.TrimPrefix(name, "*"), base: strings.HasPrefix(name, "*")}
		for target := range strings.SplitSeq(rules, ",") {
			id++
			if target = strings.TrimSpace(target); target == "" {
				continue
			}
			r := rule{id: id}
			if target != "-" {
				r.targets = []string{target}
			}
			c.rules = append(c.rules, r)
		}
		chains = append(chains, c)
	}
	return chains
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name, table                 string
		remove, empty, jumpsSources string
	}{
		{name: "nothing", table: "*OUTPUT: -"},
		{name: "others only", table: "*OUTPUT: DOCKER, KUBE-FIREWALL\nDOCKER: -\nKUBE-FIREWALL: -"},
		{
			name:   "ours only",
			table:  "*OUTPUT: -, KUBE-SERVICES, -\nKUBE-SERVICES: KUBE-SVC-AAAAAAAAAAAAAAAA\nKUBE-SVC-AAAAAAAAAAAAAAAA: KUBE-MARK-MASQ, -\nKUBE-MARK-MASQ: -",
			remove: "KUBE-SERVICES KUBE-SVC-AAAAAAAAAAAAAAAA KUBE-MARK-MASQ", jumpsSources: "OUTPUT",
		},
		{
			name:   "ours lead to others",
			table:  "*INPUT: DOCKER\nDOCKER:\nKUBE-FW-AAAAAAAAAAAAAAAA: KUBE-MARK-DROP\nKUBE-MARK-DROP: -",
			remove: "KUBE-FW-AAAAAAAAAAAAAAAA",
		},
		{
			name:  "others lead to a service: the chain is emptied, what only it needs goes",
			table: "*INPUT: mine\nmine: KUBE-SVC-AAAAAAAAAAAAAAAA\nKUBE-SVC-AAAAAAAAAAAAAAAA: KUBE-SEP-AAAAAAAAAAAAAAAA\nKUBE-SEP-AAAAAAAAAAAAAAAA: -",
			empty: "KUBE-SVC-AAAAAAAAAAAAAAAA", remove: "KUBE-SEP-AAAAAAAAAAAAAAAA",
		},
		{
			name:  "a chain that was emptied before is left alone",
			table: "mine: KUBE-SERVICES\nKUBE-SERVICES:",
		},
		{
			name:   "others set the mark",
			table:  "*PREROUTING: KUBE-MARK-MASQ\nKUBE-MARK-MASQ: -\nKUBE-SERVICES: KUBE-MARK-MASQ",
			remove: "KUBE-SERVICES",
		},
		{
			name:   "others set the mark through a chain of ours: as if that were theirs",
			table:  "mine: KUBE-MARK-MASQ\nKUBE-MARK-MASQ: KUBE-POSTROUTING\nKUBE-POSTROUTING: -\n*POSTROUTING: KUBE-POSTROUTING",
			empty:  "KUBE-POSTROUTING", // the mark's chain leads there
			remove: "", jumpsSources: "POSTROUTING",
		},
		{
			name:         "jumps from built-in chains only to where kube-proxy jumps from there",
			table:        "*INPUT: KUBE-NODE-PORT, KUBE-LOAD-BALANCER\nKUBE-NODE-PORT: -\nKUBE-LOAD-BALANCER: -",
			remove:       "KUBE-NODE-PORT",
			empty:        "KUBE-LOAD-BALANCER",
			jumpsSources: "INPUT",
		},
		{name: "a built-in chain is never ours", table: "*KUBE-SERVICES: -"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := plan(table(tt.table))
			var from []string
			for _, j := range e.jumps {
				from = append(from, j.from)
			}
			for _, c := range []struct {
				what string
				got  []string
				want string
			}{{"removed", e.remove, tt.remove}, {"emptied", e.empty, tt.empty}, {"jumps from", from, tt.jumpsSources}} {
				slices.Sort(c.got)
				want := strings.Fields(c.want)
				slices.Sort(want)
				if diff := cmp.Diff(strings.Join(want, " "), strings.Join(c.got, " ")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.what, diff)
				}
			}
		})
	}
}

func TestItemString(t *testing.T) {
	for want, item := range map[string]Item{
		"1 device in the kernel: kube-ipvs0":                             {Devices, "the kernel", []string{"kube-ipvs0"}},
		"4 chains in table ip nat of iptables-nft: a, b, c, d":           {Chains, "table ip nat of iptables-nft", []string{"a", "b", "c", "d"}},
		"6 virtual servers in IPVS: a, b, c, d and 2 more":               {VirtualServers, "IPVS", []string{"a", "b", "c", "d", "e", "f"}},
		"2 jumps in table ip6 filter of iptables-legacy: a -> b, a -> b": {Jumps, "table ip6 filter of iptables-legacy", []string{"a -> b", "a -> b"}},
	} {
		if got := item.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
