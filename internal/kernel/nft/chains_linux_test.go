package nft

import (
	"slices"
	"testing"
)

// TestBaseChains: chains of all tables are found by their hooks, with their policy; those that others jump to are left out.
func TestBaseChains(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	for _, tb := range []Table{{IPv4, "mine"}, {nfprotoINet, "both"}} {
		commit(t, c, func(b *Batch) {
			b.AddTable(tb)
			b.AddChain(tb, &Chain{Name: "nat", Hook: &Hook{Type: "nat", Number: Prerouting, Priority: -100}})
			b.AddChain(tb, &Chain{Name: "other"})
		})
	}
	chains, err := c.BaseChains()
	if err != nil {
		t.Fatal(err)
	}
	want := []BaseChain{
		{Family: "inet", Table: "both", Name: "nat", Type: "nat", Hook: Prerouting, Priority: -100},
		{Family: "ip", Table: "mine", Name: "nat", Type: "nat", Hook: Prerouting, Priority: -100},
	}
	if !slices.Equal(chains, want) {
		t.Errorf("chains\n%+v, want\n%+v", chains, want)
	}
}

// TestDrops: a policy is read from what the kernel says of a chain.
func TestDrops(t *testing.T) {
	for policy, want := range map[uint32]bool{nfDrop: true, nfAccept: false} {
		attrs := appendAttr(nil, attrString(nftaChainName, "FORWARD"))
		attrs = appendAttr(attrs, attrNest(nftaChainHook, attrU32(nftaHookHooknum, Forward)))
		attrs = appendAttr(attrs, attrU32(nftaChainPolicy, policy))
		if chain, ok := decodeBaseChain("ip", attrs); !ok || chain.Drops != want || chain.Hook != Forward {
			t.Errorf("policy %d: %+v, %v", policy, chain, ok)
		}
	}
}
