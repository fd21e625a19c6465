//go:build linux

package topology

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// Outcome is the outcome of a probe.
type Outcome uint8

// The outcomes.
const (
	// Broken is any other failure, such as a reset of an established connection.
	Broken Outcome = iota
	// Answered by a server.
	Answered
	// Refused by a TCP reset or an ICMP port unreachable.
	Refused
	// TimedOut without a sign.
	TimedOut
	// Unreachable says an ICMP message other than port unreachable, or this host's own routing.
	Unreachable
)

func (o Outcome) String() string {
	switch o {
	case Broken:
		return "broken"
	case Answered:
		return "answered"
	case Refused:
		return "refused"
	case TimedOut:
		return "timed out"
	case Unreachable:
		return "unreachable"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// DefaultTimeout is how long a probe waits by default: longer than TCP's first retransmission.
const DefaultTimeout = 3 * time.Second

// maxResends is how often a datagram is sent again, see ProbeOptions.Resend.
const maxResends = 3

// ProbeOptions are the client's side of a probe.
type ProbeOptions struct {
	// Timeout is for the whole probe. Default: [DefaultTimeout].
	Timeout time.Duration
	// Source is one of the host's addresses. Default: the kernel's choice.
	Source netip.Addr
	// SourcePort is the client's port. Default: the kernel's choice.
	SourcePort uint16
	// Resend is after how long a datagram that has not been answered is sent again, three times at most. Default: never. Streams send
	// again anyway.
	Resend time.Duration
}

// Answer is the outcome of a probe.
type Answer struct {
	Outcome Outcome
	// Server and Source are the answering server's name and the client address that it saw, if Outcome is Answered.
	Server string
	Source netip.AddrPort
	// Resent is how many segments of a TCP connection the client's kernel sent again, if Outcome is Answered. These segments or their answers
	// were lost.
	Resent int
	// Latency is the time to the outcome.
	Latency time.Duration
	// Err is why Outcome is not Answered.
	Err error
}

// Probe connects to dst, or sends it a datagram, and waits for the line of a server started by [Host.Serve].
func (h *Host) Probe(ctx context.Context, proto state.Protocol, dst netip.AddrPort, options ProbeOptions) Answer {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(options.Timeout, DefaultTimeout))
	defer cancel()
	start := time.Now()
	answer := h.probe(ctx, proto, dst, options)
	answer.Latency = time.Since(start)
	return answer
}

func (h *Host) probe(ctx context.Context, proto state.Protocol, dst netip.AddrPort, options ProbeOptions) Answer {
	conn, err := h.Dial(ctx, proto, dst, netip.AddrPortFrom(options.Source, options.SourcePort))
	if err != nil {
		return Answer{Outcome: OutcomeOf(err), Err: err}
	}
	defer conn.Close()
	stream, isStream := conn.(*net.TCPConn) // also SCTP's: package net knows it by no other name
	if isStream {
		// Close by a reset: no TIME_WAIT, so the same source port can be used again at once.
		_ = stream.SetLinger(0)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if proto == state.UDP {
		// EPERM shows that this host's own rules stopped the datagram; whether they refuse or drop is still to be seen.
		if _, err := conn.Write([]byte("hello\n")); err != nil && !errors.Is(err, unix.EPERM) {
			return Answer{Outcome: OutcomeOf(err), Err: err}
		}
		if options.Resend > 0 {
			for i := range maxResends {
				again := time.AfterFunc(time.Duration(i+1)*options.Resend, func() { _, _ = conn.Write([]byte("hello\n")) })
				defer again.Stop()
			}
		}
	}
	answer, err := ReadAnswer(bufio.NewReader(conn))
	if err != nil {
		return Answer{Outcome: OutcomeOf(err), Err: err}
	}
	if isStream && proto == state.TCP {
		if answer.Resent, err = resent(stream); err != nil {
			return Answer{Outcome: Broken, Err: err}
		}
	}
	return answer
}

// resent returns how many segments the kernel sent again.
func resent(conn *net.TCPConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	ctlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(ctlErr, err); err != nil {
		return 0, fmt.Errorf("reading TCP_INFO: %w", err)
	}
	return int(info.Total_retrans), nil
}

// ReadAnswer reads one line of a server started by [Host.Serve]. The outcome is Answered unless it returns an error.
func ReadAnswer(r *bufio.Reader) (Answer, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	name, client, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	source, err := netip.ParseAddrPort(client)
	if err != nil {
		return Answer{}, fmt.Errorf("no server of this lab answers %q: %w", line, err)
	}
	return Answer{Outcome: Answered, Server: name, Source: source}, nil
}

// ProbeMany sends n probes, as many of them at once as parallel says, and returns all answers. If the options have a source
// port, it is the first of n consecutive ones.
func (h *Host) ProbeMany(ctx context.Context, n, parallel int, proto state.Protocol, dst netip.AddrPort, options ProbeOptions) []Answer {
	answers := make([]Answer, n)
	slots := make(chan struct{}, max(parallel, 1))
	var wg sync.WaitGroup
	for i := range answers {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			options := options
			if options.SourcePort != 0 {
				options.SourcePort += uint16(i)
			}
			answers[i] = h.Probe(ctx, proto, dst, options)
		})
	}
	wg.Wait()
	return answers
}

// Dial opens a connection from the host; for UDP it only connects the socket. The zero address and the port 0 in source leave
// the choice to the kernel. It may be used until it is closed, from anywhere.
func (h *Host) Dial(ctx context.Context, proto state.Protocol, dst, source netip.AddrPort) (net.Conn, error) {
	fd, err := h.socket(proto, dst.Addr())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	file := os.NewFile(uintptr(fd), "connection")
	defer file.Close() // the connection works on a duplicate
	if proto == state.SCTP {
		source, err = h.prepareSCTP(fd, dst, source)
	}
	if err == nil {
		err = bind(fd, proto, dst, source)
	}
	if err == nil {
		err = connect(ctx, file, dst)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: connect to %v %v: %w", h.Name, proto, dst, err)
	}
	return net.FileConn(file)
}

// prepareSCTP makes an SCTP socket behave like the sockets of other protocols, and returns the source for it.
//
// It asks for ICMP errors, because otherwise SCTP takes them for temporary and retries. It also chooses a source address. An unbound socket
// announces all the host's addresses to the server, which then also sends packets to the other addresses. NAT does not translate announced
// addresses. If it changes the port, those packets arrive at a port without a socket, and the answer to them aborts the connection.
func (h *Host) prepareSCTP(fd int, dst, source netip.AddrPort) (netip.AddrPort, error) {
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if dst.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return source, os.NewSyscallError("setsockopt", err)
	}
	if source.Addr().IsValid() {
		return source, nil
	}
	addr, err := h.sourceFor(dst)
	return netip.AddrPortFrom(addr, source.Port()), err
}

// sourceFor returns the address that the kernel chooses for packets to dst.
func (h *Host) sourceFor(dst netip.AddrPort) (netip.Addr, error) {
	fd, err := h.socket(state.UDP, dst.Addr())
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(dst)); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	name, err := unix.Getsockname(fd)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(name.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(name.Addr), nil
	}
	return netip.Addr{}, os.NewSyscallError("getsockname", err)
}

func bind(fd int, proto state.Protocol, dst, source netip.AddrPort) error {
	if source == (netip.AddrPort{}) {
		return nil
	}
	addr := source.Addr()
	if !addr.IsValid() {
		addr = netip.IPv4Unspecified()
		if dst.Addr().Is6() {
			addr = netip.IPv6Unspecified()
		}
	}
	if proto != state.UDP {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, source.Port()))))
}

// connect connects a non-blocking socket and waits for it without holding a thread.
func connect(ctx context.Context, file *os.File, dst netip.AddrPort) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := file.SetDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var result error
	started := false
	err = raw.Write(func(fd uintptr) (done bool) {
		if !started {
			started = true
			result = unix.Connect(int(fd), sockaddr(dst))
			return result != unix.EINPROGRESS
		}
		var pending bool
		result, pending = connectResult(int(fd))
		return !pending
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("connect", result)
}

// connectResult returns how an attempt to connect ended. The poller also wakes up sockets whose attempt is still pending.
func connectResult(fd int) (result error, pending bool) {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err, false
	}
	if code != 0 {
		return syscall.Errno(code), false
	}
	_, err = unix.Getpeername(fd)
	return nil, err == unix.ENOTCONN
}

// OutcomeOf returns what an error of a connection means for a probe.
func OutcomeOf(err error) Outcome {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return TimedOut
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		return Unreachable
	}
	return Broken
}
