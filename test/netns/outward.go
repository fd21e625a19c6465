//go:build linux

package netns

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Outward makes a device with addresses. All packets that leave the namespace leave it through this device, and nobody gets them.
func (ns *NS) Outward(prefixes ...string) error {
	return ns.Do(func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		out := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "peer"}
		if err := h.LinkAdd(out); err != nil {
			return err
		}
		peer, err := h.LinkByName("peer")
		if err != nil {
			return err
		}
		errs := []error{h.LinkSetARPOff(out), h.LinkSetUp(out), h.LinkSetUp(peer)}
		for _, p := range prefixes {
			addr, err := netlink.ParseAddr(p)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			errs = append(errs, h.AddrAdd(out, addr))
		}
		for _, all := range []string{"0.0.0.0/0", "::/0"} {
			_, dst, _ := net.ParseCIDR(all)
			errs = append(errs, h.RouteAdd(&netlink.Route{LinkIndex: out.Index, Scope: netlink.SCOPE_LINK, Dst: dst}))
		}
		return errors.Join(errs...)
	})
}
