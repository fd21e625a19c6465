package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/localnet"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
)

// Cleanup removes all that this dataplane ever puts into the kernel, in the calling thread's network namespace, and says
// whether there was anything. Connections that are established stay translated. If NodePorts were served on loopback addresses,
// the sysctl route_localnet, which that takes, is switched off, because what guarded it is gone. If another process programs the
// network namespace, and does not end within two seconds, nothing is removed, and the error is [syscall.EBUSY] to [errors.Is].
func Cleanup(ctx context.Context) (removed bool, err error) {
	return nodelock.Cleanup(ctx, "nftables", func() (bool, error) { return Remove(false) })
}

// Remove is Cleanup for a caller that has the lock of the network namespace, as package node, and no Backend. If keepLoopback is set, another
// dataplane serves NodePorts on loopback addresses, and the sysctl stays as it is.
func Remove(keepLoopback bool) (removed bool, err error) {
	conn, err := nft.Dial()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var batch nft.Batch
	loopback := false
	for _, t := range slices.Concat(ruleset.Tables(), ruleset.ResetTables(), ruleset.SuspectTables()) {
		exists, err := conn.HasTable(t)
		if err != nil {
			return false, fmt.Errorf("nftables: looking for table %v: %w", t, err)
		}
		if !exists {
			continue
		}
		batch.DeleteTable(t)
		sk, err := conn.ReadSkeleton(t)
		if err != nil {
			return false, fmt.Errorf("nftables: reading table %v: %w", t, err)
		}
		loopback = loopback || ruleset.ServesLoopback(sk)
	}
	if loopback && !keepLoopback {
		local := localnet.Open()
		if err := errors.Join(local.Disable(), local.Close()); err != nil {
			return false, fmt.Errorf("nftables: %w", err)
		}
	}
	if err := conn.Commit(&batch); err != nil {
		return false, fmt.Errorf("nftables: deleting tables %s: %w", ruleset.TableName, err)
	}
	return batch.Len() > 0, nil
}
