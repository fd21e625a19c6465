//go:build linux

package topology

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Silence drops all packets of the host to other addresses from now on, or no longer. So it answers nothing, and others get no error.
func (h *Host) Silence(silent bool) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Type = family, 1, unix.FR_ACT_BLACKHOLE // behind the table of its own addresses
		change := h.nl.RuleDel
		if silent {
			change = h.nl.RuleAdd
		}
		if err := change(rule); err != nil {
			return fmt.Errorf("silence %s: %w", h.Name, err)
		}
	}
	return nil
}
