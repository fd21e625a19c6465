//go:build linux

package conntrack

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestForeignAnswers lets another process answer in the kernel's place: with a flow that does not exist, and with the end of the
// table.
func TestForeignAnswers(t *testing.T) {
	ns := netnstest.New(t)
	err := ns.Do(func() error {
		c, err := Open()
		if err != nil {
			return err
		}
		defer c.Close()
		actual := dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.244.0.2:5353")
		create(t, c, actual)
		own, err := unix.Getsockname(c.lists.sock.fd)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		seq := c.lists.sock.seq + 1
		forged := actual
		forged.Orig.Src = netip.MustParseAddrPort("10.0.0.66:1")
		message := appendMessage(nil, msgGet, unix.NLM_F_MULTI, seq, encodeFlow(forged))
		message = appendMessage(message, unix.NLMSG_DONE, unix.NLM_F_MULTI, seq, make([]byte, 4))
		if err := unix.Sendto(fd, message, 0, own); err != nil {
			return err
		}
		if flows := list(t, c, Filter{Protocol: state.UDP}); len(flows) != 1 || flows[0].Orig != actual.Orig {
			t.Errorf("the table is said to hold %v, want %v", flows, actual)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
