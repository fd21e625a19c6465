package main

import (
	"errors"
	"fmt"
	"io/fs"
)

// explain adds the remedy to what the kernel refuses for want of rights.
func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: this needs root (CAP_NET_ADMIN); run it with sudo. To try Switchyard without root, use 'switchyard lab'", err)
	}
	return err
}
