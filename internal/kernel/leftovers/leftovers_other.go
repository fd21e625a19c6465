//go:build !linux

package leftovers

import "context"

// Remove finds nothing: kube-proxy's Linux modes do not exist on this operating system.
func Remove(context.Context) ([]Item, error) { return nil, nil }

// Find finds nothing, either.
func Find(context.Context) ([]Item, error) { return nil, nil }
