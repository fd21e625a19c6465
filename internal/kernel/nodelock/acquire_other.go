//go:build !windows

package nodelock

import (
	"context"
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// Lock is held by the process that programs a network namespace, until it closes the Lock or ends.
type Lock struct{ conn *nft.Conn }

// Acquire makes this process the one that programs the calling thread's network namespace. If another one is, it waits
// for its end, or until ctx ends, and then returns an error that wraps a [InUseError]. It needs CAP_NET_ADMIN and Linux
// 5.12. The error wraps [errors.ErrUnsupported] if the kernel lacks the required features.
func Acquire(ctx context.Context, o Options) (*Lock, error) {
	conn, err := nft.Dial()
	if err == nil {
		if err = lock(ctx, conn, o); err == nil {
			return &Lock{conn}, nil
		}
		err = errors.Join(err, conn.Close())
	}
	if isUnsupported(err) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return nil, err
}

// Close releases the lock. Close of a nil lock does nothing.
func (l *Lock) Close() error {
	if l == nil {
		return nil
	}
	return l.conn.Close()
}
