//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netns"
)

// arrivals notes when new endpoints come into the kernel of a namespace. The kernel itself reports each object of nf_tables after the
// transaction that made it, whatever program that was.
type arrivals struct {
	file *os.File
	done chan struct{}

	mu   sync.Mutex
	at   map[netip.Addr]time.Time // the first rule or set element that has the address
	lost int                      // how often the kernel had more to report than the socket holds
}

// watchKernel begins to note. The caller must call close.
func watchKernel(ns *netns.NS) (*arrivals, error) {
	var file *os.File
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		file = os.NewFile(uintptr(fd), "nf_tables")
		const room = 64 << 20
		return errors.Join(
			os.NewSyscallError("SO_RCVBUFFORCE", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room)),
			os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
			os.NewSyscallError("join", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)),
		)
	})
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, fmt.Errorf("watch nf_tables: %w", err)
	}
	a := &arrivals{file: file, done: make(chan struct{}), at: map[netip.Addr]time.Time{}}
	go a.run()
	return a, nil
}

func (a *arrivals) run() {
	defer close(a.done)
	buf := make([]byte, 1<<20)
	for {
		n, err := a.file.Read(buf)
		now := time.Now()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			a.mu.Lock()
			a.lost++
			a.mu.Unlock()
		case err != nil:
			return
		default:
			a.take(buf[:n], now)
		}
	}
}

// take notes the new endpoints in messages of the kernel.
func (a *arrivals) take(messages []byte, now time.Time) {
	const headerSize = unix.NLMSG_HDRLEN
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(messages) >= headerSize {
		size := int(binary.NativeEndian.Uint32(messages))
		if size < headerSize || size > len(messages) {
			return
		}
		kind := int(binary.NativeEndian.Uint16(messages[4:]))
		if kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE || kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM {
			for addr := range addressesIn(messages[headerSize:size], newCIDR) {
				if _, ok := a.at[addr]; !ok {
					a.at[addr] = now
				}
			}
		}
		messages = messages[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(messages)):]
	}
}

// addressesIn finds the addresses of a range in netlink attributes, whose data are aligned to four bytes. Nothing else there has the form of
// an address in newCIDR.
func addressesIn(data []byte, in netip.Prefix) func(func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for ; len(data) >= 4; data = data[4:] {
			if addr := netip.AddrFrom4([4]byte(data)); in.Contains(addr) && !yield(addr) {
				return
			}
		}
	}
}

// latencies returns how long each change of an update took to come into the kernel, and how many of them have not.
func (a *arrivals) latencies(u *update) (took []time.Duration, missing int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, trigger := range u.triggers {
		if at, ok := a.at[addr]; ok {
			took = append(took, at.Sub(trigger))
		} else {
			missing++
		}
	}
	return took, missing
}

// close ends the notes. It returns an error if the kernel reported more than was read.
func (a *arrivals) close() error {
	err := a.file.Close()
	<-a.done
	if a.lost > 0 {
		err = errors.Join(err, fmt.Errorf("reports of nf_tables were lost %d times: %w", a.lost, syscall.ENOBUFS))
	}
	return err
}
