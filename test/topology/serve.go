//go:build linux

package topology

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// backlog is the number of connections that may wait for a server; the kernel takes the lower of this and somaxconn.
const backlog = 4096

type serverKey struct {
	proto state.Protocol
	addr  netip.AddrPort
}

// Serve starts an echo server. It answers each connection, each line on a connection and each datagram with one line: its
// name, and the client's address as it sees it. The host may get the address later; if it is unspecified or the zero Addr,
// there is a server on each of [Host.Addrs]. Answers to datagrams come from the address that the datagram went to.
func (h *Host) Serve(proto state.Protocol, addr netip.AddrPort, name string) error {
	addrs := []netip.AddrPort{addr}
	if !addr.Addr().IsValid() || addr.Addr().IsUnspecified() {
		addrs = nil
		for _, a := range h.Addrs {
			addrs = append(addrs, netip.AddrPortFrom(a, addr.Port()))
		}
	}
	for _, a := range addrs {
		if err := h.serveOne(serverKey{proto, a}, name); err != nil {
			return fmt.Errorf("%s: serve %v on %v: %w", h.Name, proto, a, err)
		}
	}
	return nil
}

// StopServing stops the servers that Serve started with the same arguments, and ends their connections.
func (h *Host) StopServing(proto state.Protocol, addr netip.AddrPort) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := !addr.Addr().IsValid() || addr.Addr().IsUnspecified()
	stopped := false
	for key, server := range h.servers {
		if key.proto == proto && key.addr.Port() == addr.Port() && (all || key.addr == addr) {
			server.Close()
			delete(h.servers, key)
			stopped = true
		}
	}
	if !stopped {
		return fmt.Errorf("%s: no %v server on %v", h.Name, proto, addr)
	}
	return nil
}

func (h *Host) serveOne(key serverKey, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return os.ErrClosed
	}
	if h.servers[key] != nil {
		return unix.EADDRINUSE
	}
	file, err := h.listen(key)
	if err != nil {
		return err
	}
	defer file.Close() // the listeners below work on a duplicate
	if key.proto == state.UDP {
		conn, err := net.FilePacketConn(file)
		if err != nil {
			return err
		}
		h.servers[key] = conn
		go echoDatagrams(conn.(*net.UDPConn), name)
		return nil
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	server := &streamServer{name: name, listener: listener, conns: map[net.Conn]bool{}}
	h.servers[key] = server
	go server.run()
	return nil
}

func (h *Host) listen(key serverKey) (*os.File, error) {
	fd, err := h.socket(key.proto, key.addr.Addr())
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "server")
	if key.proto != state.UDP {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	}
	if err == nil { // works for IPv6, too
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(key.addr)))
	}
	if err == nil && key.proto != state.UDP {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// echoDatagrams runs until conn is closed.
func echoDatagrams(conn *net.UDPConn, name string) {
	buf := make([]byte, 2048)
	for {
		_, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil { // other errors are ICMP messages about earlier answers
			_, _ = conn.WriteToUDPAddrPort(answerLine(name, from), from)
		}
	}
}

// streamServer answers TCP and SCTP connections.
type streamServer struct {
	name     string
	listener net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

// run returns once the listener is closed.
func (s *streamServer) run() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && s.track(conn) { // other errors are connections that have gone while they waited
			go s.answer(conn)
		}
	}
}

func (s *streamServer) track(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return false
	}
	s.conns[conn] = true
	return true
}

func (s *streamServer) answer(conn net.Conn) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return // the client has gone
	}
	line := answerLine(s.name, from)
	requests := bufio.NewScanner(conn)
	for {
		if _, err := conn.Write(line); err != nil {
			return
		}
		if !requests.Scan() {
			return
		}
	}
}

// Close ends the server and its connections.
func (s *streamServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
	return s.listener.Close()
}

func answerLine(name string, client netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%s %v\n", name, netip.AddrPortFrom(client.Addr().Unmap(), client.Port()))
}
