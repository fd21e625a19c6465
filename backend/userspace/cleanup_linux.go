package userspace

import (
	"context"
	"fmt"

	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
)

// Cleanup removes the [DefaultAddresses] from the loopback interface in the calling thread's network namespace, and reports whether there
// were any. The base's own cleanup removes its programmed state. If another process programs the network namespace for more than two
// seconds, Cleanup removes nothing. The error is then [syscall.EBUSY] to [errors.Is].
func Cleanup(ctx context.Context) (removed bool, err error) {
	return nodelock.Cleanup(ctx, "userspace", Remove)
}

// Remove is Cleanup for a caller that has the lock of the network namespace, as package node, and no Backend.
func Remove() (removed bool, err error) {
	a, err := openAddresses(DefaultAddresses())
	if err == nil {
		defer a.close()
		removed, err = a.remove()
	}
	if err != nil {
		return removed, fmt.Errorf("userspace: %w", err)
	}
	return removed, nil
}

// Programmed reports whether the loopback interface in the calling thread's network namespace has one of the [DefaultAddresses]. A start
// would take them over.
func Programmed() (bool, error) {
	a, err := openAddresses(DefaultAddresses())
	if err != nil {
		return false, fmt.Errorf("userspace: %w", err)
	}
	defer a.close()
	_, has, err := a.loopback()
	if err != nil {
		return false, fmt.Errorf("userspace: %w", err)
	}
	return len(has) > 0, nil
}
