package leftovers

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// proxyTable is the table of nftables mode.
const proxyTable = "kube-proxy"

// iptablesTables are the tables of iptables that kube-proxy has chains in. iptables-nft has tables of the same names in nf_tables.
var iptablesTables = []string{"nat", "filter", "mangle"}

// sweepNFT is about iptables-nft and nftables mode.
func sweepNFT(ctx context.Context, do action) (items []Item, err error) {
	conn, err := nft.Dial()
	if noSuchFeature(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("rules in nf_tables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var errs []error
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		for _, name := range iptablesTables {
			found, err := sweepIPTablesNFT(ctx, conn, nft.Table{Family: f, Name: name}, do)
			items = append(items, found...)
			errs = append(errs, err)
		}
		found, err := sweepProxyTable(conn, nft.Table{Family: f, Name: proxyTable}, do)
		items = append(items, found...)
		errs = append(errs, err)
	}
	return items, errors.Join(errs...)
}

// noSuchFeature reports whether an error means that this kernel lacks the subsystem: it has no netfilter sockets, or not this part of them.
// In the answer to a request without arguments, EINVAL means the latter.
func noSuchFeature(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EINVAL)
}

// sweepIPTablesNFT reads and edits one table in one transaction. It reads again if the transaction did not fit, because
// somebody else was quicker.
func sweepIPTablesNFT(ctx context.Context, conn *nft.Conn, t nft.Table, do action) (items []Item, err error) {
	place := fmt.Sprintf("table %v of iptables-nft", t)
	err = retry(ctx, func() error {
		items = nil
		sk, err := conn.ReadSkeleton(t)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		e := plan(nftChains(sk))
		if do == find {
			items = e.items(place)
			return nil
		}
		if err := conn.Commit(nftBatch(t, &e)); err != nil {
			return fmt.Errorf("%s: deleting %d chains and %d jumps of kube-proxy: %w", place, len(e.remove), len(e.jumps), err)
		}
		items = e.items(place)
		return nil
	}, unix.ENOENT, unix.EBUSY)
	return items, err
}

func nftChains(sk *nft.Skeleton) []chain {
	var chains []chain
	for _, name := range sk.ChainNames() {
		c := chain{name: name, base: sk.IsBase(name)}
		for _, r := range sk.Rules(name) {
			c.rules = append(c.rules, rule{r.Handle, r.Targets})
		}
		chains = append(chains, c)
	}
	return chains
}

// nftBatch deletes all rules before any chain: a chain cannot go while rules lead to it.
func nftBatch(t nft.Table, e *edit) *nft.Batch {
	b := &nft.Batch{}
	for _, j := range e.jumps {
		b.DeleteRule(t, j.from, j.id)
	}
	for _, name := range e.empty {
		b.FlushChain(t, name)
	}
	for _, name := range e.remove {
		b.FlushChain(t, name)
	}
	for _, name := range e.remove {
		b.DeleteChain(t, name)
	}
	return b
}

func sweepProxyTable(conn *nft.Conn, t nft.Table, do action) ([]Item, error) {
	exists, err := conn.HasTable(t)
	if err == nil && exists && do == remove {
		var b nft.Batch
		b.DeleteTable(t)
		if err = conn.Commit(&b); errors.Is(err, unix.ENOENT) {
			return nil, nil // somebody else has deleted it
		}
	}
	if err != nil {
		return nil, fmt.Errorf("table %v of nftables mode: %w", t, err)
	}
	if !exists {
		return nil, nil
	}
	return []Item{{Tables, "nftables", []string{t.String()}}}, nil
}
