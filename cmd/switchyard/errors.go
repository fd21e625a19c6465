package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/node"
)

// explainStart adds the remedy to what keeps a node from starting.
func explainStart(err error) error {
	if _, ok := errors.AsType[*node.DataplaneError](err); !ok {
		return err
	}
	if _, inUse := errors.AsType[*nodelock.InUseError](err); inUse {
		return fmt.Errorf("%w, or give --take-over the time in which it will end", err)
	}
	return withRemedy(err)
}

// withRemedy adds the remedy to an error that the kernel returns for missing
// rights.
func withRemedy(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: this needs root (CAP_NET_ADMIN); run it with sudo. To try Switchyard without root, use 'switchyard lab'", err)
	}
	return err
}
