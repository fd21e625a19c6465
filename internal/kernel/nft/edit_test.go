//go:build linux

package nft

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEdit takes a table apart that has jumps, as one of somebody else's.
func TestEdit(t *testing.T) {
	c := dial(t, newNS(t))
	tb := Table{IPv4, "edit"}
	commit(t, c, func(b *Batch) {
		b.AddTable(tb)
		b.AddChain(tb, &Chain{Name: "base", Hook: &Hook{Type: "filter", Number: Output}})
		b.AddChain(tb, &Chain{Name: "a"})
		b.AddChain(tb, &Chain{Name: "b"})
		b.AddRule(tb, "base", []Expr{Jump("a")})
		b.AddRule(tb, "base", []Expr{Return()})
		b.AddRule(tb, "a", []Expr{Goto("b")})
	})
	sk, err := c.ReadSkeleton(tb)
	if err != nil {
		t.Fatal(err)
	}
	if names := sk.ChainNames(); !slices.Equal(names, []string{"a", "b", "base"}) || !sk.IsBase("base") || sk.IsBase("a") {
		t.Errorf("chains %v, want a, b, base; base is one (%v), a is not (%v)", names, sk.IsBase("base"), sk.IsBase("a"))
	}
	base, a := sk.Rules("base"), sk.Rules("a")
	if len(base) != 2 || !slices.Equal(base[0].Targets, []string{"a"}) || base[1].Targets != nil || base[0].Handle == base[1].Handle {
		t.Fatalf("rules of base: %+v, want a jump to a and one that leads nowhere", base)
	}
	if len(a) != 1 || !slices.Equal(a[0].Targets, []string{"b"}) || len(sk.Rules("b")) != 0 {
		t.Errorf("rules of a: %+v, want one that goes to b; of b: %+v, want none", a, sk.Rules("b"))
	}

	var b Batch
	b.DeleteChain(tb, "b")
	if err := c.Commit(&b); !errors.Is(err, unix.EBUSY) {
		t.Errorf("deleting a chain that is in use: %v, want EBUSY", err)
	}
	b.Reset()
	b.DeleteRule(tb, "base", base[0].Handle+1000)
	if err := c.Commit(&b); !errors.Is(err, unix.ENOENT) {
		t.Errorf("deleting a rule that does not exist: %v, want ENOENT", err)
	}
	commit(t, c, func(b *Batch) {
		b.DeleteRule(tb, "base", base[0].Handle)
		b.FlushChain(tb, "a")
		b.DeleteChain(tb, "a")
		b.DeleteChain(tb, "b")
	})
	if sk, err = c.ReadSkeleton(tb); err != nil {
		t.Fatal(err)
	}
	if names := sk.ChainNames(); !slices.Equal(names, []string{"base"}) || len(sk.Rules("base")) != 1 || sk.Rules("base")[0].Handle != base[1].Handle {
		t.Errorf("what is left: chains %v, rules %+v, want base with its second rule", names, sk.Rules("base"))
	}
}
