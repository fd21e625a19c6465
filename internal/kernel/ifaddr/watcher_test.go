//go:build linux

package ifaddr

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// host is a network namespace with one device, a veth that is up.
type host struct {
	t    *testing.T
	ns   *netns.NS
	h    *netlink.Handle
	link netlink.Link
}

func newHost(t *testing.T) *host {
	t.Helper()
	ns := netnstest.New(t)
	h := &host{t: t, ns: ns}
	if err := ns.Do(func() (err error) { h.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.h.Close)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	h.must(h.h.LinkAdd(veth))
	h.link = veth
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) address(addr netip.Addr) *netlink.Addr {
	bits := addr.BitLen()
	// Without duplicate address detection the address is usable at once.
	return &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
}

func (h *host) add(addr string) {
	h.t.Helper()
	h.must(h.h.AddrAdd(h.link, h.address(netip.MustParseAddr(addr))))
}

func (h *host) del(addr string) {
	h.t.Helper()
	h.must(h.h.AddrDel(h.link, h.address(netip.MustParseAddr(addr))))
}

func (h *host) watch() *Watcher {
	h.t.Helper()
	var w *Watcher
	h.must(h.ns.Do(func() (err error) { w, err = Open(Options{}); return err }))
	h.t.Cleanup(func() { w.Close() })
	return w
}

// expect waits until the watcher has reported that its addresses changed and they are want.
func expect(t *testing.T, w *Watcher, want []netip.Addr) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !slices.Equal(w.Addrs(), want) {
		select {
		case <-w.Changed():
		case <-deadline:
			t.Fatalf("addresses %v, want %v", w.Addrs(), want)
		}
	}
}

func TestWatcher(t *testing.T) {
	h := newHost(t)
	h.add("10.0.0.5")
	w := h.watch()
	if got, want := w.Addrs(), recordtest.Addrs("10.0.0.5"); !slices.Equal(got, want) {
		t.Fatalf("at first %v, want %v", got, want)
	}
	h.add("fd00::5")
	expect(t, w, recordtest.Addrs("10.0.0.5 fd00::5"))
	h.add("10.0.0.4")
	expect(t, w, recordtest.Addrs("10.0.0.4 10.0.0.5 fd00::5"))
	h.del("10.0.0.5")
	expect(t, w, recordtest.Addrs("10.0.0.4 fd00::5"))

	lo, err := h.h.LinkByName("lo")
	h.must(err)
	h.must(h.h.LinkSetUp(lo))
	expect(t, w, recordtest.Addrs("10.0.0.4 127.0.0.1 ::1 fd00::5"))
	h.must(h.h.LinkDel(h.link)) // takes its addresses along
	expect(t, w, recordtest.Addrs("127.0.0.1 ::1"))
}

// TestServiceDevice: the addresses of Services are not the machine's, and nothing is read again when they change.
func TestServiceDevice(t *testing.T) {
	h := newHost(t)
	h.add("10.0.0.5")
	w := h.watch()
	var ignored []int // the kernel is done with an IPv6 address some time after it was added
	for _, name := range serviceDevices {
		h.must(h.h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name[:4]}))
		services, err := h.h.LinkByName(name)
		h.must(err)
		ignored = append(ignored, services.Attrs().Index)
		for _, a := range recordtest.Addrs("10.96.0.10 fd00::96") {
			h.must(h.h.AddrAdd(services, h.address(a)))
		}
	}
	h.add("10.0.0.6")
	expect(t, w, recordtest.Addrs("10.0.0.5 10.0.0.6"))

	var events *os.File
	h.must(h.ns.Do(func() (err error) { events, err = subscribe(); return err }))
	defer events.Close()
	link, err := h.h.LinkByName(ServiceDevice)
	h.must(err)
	h.must(h.h.AddrAdd(link, h.address(netip.MustParseAddr("10.96.0.11"))))
	h.must(events.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
	raw, err := events.SyscallConn()
	h.must(err)
	if err := await(raw, ignored); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an address of a Service is an event (%v)", err)
	}
	h.must(events.SetReadDeadline(time.Time{}))
	h.add("10.0.0.7")
	if err := await(raw, ignored); err != nil {
		t.Errorf("an address of the machine after that: %v", err)
	}
}

// TestStorm adds and deletes at random, so that events come while addresses are read.
func TestStorm(t *testing.T) {
	h := newHost(t)
	w := h.watch()
	r := rand.New(rand.NewPCG(1, 2))
	held := map[netip.Addr]bool{}
	for range 2000 {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + r.IntN(8))})
		if held[addr] {
			h.del(addr.String())
		} else {
			h.add(addr.String())
		}
		held[addr] = !held[addr]
	}
	h.add("10.1.0.0") // so that the last set is not one that the watcher has seen before
	want := recordtest.Addrs("10.1.0.0")
	for addr, is := range held {
		if is {
			want = append(want, addr)
		}
	}
	expect(t, w, normalize(want))
}

// TestOverrun loses events, among them the event of the last change.
func TestOverrun(t *testing.T) {
	h := newHost(t)
	w := &Watcher{log: slog.New(slog.DiscardHandler), current: newCurrent(), stopped: make(chan struct{})}
	h.must(h.ns.Do(func() (err error) {
		if w.events, err = subscribe(); err != nil {
			return err
		}
		w.table, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}))
	events, err := w.events.SyscallConn()
	h.must(err)
	h.must(events.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }))
	h.must(err)
	for range 100 {
		h.add("10.0.0.5")
		h.del("10.0.0.5")
	}
	h.add("10.0.0.6")
	go w.run(events)
	t.Cleanup(func() { w.Close() })
	expect(t, w, recordtest.Addrs("10.0.0.6"))
	h.add("10.0.0.7")
	expect(t, w, recordtest.Addrs("10.0.0.6 10.0.0.7"))
}

// TestDuplicateAddress: an IPv6 address that another machine on the link answers for is not served.
func TestDuplicateAddress(t *testing.T) {
	h := newHost(t)
	peer, err := h.h.LinkByName("peer")
	h.must(err)
	other := newHost(t)
	h.must(other.h.LinkDel(other.link)) // and its end named peer
	h.must(other.ns.Fd(func(fd int) error { return h.h.LinkSetNsFd(peer, fd) }))
	peer, err = other.h.LinkByName("peer")
	h.must(err)
	h.must(other.h.LinkSetUp(peer))
	h.must(h.h.LinkSetUp(h.link))
	h.must(other.h.AddrAdd(peer, h.address(netip.MustParseAddr("fd00::5"))))

	duplicate := h.address(netip.MustParseAddr("fd00::5"))
	duplicate.Flags = 0
	h.must(h.h.AddrAdd(h.link, duplicate))
	w := h.watch()
	gone := func() bool { return !slices.Contains(w.Addrs(), netip.MustParseAddr("fd00::5")) }
	deadline := time.After(time.Minute)
	for !gone() {
		select {
		case <-w.Changed():
		case <-deadline:
			t.Fatalf("addresses %v, want fd00::5 gone", w.Addrs())
		}
	}
}

func TestChangesCoalesce(t *testing.T) {
	w := &Watcher{current: newCurrent()}
	signalled := func() bool {
		select {
		case <-w.Changed():
			return true
		default:
			return false
		}
	}
	w.set(nil)
	if signalled() {
		t.Error("a signal without a change")
	}
	w.set(recordtest.Addrs("10.0.0.1"))
	w.set(recordtest.Addrs("10.0.0.2"))
	if !signalled() {
		t.Error("no signal for a change")
	}
	if signalled() {
		t.Error("two signals, want one for both changes")
	}
	if got := w.Addrs(); !slices.Equal(got, recordtest.Addrs("10.0.0.2")) {
		t.Errorf("addresses %v, want the last ones", got)
	}
}

func TestClose(t *testing.T) {
	w := newHost(t).watch()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closing twice: %v, want os.ErrClosed", err)
	}
}
