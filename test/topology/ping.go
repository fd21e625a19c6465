//go:build linux

package topology

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// pings numbers the echo requests of this process.
var pings atomic.Uint32

// Ping sends an echo request of ICMP to dst. The outcome is Answered by an echo reply of dst, and Refused or Unreachable by an error of ICMP. Of the
// options, Timeout and Source count. Answers have no server.
func (h *Host) Ping(ctx context.Context, dst netip.Addr, options ProbeOptions) Answer {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(options.Timeout, DefaultTimeout))
	defer cancel()
	start := time.Now()
	outcome, err := h.ping(ctx, dst, options.Source)
	return Answer{Outcome: outcome, Latency: time.Since(start), Err: err}
}

func (h *Host) ping(ctx context.Context, dst, source netip.Addr) (Outcome, error) {
	network, request, protocol := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho), unix.IPPROTO_ICMP
	if dst.Is6() {
		network, request, protocol = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest, unix.IPPROTO_ICMPV6
	}
	bindTo := ""
	if source.IsValid() {
		bindTo = source.String()
	}
	var conn net.PacketConn
	if err := h.ns.Do(func() (err error) { conn, err = net.ListenPacket(network, bindTo); return err }); err != nil {
		return Broken, fmt.Errorf("%s: open a socket for ICMP: %w", h.Name, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	// Connection tracking takes requests with the same identifier for one flow.
	echo := &icmp.Echo{ID: int(pings.Add(1) & 0xffff), Seq: 1, Data: []byte("hello")}
	// The kernel fills in the checksum for IPv6.
	packet, err := (&icmp.Message{Type: request, Body: echo}).Marshal(nil)
	if err != nil {
		return Broken, err
	}
	// EPERM shows that this host's own rules stopped the packet; whether they refuse or drop is still to be seen.
	if _, err := conn.WriteTo(packet, &net.IPAddr{IP: dst.AsSlice()}); err != nil && !errors.Is(err, unix.EPERM) {
		return OutcomeOf(err), err
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return OutcomeOf(err), err
		}
		m, err := icmp.ParseMessage(protocol, buf[:n])
		if err != nil {
			continue // of somebody else
		}
		if outcome, err := answerTo(echo, dst, from, m); outcome != Broken {
			return outcome, err
		}
	}
}

// answerTo returns what a message says about an echo request to dst, Broken if it is about something else.
func answerTo(echo *icmp.Echo, dst netip.Addr, from net.Addr, m *icmp.Message) (Outcome, error) {
	switch m.Type {
	case ipv4.ICMPTypeEchoReply, ipv6.ICMPTypeEchoReply:
		reply, ok := m.Body.(*icmp.Echo)
		switch {
		case !ok || reply.ID != echo.ID || reply.Seq != echo.Seq:
			return Broken, nil
		case from.String() != dst.String():
			return Unreachable, fmt.Errorf("%v replies to an echo request to %v", from, dst)
		}
		return Answered, nil
	case ipv4.ICMPTypeDestinationUnreachable, ipv6.ICMPTypeDestinationUnreachable:
		about, ok := m.Body.(*icmp.DstUnreach)
		if !ok || !quotes(about.Data, echo, dst) {
			return Broken, nil
		}
		const portUnreachable4, portUnreachable6 = 3, 4
		if m.Type == ipv4.ICMPTypeDestinationUnreachable && m.Code == portUnreachable4 || m.Type == ipv6.ICMPTypeDestinationUnreachable && m.Code == portUnreachable6 {
			return Refused, errors.New("port unreachable")
		}
		return Unreachable, fmt.Errorf("destination unreachable, code %d", m.Code)
	}
	return Broken, nil
}

// quotes reports whether a packet in an error is an echo request to dst.
func quotes(packet []byte, echo *icmp.Echo, dst netip.Addr) bool {
	header := 20
	if dst.Is6() {
		header = 40
	}
	if len(packet) < header+8 {
		return false
	}
	to, _ := netip.AddrFromSlice(packet[header-len(dst.AsSlice()) : header])
	return to == dst && int(binary.BigEndian.Uint16(packet[header+4:])) == echo.ID && int(binary.BigEndian.Uint16(packet[header+6:])) == echo.Seq
}
