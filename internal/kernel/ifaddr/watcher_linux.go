package ifaddr

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// retryAfter is the pause after the addresses could not be read.
const retryAfter = time.Second

// Watcher knows the current addresses of all interfaces of a network namespace. Its methods may be called by several
// goroutines at once.
type Watcher struct {
	current
	log     *slog.Logger
	events  *os.File
	table   *netlink.Handle
	stopped chan struct{}
	// services are the numbers of the devices whose addresses belong to Services, as of the last reading. Many
	// addresses come and go there, and to read all of them for each would take time that grows with their square.
	services []int
}

// Open starts to follow the addresses of the calling thread's network namespace. The caller must Close the Watcher.
func Open(o Options) (*Watcher, error) {
	w := &Watcher{current: newCurrent(), log: o.Logger, stopped: make(chan struct{})}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if w.events, err = subscribe(); err != nil {
		return nil, fmt.Errorf("watch interface addresses: %w", err)
	}
	events, err := w.events.SyscallConn()
	if err == nil {
		w.table, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err == nil {
		// After the subscription, so that no change falls between the two.
		w.addrs, err = w.list()
	}
	if err != nil {
		w.closeSockets()
		return nil, fmt.Errorf("read interface addresses: %w", err)
	}
	go w.run(events)
	return w, nil
}

// Close stops following. The last addresses stay readable. Closing twice returns os.ErrClosed.
func (w *Watcher) Close() error {
	if err := w.events.Close(); err != nil {
		return fmt.Errorf("stop watching interface addresses: %w", err)
	}
	<-w.stopped
	return nil
}

// subscribe opens a socket that gets a message with each change of an address in the calling thread's network namespace.
func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	groups := uint32(1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "rtnetlink"), nil
}

// run reads the addresses again after each burst of events, until the event socket is closed. Of an event it looks
// only at the device: events may be lost or overtaken, the table may not.
func (w *Watcher) run(events syscall.RawConn) {
	defer close(w.stopped)
	defer w.closeSockets()
	for {
		err := await(events, w.services)
		if _, failed := errors.AsType[*os.SyscallError](err); failed {
			w.log.Error("stopped watching interface addresses", "error", err)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		retry := time.Time{} // none
		if addrs, err := w.list(); err != nil {
			w.log.Warn("cannot read interface addresses", "error", err, "retryAfter", retryAfter)
			retry = time.Now().Add(retryAfter)
		} else {
			w.set(addrs)
		}
		// It fails only if the socket is closed, which await will find.
		_ = w.events.SetReadDeadline(retry)
	}
}

// await blocks until there is at least one event of a device that is not ignored, and takes all waiting events. It
// returns os.ErrDeadlineExceeded if the deadline comes first, an os.SyscallError if the kernel refuses, and any other
// error if the socket is closed.
func await(events syscall.RawConn, ignored []int) error {
	var buf [unix.SizeofNlMsghdr + unix.SizeofIfAddrmsg]byte // a longer message is cut off
	var recvErr error
	err := events.Read(func(fd uintptr) bool {
		for some := false; ; {
			n, _, err := unix.Recvfrom(int(fd), buf[:], 0)
			switch err {
			case nil:
				if n == len(buf) && slices.Contains(ignored, deviceOf(buf[:])) {
					continue
				}
			case unix.EINTR:
			case unix.ENOBUFS: // events were lost: as good as an event
			case unix.EAGAIN:
				return some
			default:
				recvErr = os.NewSyscallError("recvfrom", err)
				return true
			}
			some = true
		}
	})
	return cmp.Or(recvErr, err)
}

// deviceOf returns the number of the device that an event is about.
func deviceOf(event []byte) int {
	return int(binary.NativeEndian.Uint32(event[unix.SizeofNlMsghdr+4:])) // struct ifaddrmsg
}

func (w *Watcher) list() ([]netip.Addr, error) {
	entries, err := w.table.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	if w.services, err = w.serviceLinks(); err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, e := range entries {
		// An address that another host on the link also has is configured but not used.
		if e.IPNet == nil || e.Flags&unix.IFA_F_DADFAILED != 0 || slices.Contains(w.services, e.LinkIndex) {
			continue
		}
		if addr, ok := netip.AddrFromSlice(e.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return normalize(addrs), nil
}

// serviceLinks returns the numbers of the devices whose addresses belong to Services.
func (w *Watcher) serviceLinks() (links []int, err error) {
	for _, name := range serviceDevices {
		link, err := w.table.LinkByName(name)
		if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		links = append(links, link.Attrs().Index)
	}
	return links, nil
}

func (w *Watcher) closeSockets() {
	_ = w.events.Close()
	if w.table != nil {
		w.table.Close()
	}
}
