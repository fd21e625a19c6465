//go:build !linux

package leftovers

import (
	"context"
	"errors"
	"fmt"
)

var errNotLinux = fmt.Errorf("rules that kube-proxy left: %w on this operating system", errors.ErrUnsupported)

// Remove fails: kube-proxy's Linux modes do not exist on this operating system.
func Remove(context.Context) ([]Item, error) { return nil, errNotLinux }
