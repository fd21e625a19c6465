//go:build linux

package loadcheck

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/test/topology"
)

// Requests are lines "CONNECTION REQUEST", both numbers. Answers are lines "SERVER CLIENT CONNECTION REQUEST" with both addresses as the server sees them, or
// "SERVER bye" on a connection that the server ends.
const bye = "bye"

// Server answers TCP connections and datagrams at one address.
type Server struct {
	addr     netip.AddrPort
	receipts *Receipts
	listener *net.TCPListener
	packets  *net.UDPConn

	mu    sync.Mutex
	conns map[*net.TCPConn]bool // nil once the server is closed
	done  sync.WaitGroup
}

// Receipts are the servers that have got the latest datagrams. The zero value is ready.
type Receipts struct {
	mu   sync.Mutex
	list [1 << 16]receipt // by connection: as many connections as are made while one waits for its answer
}

type receipt struct {
	connection uint64
	server     netip.AddrPort
}

func (r *Receipts) at(connection uint64) *receipt { return &r.list[connection%uint64(len(r.list))] }

func (r *Receipts) add(connection uint64, server netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.at(connection) = receipt{connection, server}
}

// of returns the server that has got the latest datagram of a connection, the zero value if none is known.
func (r *Receipts) of(connection uint64) netip.AddrPort {
	if r == nil {
		return netip.AddrPort{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.at(connection); found.connection == connection {
		return found.server
	}
	return netip.AddrPort{}
}

// Serve starts a server at an address of the host. Its name is the address. Datagrams that it gets are in receipts,
// unless that is nil. The caller must Close it.
func Serve(h *topology.Host, addr netip.AddrPort, receipts *Receipts) (*Server, error) {
	s := &Server{addr: addr, receipts: receipts, conns: map[*net.TCPConn]bool{}}
	err := h.Do(func() (err error) {
		if s.listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr)); err != nil {
			return err
		}
		s.packets, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		if s.listener != nil {
			s.listener.Close()
		}
		return nil, fmt.Errorf("%s: serve at %v: %w", h.Name, addr, err)
	}
	s.done.Go(s.accept)
	s.done.Go(s.answerPackets)
	return s, nil
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client has gone while it waited
		}
		s.mu.Lock()
		if s.conns == nil {
			conn.Close()
		} else {
			s.conns[conn] = true
			s.done.Go(func() { s.answer(conn) })
		}
		s.mu.Unlock()
	}
}

func (s *Server) answer(conn *net.TCPConn) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	begin := s.begin(conn.RemoteAddr().(*net.TCPAddr).AddrPort())
	for requests := bufio.NewScanner(conn); requests.Scan(); {
		if _, err := fmt.Fprintf(conn, "%s%s\n", begin, requests.Bytes()); err != nil {
			return
		}
	}
}

// begin is how answers to a client begin.
func (s *Server) begin(client netip.AddrPort) string {
	return fmt.Sprintf("%v %v ", s.addr, netip.AddrPortFrom(client.Addr().Unmap(), client.Port()))
}

func (s *Server) answerPackets() {
	buf := make([]byte, 512)
	for {
		n, from, err := s.packets.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil { // other errors are ICMP messages about earlier answers
			var connection uint64
			if _, err := fmt.Sscan(string(buf[:n]), &connection); err == nil && s.receipts != nil {
				s.receipts.add(connection, s.addr)
			}
			_, _ = s.packets.WriteToUDPAddrPort(append([]byte(s.begin(from)), buf[:n]...), from)
		}
	}
}

// Close ends the server as a well-behaved program ends: it takes leave of each connection, and waits a moment for the client to
// close it.
func (s *Server) Close() error {
	err := errors.Join(s.listener.Close(), s.packets.Close())
	s.mu.Lock()
	for conn := range s.conns {
		fmt.Fprintf(conn, "%v %s\n", s.addr, bye)
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	}
	s.conns = nil
	s.mu.Unlock()
	s.done.Wait()
	return err
}

// answerLine is a line of a server, taken apart.
type answerLine struct {
	server, client      netip.AddrPort
	connection, request uint64
	bye                 bool
}

func parseAnswer(line string) (a answerLine, err error) {
	fields := strings.Fields(line)
	if len(fields) == 2 && fields[1] == bye {
		a.bye = true
		a.server, err = netip.ParseAddrPort(fields[0])
	} else if len(fields) == 4 {
		var errs [4]error
		a.server, errs[0] = netip.ParseAddrPort(fields[0])
		a.client, errs[1] = netip.ParseAddrPort(fields[1])
		a.connection, errs[2] = strconv.ParseUint(fields[2], 10, 64)
		a.request, errs[3] = strconv.ParseUint(fields[3], 10, 64)
		err = errors.Join(errs[:]...)
	} else {
		err = fmt.Errorf("%d words", len(fields))
	}
	if err != nil {
		return a, fmt.Errorf("no server of this package answers %q: %w", line, err)
	}
	return a, nil
}
