package ruleset

import (
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// tablePlan is what changes in a table apart from elements.
type tablePlan struct {
	table nft.Table
	// isNew is set if the kernel has no such table, or one that no packet meets.
	isNew bool
	// replace first deletes the found content of the table, except for the sets in keeps. If keeps is empty, it deletes the table itself.
	replace *nft.Skeleton
	keeps   []string
	sets    []nft.Set
	chains  []nft.Chain // new, or to be filled again
	// flush are the chains among them that have rules to be deleted.
	flush []string
}

func (t *tablePlan) write(b *nft.Batch, flags nft.TableFlags) {
	t.writeSets(b, flags)
	t.writeChains(b, func(nft.Chain) bool { return true })
}

// isIn reports whether a table that was found has exactly the sets, chains and rules of the plan.
func (t *tablePlan) isIn(found *nft.Skeleton, flags nft.TableFlags) bool {
	return found.Fits(t.table, flags, t.sets, t.chains) &&
		!slices.ContainsFunc(t.sets, func(s nft.Set) bool { return !found.HasSet(t.table, &s) }) &&
		!slices.ContainsFunc(t.chains, func(c nft.Chain) bool { _, same := found.HasChain(t.table, &c); return !same })
}

// DeleteTable puts the deletion of a table into a batch. The table was found with these flags, and may be gone by now.
func DeleteTable(b *nft.Batch, t nft.Table, flags nft.TableFlags) {
	b.AddTableAs(t, flags) // else the deletion could fail
	b.DeleteTable(t)
}

// isCalled reports whether a chain is called by others, not by a hook.
func isCalled(c nft.Chain) bool { return c.Hook == nil }

// writeChains puts some of the chains into a batch, with their rules.
func (t *tablePlan) writeChains(b *nft.Batch, which func(nft.Chain) bool) {
	for j := range t.chains {
		if which(t.chains[j]) {
			b.AddChain(t.table, &t.chains[j])
		}
	}
	for _, name := range t.flush {
		b.FlushChain(t.table, name)
	}
	for j := range t.chains {
		if !which(t.chains[j]) {
			continue
		}
		for _, r := range t.chains[j].Rules {
			b.AddRule(t.table, t.chains[j].Name, r)
		}
	}
}

// writeSets puts into a batch what comes before the chains.
func (t *tablePlan) writeSets(b *nft.Batch, flags nft.TableFlags) {
	switch {
	case t.replace == nil:
	case len(t.keeps) > 0:
		b.Strip(t.table, t.replace, t.keeps)
	default:
		DeleteTable(b, t.table, t.replace.Flags())
	}
	b.AddTableAs(t.table, flags)
	for j := range t.sets {
		b.AddSet(t.table, &t.sets[j])
	}
}
