//go:build !linux

package leftovers

import (
	"context"
	"errors"
	"fmt"
)

var errNotLinux = fmt.Errorf("rules that kube-proxy left: %w on this operating system", errors.ErrUnsupported)

// Find fails: kube-proxy's Linux modes do not exist on this operating system.
func Find(context.Context) ([]Item, error) { return nil, errNotLinux }

// Remove fails.
func Remove(context.Context) ([]Item, error) { return nil, errNotLinux }
