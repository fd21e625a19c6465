//go:build linux

package topology

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// handedOverInterface is the device by which packets of a client leave that another node hands over, and handedOverMTU leaves room for what that node adds.
const (
	handedOverInterface = "over"
	handedOverMTU       = 1400
)

// handedOverHeader is between UDP and the packet: version 1, and no earlier owner of the slot. The README of internal/edge has the form.
var handedOverHeader = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// AddHandedOver adds a client outside the cluster. Its packets come in at the other node. That node hands them over to the node under test as they are, in UDP to
// the port. Answers come from the node under test directly.
func (l *Lab) AddHandedOver(name string, port uint16) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overs[name] != nil {
		return nil, fmt.Errorf("client %s: the name is taken", name)
	}
	var addrs []netip.Addr
	for _, prefix := range l.options.Underlay {
		addrs = append(addrs, nth(prefix, byte(150+len(l.overs))))
	}
	h, err := NewHost(name, addrs, hostSysctls)
	if err != nil {
		return nil, err
	}
	l.overs[name] = h
	if err := l.joinHandedOver(h, port); err != nil {
		return nil, fmt.Errorf("client %s: %w", name, err)
	}
	return h, nil
}

func (l *Lab) joinHandedOver(h *Host, port uint16) error {
	up, down, err := l.veth(l.switchHost, h.Name, h, UnderlayInterface)
	if err != nil {
		return err
	}
	bridge, err := l.switchHost.nl.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	uplink, err := l.node.nl.LinkByName(UnderlayInterface)
	if err := firstError(err, l.switchHost.nl.LinkSetMaster(up, bridge), l.node.addNeighbours(uplink, h.Addrs, down)); err != nil {
		return err
	}
	for _, addr := range h.Addrs {
		if err := h.AddAddr(netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			return err
		}
	}
	var packets *os.File
	if err := h.Do(func() (err error) { packets, err = openTUN(handedOverInterface); return err }); err != nil {
		return err
	}
	h.closers = append(h.closers, packets)
	dev, err := h.nl.LinkByName(handedOverInterface)
	err = firstError(err, h.nl.LinkSetMTU(dev, handedOverMTU), h.nl.LinkSetUp(dev), h.addRoutes(dev, defaults(h.Addrs), nil, h.Addrs))
	if err != nil {
		return err
	}
	outer := map[byte]io.Writer{} // by the version of IP inside
	for _, to := range l.node.Addrs {
		var conn net.Conn
		err := l.other.Do(func() (err error) { conn, err = net.Dial("udp", netip.AddrPortFrom(to, port).String()); return err })
		if err != nil {
			return err
		}
		h.closers = append(h.closers, conn)
		outer[map[bool]byte{true: 4, false: 6}[to.Is4()]] = conn
	}
	go handOver(packets, outer)
	return nil
}

// handOver writes each packet behind its headers, until the device is closed.
func handOver(packets io.Reader, outer map[byte]io.Writer) {
	buf := make([]byte, len(handedOverHeader)+handedOverMTU)
	copy(buf, handedOverHeader)
	for {
		n, err := packets.Read(buf[len(handedOverHeader):])
		if err != nil {
			return
		}
		if to := outer[buf[len(handedOverHeader)]>>4]; to != nil {
			_, _ = to.Write(buf[:len(handedOverHeader)+n]) // a refusal of an earlier one does not count
		}
	}
}

// openTUN makes a device in the calling thread's namespace that hands its packets to the file.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
