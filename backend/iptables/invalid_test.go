//go:build linux

package iptables

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestInvalidPacketsAreDropped has an endpoint send a packet outside of the window of a connection through a Service. Connection tracking takes it for invalid and
// does not translate it, so that it would come from an address to which the client has no connection: it would answer with a reset, which the endpoint takes
// for one of the connection (kubernetes/kubernetes#74839).
func TestInvalidPacketsAreDropped(t *testing.T) {
	forBothVariants(t, func(t *testing.T, v Variant) {
		l := netnstest.Lab(t, topology.Options{})
		for _, name := range []string{"client", "server"} {
			if _, err := l.AddPod(topology.PodOptions{Name: name}); err != nil {
				t.Fatal(err)
			}
		}
		var b *Backend
		err := l.Node().Do(func() (err error) {
			b, err = New(t.Context(), Options{Variant: v, TakeOver: time.Minute, LocalDetector: state.LocalDetector{ClusterCIDRs: l.Options().NodePodCIDRs}})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeBackend(t, b) })
		var ports []state.Port
		var listeners []net.Listener
		for i, f := range families {
			addr := netip.AddrPortFrom(l.Pod("server").Addrs[i], 8080)
			var listener net.Listener
			err := l.Pod("server").Do(func() (err error) { listener, err = net.Listen("tcp", addr.String()); return err })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
			listeners = append(listeners, listener)
			ports = append(ports, recordtest.ClusterIPPort(f, state.TCP, 1, []state.Endpoint{{Addr: addr}}))
		}
		apply(t, b, recordtest.Full(recordtest.Service("web", ports...)))
		dropped := uint64(0)
		for _, isLiberal := range []bool{false, true, false} {
			value := "0"
			if isLiberal {
				value = "1"
			}
			if err := l.Node().SetSysctls(netns.Sysctl{Path: "net/netfilter/nf_conntrack_tcp_be_liberal", Value: value}); err != nil {
				t.Fatal(err)
			}
			verify(t, b)
			for i := range ports {
				c := connectThrough(t, l, ports[i].Frontends[0].Addr, listeners[i])
				c.echo(t)
				c.sendOutside(t, l.Pod("server"))
				if !isLiberal {
					dropped++
				}
				c.echo(t)
			}
			n, err := b.DroppedInvalid()
			for deadline := time.Now().Add(10 * time.Second); err == nil && n < dropped && time.Now().Before(deadline); n, err = b.DroppedInvalid() {
				time.Sleep(time.Millisecond) // another processor may have the packet still
			}
			if err != nil || n != dropped {
				t.Errorf("tcp_be_liberal is %s: %d packets dropped (%v), want %d", value, n, err, dropped)
			}
		}
	})
}

// through is a connection of pod client to pod server through a Service.
type through struct{ client, server *net.TCPConn }

func connectThrough(t *testing.T, l *topology.Lab, frontend netip.Addr, listener net.Listener) *through {
	t.Helper()
	c := &through{}
	err := l.Pod("client").Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(frontend, 80).String(), 10*time.Second)
		if err == nil {
			c.client = conn.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.client.Close() })
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.server = conn.(*net.TCPConn)
	t.Cleanup(func() { c.server.Close() })
	for _, conn := range []net.Conn{c.client, c.server} {
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// echo sends a line there and back.
func (c *through) echo(t *testing.T) {
	t.Helper()
	for _, conns := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		_, err := fmt.Fprintln(conns[0], "hello")
		if err == nil {
			_, err = bufio.NewReader(conns[1]).ReadString('\n')
		}
		if err != nil {
			t.Fatalf("from %v: %v", conns[0].LocalAddr(), err)
		}
	}
}

// sendOutside sends a packet of the server that is far outside of the window, but answers what the client has sent last.
func (c *through) sendOutside(t *testing.T, server *topology.Host) {
	t.Helper()
	const (
		receiveQueue, sendQueue = 1, 2 // TCP_RECV_QUEUE, TCP_SEND_QUEUE
		far                     = 1 << 30
	)
	var seq [3]int // by queue: of the next byte
	raw, err := c.server.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		set := func(option, value int) error { return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) }
		err = set(unix.TCP_REPAIR, 1)
		for _, queue := range []int{receiveQueue, sendQueue} {
			err = errors.Join(err, set(unix.TCP_REPAIR_QUEUE, queue))
			value, getErr := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
			seq[queue], err = value, errors.Join(err, getErr)
		}
		err = errors.Join(err, set(unix.TCP_REPAIR, -1)) // TCP_REPAIR_OFF_NO_WP: without a window probe
	})
	if err != nil {
		t.Fatal(err)
	}
	from, to := c.server.LocalAddr().(*net.TCPAddr).AddrPort(), c.server.RemoteAddr().(*net.TCPAddr).AddrPort()
	segment := make([]byte, 20, 21)
	binary.BigEndian.PutUint16(segment[0:], from.Port())
	binary.BigEndian.PutUint16(segment[2:], to.Port())
	binary.BigEndian.PutUint32(segment[4:], uint32(seq[sendQueue]+far))
	binary.BigEndian.PutUint32(segment[8:], uint32(seq[receiveQueue]))
	segment[12], segment[13] = 5<<4, 0x18 // PSH, ACK
	binary.BigEndian.PutUint16(segment[14:], 500)
	segment = append(segment, 'x')
	binary.BigEndian.PutUint16(segment[16:], netnstest.Checksum(from.Addr().AsSlice(), to.Addr().AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, byte(len(segment))}, segment))
	domain, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()[:4])})
	if to.Addr().Is6() {
		domain, addr = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}
	}
	err = server.Do(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, syscall.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, segment, 0, addr)
	})
	if err != nil {
		t.Fatal(err)
	}
}
