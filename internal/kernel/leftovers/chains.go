package leftovers

import (
	"slices"
	"strings"
)

// proxyChains are the chains of kube-proxy that have fixed names. The value reports whether kube-proxy jumps there from built-in
// chains.
var proxyChains = map[string]bool{
	// iptables mode, and some of IPVS mode
	"KUBE-SERVICES":          true,
	"KUBE-EXTERNAL-SERVICES": true,
	"KUBE-NODEPORTS":         true,
	"KUBE-FORWARD":           true,
	"KUBE-PROXY-FIREWALL":    true,
	"KUBE-POSTROUTING":       true,
	markMasq:                 false,
	"KUBE-PROXY-CANARY":      false,
	// IPVS mode
	"KUBE-NODE-PORT":              true,
	"KUBE-IPVS-FILTER":            true,
	"KUBE-IPVS-OUT-FILTER":        true,
	"KUBE-LOAD-BALANCER":          false,
	"KUBE-SOURCE-RANGES-FIREWALL": false,
}

// markMasq marks packets for masquerading.
const markMasq = "KUBE-MARK-MASQ"

// hashPrefixes begin the names of chains for single services and endpoints. KUBE-XLB was KUBE-EXT before Kubernetes 1.24.
var hashPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-", "KUBE-SEP-"}

// isProxyChain reports whether kube-proxy has made the chain of this name.
func isProxyChain(name string) bool {
	if _, fixed := proxyChains[name]; fixed {
		return true
	}
	return slices.ContainsFunc(hashPrefixes, func(prefix string) bool {
		hash, ok := strings.CutPrefix(name, prefix)
		return ok && len(hash) == 16 && strings.Trim(hash, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
	})
}

// chain is a chain of an iptables table, of either variant.
type chain struct {
	name  string
	base  bool // built in
	rules []rule
}

// rule is a rule that leads to other chains or not. Its id is what its table's variant names it by.
type rule struct {
	id      uint64
	targets []string
}

// edit is what a table becomes.
type edit struct {
	remove []string // chains, with their rules
	empty  []string // chains that lose their rules
	jumps  []jump   // rules of built-in chains
}

type jump struct {
	from, to string
	id       uint64
}

func (e *edit) isEmpty() bool { return len(e.remove)+len(e.empty)+len(e.jumps) == 0 }

// items lists the edit.
func (e *edit) items(place string) []Item {
	var items []Item
	if chains := slices.Sorted(slices.Values(slices.Concat(e.remove, e.empty))); len(chains) > 0 {
		items = append(items, Item{Chains, place, chains})
	}
	var jumps []string
	for _, j := range e.jumps {
		jumps = append(jumps, j.from+" -> "+j.to)
	}
	if slices.Sort(jumps); len(jumps) > 0 {
		items = append(items, Item{Jumps, place, jumps})
	}
	return items
}

// plan describes the steps that remove everything of kube-proxy from a table, except for chains that other programs'
// rules lead to.
func plan(chains []chain) edit {
	ours := map[string]bool{}
	for _, c := range chains {
		ours[c.name] = !c.base && isProxyChain(c.name)
	}
	// A mark that somebody else asks for has to be set as before.
	if _, stays := foreign(chains, ours); stays[markMasq] {
		ours[markMasq] = false
	}
	var e edit
	var stays map[string]bool
	e.jumps, stays = foreign(chains, ours)
	for _, c := range chains {
		switch {
		case !ours[c.name]:
		case !stays[c.name]:
			e.remove = append(e.remove, c.name)
		case len(c.rules) > 0:
			e.empty = append(e.empty, c.name)
		}
	}
	return e
}

// foreign looks at the rules outside our chains. It returns the jumps that kube-proxy has made in built-in chains, and the
// chains of ours that other rules lead to.
func foreign(chains []chain, ours map[string]bool) (jumps []jump, stays map[string]bool) {
	stays = map[string]bool{}
	for _, c := range chains {
		if ours[c.name] {
			continue
		}
		for _, r := range c.rules {
			for _, to := range r.targets {
				switch {
				case !ours[to]:
				case c.base && proxyChains[to]:
					jumps = append(jumps, jump{c.name, to, r.id})
				default:
					stays[to] = true
				}
			}
		}
	}
	return jumps, stays
}
