package edge_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// serve has a host answer each line and each datagram by its name, the client's address and the length of what it got. The answer to a datagram that
// begins with "BIG" has what the datagram had behind it.
func (l *lab) serve(name string, port int) {
	l.t.Helper()
	must(l.t, l.hosts[name].Do(func() error {
		listener, err := (&net.ListenConfig{KeepAlive: noKeepAlive}).Listen(l.t.Context(), "tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					go answer(conn, name)
				}
			}
		}()
		// One socket of each family, so that answers come from the address that was asked.
		for _, network := range []string{"udp4", "udp6"} {
			conn, err := net.ListenPacket(network, fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { conn.Close() })
			go func() {
				buf := make([]byte, 1<<16)
				for {
					n, from, err := conn.ReadFrom(buf)
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err != nil {
						continue // an ICMP message about an earlier answer
					}
					line := fmt.Appendf(nil, "%s %v %d\n", name, from, n)
					if strings.HasPrefix(string(buf[:n]), "BIG") {
						line = append(line, buf[:n]...)
					}
					_, _ = conn.WriteTo(line, from)
				}
			}()
		}
		return nil
	}))
}

func answer(conn net.Conn, name string) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 1<<16)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if strings.HasPrefix(line, "BIG") {
			_, _ = conn.Write([]byte(line))
		}
		if _, err := fmt.Fprintf(conn, "%s %v %d\n", name, conn.RemoteAddr(), len(line)); err != nil {
			return
		}
	}
}

// reply is what a client sees of an answer.
type reply struct {
	server string
	// source is the client's address as the server saw it, and local as the client has it.
	source, local netip.AddrPort
	bytes         int
}

// kept reports whether the server saw the client's own address. Netfilter gives a connection another port if the client has two from one port, to two
// frontends of one endpoint.
func (r reply) kept() bool { return r.source.Addr() == r.local.Addr() }

func parse(line string, local net.Addr) (r reply, err error) {
	var source string
	if _, err := fmt.Sscanf(line, "%s %s %d", &r.server, &source, &r.bytes); err != nil {
		return r, fmt.Errorf("nobody in this lab answers %q", line)
	}
	from, err := netip.ParseAddrPort(source)
	at := netip.MustParseAddrPort(local.String())
	r.source = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	r.local = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	return r, err
}

// patience is how long an answer may take. Nodes start again slowly on a busy machine, and TCP then sends a lost packet again 25 s after the first
// time, or 51 s. It is only used up by a fault.
const patience = 60 * time.Second

// noKeepAlive has connections send nothing by themselves. A packet of an idle connection would get a reset while the node of its endpoint is silent and has no share.
const noKeepAlive = -1

// dial opens a connection from a host. A flow of UDP gets a port that no earlier one had: nodes could not tell the two from each other.
func (l *lab) dial(from, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = l.hosts[from].Do(func() error {
		dialer := net.Dialer{Timeout: patience, KeepAlive: noKeepAlive}
		for range 100 {
			if conn, err = dialer.Dial(network, to.String()); err != nil || network != "udp" {
				return err
			}
			if _, had := l.flows.LoadOrStore(flowOf{conn.LocalAddr().String(), to}, true); !had {
				return nil
			}
			_ = conn.Close()
		}
		return errors.New("earlier flows had all ports")
	})
	return conn, err
}

// flowOf identifies a flow of UDP by both ends.
type flowOf struct {
	local string
	to    netip.AddrPort
}

// ask opens a connection, or sends a datagram, and returns the answer.
func (l *lab) ask(from, network string, to netip.AddrPort) (reply, error) {
	conn, err := l.dial(from, network, to)
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	return exchange(conn, []byte("hello\n"))
}

// exchange sends a message and waits for the answer.
func exchange(conn net.Conn, message []byte) (reply, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return reply{}, err
	}
	if _, err := conn.Write(message); err != nil {
		return reply{}, err
	}
	if _, isUDP := conn.(*net.UDPConn); isUDP {
		buf := make([]byte, 1<<16)
		n, err := conn.Read(buf)
		if err != nil {
			return reply{}, err
		}
		line, _, _ := strings.Cut(string(buf[:n]), "\n")
		return parse(line, conn.LocalAddr())
	}
	r := bufio.NewReaderSize(conn, 1<<16)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return reply{}, err
		}
		if !strings.HasPrefix(line, "BIG") {
			return parse(line, conn.LocalAddr())
		}
	}
}

// flows are open connections that ask again and again.
type flows struct {
	t    testing.TB
	stop chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	servers map[string]int
	lost    map[string]int
	// moved are answers of another server than the first one, and changed those that saw another client.
	answers, moved, changed int
	gap                     time.Duration
}

const flowPause = 30 * time.Millisecond

// open opens n connections from the client, which ask until end is called.
func (l *lab) open(network string, to netip.AddrPort, n int) *flows {
	l.t.Helper()
	f := &flows{t: l.t, stop: make(chan struct{}), servers: map[string]int{}, lost: map[string]int{}}
	var ready sync.WaitGroup
	slots := make(chan struct{}, 32)
	for range n {
		ready.Add(1)
		f.wg.Go(func() {
			slots <- struct{}{}
			conn, err := l.dial("client", network, to)
			<-slots
			var first reply
			if err == nil {
				defer conn.Close()
				first, err = exchange(conn, []byte("hello\n"))
			}
			f.mu.Lock()
			if err != nil {
				f.lost["at first: "+cause(err)]++
			} else {
				f.servers[first.server]++
			}
			f.mu.Unlock()
			ready.Done()
			if err == nil {
				f.run(conn, first)
			}
		})
	}
	ready.Wait()
	return f
}

func (f *flows) run(conn net.Conn, first reply) {
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-f.stop:
			return
		case <-time.After(flowPause):
		}
		r, err := exchange(conn, []byte("hello\n"))
		f.mu.Lock()
		f.answers++
		f.gap = max(f.gap, time.Since(last)-flowPause)
		switch {
		case err != nil:
			f.lost[cause(err)]++
		case r.server != first.server:
			f.moved++
		case r.source != first.source:
			f.changed++
		}
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func cause(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	return err.Error()
}

// turn waits until each connection has asked about n times more.
func (f *flows) turn(n int) {
	f.mu.Lock()
	until := f.answers
	for _, c := range f.servers {
		until += n * c
	}
	f.mu.Unlock()
	for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(flowPause) {
		f.mu.Lock()
		over := f.answers >= until || len(f.lost) > 0
		f.mu.Unlock()
		if over {
			return
		}
	}
}

// end ends the connections, and reports what was wrong with them.
func (f *flows) end(what string) {
	f.t.Helper()
	close(f.stop)
	f.wg.Wait()
	if len(f.lost) > 0 || f.moved > 0 || f.changed > 0 {
		f.t.Errorf("%s: connections lost: %v; answers of another server: %d, to another client: %d, of %d (servers %v, longest gap %v)",
			what, f.lost, f.moved, f.changed, f.answers, f.servers, f.gap)
		return
	}
	f.t.Logf("%s: %d answers, servers %v, longest gap %v", what, f.answers, f.servers, f.gap)
}

// setDiscovery sets how a socket of UDP treats packets that are too large (IP_MTU_DISCOVER).
func setDiscovery(t testing.TB, conn net.Conn, how int) {
	t.Helper()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	must(t, err, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, how)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, how)
	}))
}

// families are the tests' families between nodes. The packets inside are of both.
var families = []state.Family{state.IPv4, state.IPv6}

// each runs a test once for each family between nodes, at the same time.
func each(t *testing.T, test func(t *testing.T, between state.Family)) {
	t.Parallel()
	for _, between := range families {
		t.Run("between nodes "+between.String(), func(t *testing.T) {
			t.Parallel()
			test(t, between)
		})
	}
}

// at returns a virtual address with a port, and a node's with one.
func at(vip netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(vip, port) }

// inFragments sends a datagram that needs fragments, and waits for the answer.
func (l *lab) inFragments(vip netip.Addr, message []byte) {
	l.t.Helper()
	conn, err := l.dial("client", "udp", at(vip, webPort))
	must(l.t, err)
	defer conn.Close()
	setDiscovery(l.t, conn, unix.IP_PMTUDISC_WANT)
	var r reply
	for range 3 { // the first fragments may be too large for the path
		if r, err = exchangeFor(conn, message, time.Second); err == nil {
			break
		}
	}
	if err != nil || r.bytes != len(message) || !r.kept() {
		l.t.Errorf("%v, %d bytes: %+v, %v", vip, len(message), r, err)
	}
}

// exchangeFor is exchange with another timeout.
func exchangeFor(conn net.Conn, message []byte, timeout time.Duration) (r reply, err error) {
	sooner := time.AfterFunc(timeout, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer sooner.Stop()
	return exchange(conn, message)
}

// sendSize returns how many bytes the segments of a connection have.
func sendSize(t testing.TB, conn net.Conn) (size int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		must(t, err)
		size = int(info.Snd_mss)
	}))
	return size
}

// askFrom connects from an address and port to the first virtual address, and resets the connection after an answer.
func (l *lab) askFrom(from netip.AddrPort) {
	l.t.Helper()
	must(l.t, l.hosts["client"].Do(func() error {
		dialer := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(from)}
		conn, err := dialer.Dial("tcp", at(vips[0], webPort).String())
		if err != nil {
			return err
		}
		_, err = exchange(conn, []byte("hello\n"))
		return errors.Join(err, conn.(*net.TCPConn).SetLinger(0), conn.Close())
	}))
}
