package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/internal/kernel/localnet"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/state"
)

// letGo is how long the kernel may take to let go of the sets that rules had.
const letGo = 2 * time.Second

// Cleanup removes all that this dataplane ever puts into the kernel, with both variants of iptables, in the calling thread's network
// namespace. It reports whether there was anything. Connections that are established stay translated. A chain to which other programs'
// rules lead stays, and is empty. If NodePorts were served on loopback addresses, the sysctl route_localnet, which that takes, is
// switched off, because what guarded it is gone. If another process programs the network namespace and does not end within two seconds,
// nothing is removed. Then the error is [syscall.EBUSY] to [errors.Is].
func Cleanup(ctx context.Context) (removed bool, err error) {
	held, err := Programmed()
	if err != nil || !held {
		return false, err
	}
	return nodelock.Cleanup(ctx, "iptables", func() (bool, error) { return Remove(ctx, false) })
}

// Remove is Cleanup for a caller that has the lock of the network namespace, as package node, and no Backend. If keepLoopback is set, another
// dataplane serves NodePorts on loopback addresses, and the sysctl stays as it is.
func Remove(ctx context.Context, keepLoopback bool) (removed bool, err error) {
	b := &Backend{log: slog.New(slog.DiscardHandler), local: localnet.Open()}
	defer func() { err = errors.Join(err, b.Close()) }()
	conn, err := ipset.Open()
	if err != nil {
		return false, fmt.Errorf("iptables: %w", err)
	}
	b.sets = conn
	if b.inside, err = namespace.Current(); err != nil {
		return false, fmt.Errorf("iptables: %w", err)
	}
	var tools []*tool
	var missing []error
	for _, v := range []Variant{NFT, Legacy} {
		t, err := newTool(v, b.inside)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		tools = append(tools, t)
	}
	if len(tools) == 0 {
		return false, fmt.Errorf("iptables: there are sets of this dataplane, and so rules, which cannot be removed: %w", errors.Join(missing...))
	}
	unguarded := b.local.Disable
	if keepLoopback {
		unguarded = func() error { return nil }
	}
	for _, t := range tools {
		was, err := b.clear(ctx, t, unguarded)
		if err != nil {
			return removed, fmt.Errorf("iptables: %w", err)
		}
		removed = removed || was
	}
	return b.destroyAll(removed)
}

// clear removes the chains and jumps of a variant, and reports whether there were any. unguarded is called before those go that keep others
// away from loopback addresses.
func (b *Backend) clear(ctx context.Context, t *tool, unguarded func() error) (removed bool, err error) {
	for _, f := range families {
		tables, err := t.existing(ctx, f)
		if err != nil {
			if t.variant == Legacy {
				continue // this kernel has no ip_tables
			}
			return removed, err
		}
		held := rules.NewHeld()
		for _, table := range tables {
			save, err := t.save(ctx, f, table)
			if err == nil {
				err = held.AddTable(table, save)
			}
			if err != nil {
				return removed, err
			}
		}
		if held.IsEmpty() {
			continue
		}
		if held.GuardsLoopback() {
			if err := unguarded(); err != nil {
				return removed, err
			}
		}
		if err := t.restore(ctx, f, held.Clear().Restore); err != nil {
			return removed, err
		}
		removed = true
	}
	return removed, nil
}

// destroyAll destroys our sets, as soon as the kernel has let go of the rules.
func (b *Backend) destroyAll(removed bool) (bool, error) {
	for _, f := range families {
		sets, err := b.sets.Sets(rules.SetPrefix(f))
		if err != nil {
			return removed, fmt.Errorf("iptables: %w", err)
		}
		var names []string
		for _, s := range sets {
			names = append(names, s.Name)
		}
		for deadline := time.Now().Add(letGo); len(names) > 0; {
			kept, err := b.destroy(names)
			if err != nil {
				return removed, fmt.Errorf("iptables: %w", err)
			}
			removed = removed || len(kept) < len(names)
			if names = kept; len(kept) > 0 && time.Now().After(deadline) {
				return removed, fmt.Errorf("iptables: ipset %s is used by rules that are not Switchyard's: delete these rules, and try again", kept[0])
			}
		}
	}
	return removed, nil
}

// existing returns the tables of a family that we use and that exist: to ask for another one would make it.
func (t *tool) existing(ctx context.Context, f state.Family) ([]rules.Table, error) {
	out, err := t.run(ctx, f, "save", "")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc([]rules.Table{rules.NAT, rules.Filter, rules.Raw}, func(table rules.Table) bool {
		return !rules.ListsTable(string(out), table)
	}), nil
}

// Programmed reports whether the kernel holds sets of this dataplane, in the calling thread's network namespace: where it has rules it has
// sets. It runs no program, and needs CAP_NET_ADMIN.
func Programmed() (held bool, err error) {
	conn, err := ipset.Open()
	if err != nil {
		return false, fmt.Errorf("iptables: %w", err)
	}
	defer conn.Close()
	for _, f := range families {
		sets, err := conn.Sets(rules.SetPrefix(f))
		if errors.Is(err, ipset.ErrUnsupported) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("iptables: %w", err)
		}
		if len(sets) > 0 {
			return true, nil
		}
	}
	return false, nil
}
