//go:build !linux

package nodesetup

import (
	"errors"
	"fmt"
)

// Apply returns an error that wraps errors.ErrUnsupported if the options ask for anything: only Linux has these settings.
func Apply(o Options) []error {
	if o.Conntrack == (Conntrack{}) && o.OOMScoreAdj == nil {
		return nil
	}
	return []error{fmt.Errorf("conntrack limits and OOM scores: %w on this operating system", errors.ErrUnsupported)}
}
