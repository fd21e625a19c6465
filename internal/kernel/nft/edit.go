package nft

import (
	"maps"
	"slices"
)

// This file is for tables that other programs have made, above all iptables-nft.

// Rule is a rule of a table that was read.
type Rule struct {
	// Handle names the rule in its table, for good.
	Handle uint64
	// Targets are the chains that it jumps or goes to, other than through maps.
	Targets []string
}

// ChainNames returns the names of all chains, sorted.
func (s *Skeleton) ChainNames() []string { return slices.Sorted(maps.Keys(s.chains)) }

// IsBase reports whether a chain is called from a hook.
func (s *Skeleton) IsBase(chain string) bool {
	return findAttr(s.chains[chain], nftaChainHook, 0) != nil
}

// Rules returns the rules of a chain in order.
func (s *Skeleton) Rules(chain string) []Rule {
	rules := make([]Rule, 0, len(s.rules[chain]))
	for _, attrs := range s.rules[chain] {
		rules = append(rules, Rule{
			Handle:  beUint64(findAttr(attrs, nftaRuleHandle, 0)),
			Targets: targets(findAttr(attrs, nftaRuleExpressions, 0)),
		})
	}
	return rules
}

// targets returns the chains that verdicts in a rule's expressions lead to.
func targets(exprs []byte) []string {
	var chains []string
	// Attributes that cannot be read hold nothing that can be found: the kernel refuses to delete a chain that is in use.
	_ = eachAttr(exprs, func(_ uint16, expr []byte) error {
		if attrStr(expr, nftaExprName) != "immediate" {
			return nil
		}
		verdict := findAttr(findAttr(findAttr(expr, nftaExprData, 0), nftaImmediateData, 0), nftaDataVerdict, 0)
		if chain := attrStr(verdict, nftaVerdictChain); chain != "" {
			chains = append(chains, chain)
		}
		return nil
	})
	return chains
}

// DeleteRule deletes a rule. It is an error if it is not there.
func (b *Batch) DeleteRule(t Table, chain string, handle uint64) {
	b.begin(nftMsgDelRule, 0, t.Family)
	b.buf = appendAttrString(b.buf, nftaRuleTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaRuleChain, chain)
	b.buf = appendAttr(b.buf, attrU64(nftaRuleHandle, handle))
	b.count++
}

// DeleteChain deletes a chain, whose rules have to be deleted before, as all that lead to it. It is an error if it is not there.
func (b *Batch) DeleteChain(t Table, chain string) {
	b.begin(nftMsgDelChain, 0, t.Family)
	b.buf = appendAttrString(b.buf, nftaChainTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaChainName, chain)
	b.count++
}

// DeleteSet deletes a set and its elements. It is an error if it is not there.
func (b *Batch) DeleteSet(t Table, set string) {
	b.begin(nftMsgDelSet, 0, t.Family)
	b.buf = appendAttrString(b.buf, nftaSetTable, t.Name)
	b.buf = appendAttrString(b.buf, nftaSetName, set)
	b.count++
}

// Strip deletes all rules, chains and sets of a table but some sets, whose elements stay. It deletes objects before
// the objects that they refer to.
func (b *Batch) Strip(t Table, s *Skeleton, kept []string) {
	for _, chain := range s.ChainNames() {
		b.FlushChain(t, chain)
	}
	for _, set := range slices.Sorted(maps.Keys(s.sets)) {
		if !slices.Contains(kept, set) && attrUint32(s.sets[set], nftaSetFlags)&nftSetAnonymous == 0 { // those go with their rules
			b.DeleteSet(t, set)
		}
	}
	for _, chain := range s.ChainNames() {
		b.DeleteChain(t, chain)
	}
}
