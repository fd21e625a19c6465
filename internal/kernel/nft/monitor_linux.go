package nft

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Monitor receives the commits to tables, by any process in the network namespace, while it listens. While it
// listens, the kernel reports each element and each rule of every commit, which makes commits slower.
type Monitor struct {
	tables []Table
	file   *os.File
	buf    []byte
	// changed holds, for each socket, the tables that the commit whose report is being received has changed.
	changed []Table
	port    uint32
}

// monitorBuffer bounds what the kernel keeps of reports that nobody has read yet. Others get lost.
const monitorBuffer = 4 << 20

// OpenMonitor makes a monitor of some tables in the calling thread's network namespace, which does not listen yet. It needs
// CAP_NET_ADMIN there. The caller must Close it.
func OpenMonitor(tables ...Table) (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netfilter netlink socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, monitorBuffer),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), // nothing from other processes
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a netfilter netlink socket: %w", err)
	}
	return &Monitor{tables: tables, file: os.NewFile(uintptr(fd), "netfilter netlink socket"), buf: make([]byte, 64<<10)}, nil
}

// Listen starts or ends the reports.
func (m *Monitor) Listen(on bool) error {
	option := unix.NETLINK_DROP_MEMBERSHIP
	if on {
		option = unix.NETLINK_ADD_MEMBERSHIP
	}
	raw, err := m.file.SyscallConn()
	if err != nil {
		return err
	}
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		optionErr = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES)
	})
	if err = errors.Join(err, optionErr); err != nil {
		return fmt.Errorf("subscribing to reports of nf_tables: %w", err)
	}
	return nil
}

// Close ends the monitor, and with it a Next that is waiting.
func (m *Monitor) Close() error { return m.file.Close() }

// Next waits for the next commit that changes one of the tables. After Close it returns an error that wraps
// [os.ErrClosed]. Reports that do not fit into the socket's buffer are lost.
func (m *Monitor) Next() (Change, error) {
	for {
		n, err := m.file.Read(m.buf)
		if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
			m.changed = nil // the lost reports may include its end
			continue
		}
		if err != nil {
			return Change{}, fmt.Errorf("receiving reports of nf_tables: %w", err)
		}
		var change *Change
		// A message that cannot be read is one that is not reported.
		_ = eachMessage(m.buf[:n], func(msg message) error {
			if c := m.message(msg); c != nil {
				change = c
			}
			return nil
		})
		if change != nil {
			return *change, nil
		}
	}
}

// message returns the commit that a message completes, if it changes one of the tables.
func (m *Monitor) message(msg message) *Change {
	if msg.typ>>8 != subsystem>>8 || len(msg.payload) < 4 {
		return nil
	}
	family, attrs := Family(msg.payload[0]), msg.payload[4:]
	if msg.typ&0xff != nftMsgNewGen {
		t := Table{family, attrStr(attrs, nameOfTable)}
		if slices.Contains(m.tables, t) && !slices.Contains(m.changed, t) {
			m.changed, m.port = append(m.changed, t), msg.port
		}
		return nil
	}
	if len(m.changed) == 0 {
		return nil
	}
	c := &Change{Tables: m.changed, Port: m.port, PID: int(attrUint32(attrs, nftaGenProcPID)), Process: attrStr(attrs, nftaGenProcName)}
	m.changed = nil
	return c
}
