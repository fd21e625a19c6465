package netnstest

import (
	"net"
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/test/netns"
)

// Do calls a function in a namespace, such as a [netns.NS] or a [topology.Host]. It fails the test if the function returns an error.
func Do(t testing.TB, ns interface{ Do(func() error) error }, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// Outward makes a device with addresses: see [netns.NS.Outward].
func Outward(t testing.TB, ns *netns.NS, prefixes ...string) {
	t.Helper()
	if err := ns.Outward(prefixes...); err != nil {
		t.Fatal(err)
	}
}

// Datagram sends a datagram of UDP from a port. It ignores the error of the socket if the datagram is rejected or dropped.
func Datagram(t testing.TB, ns *netns.NS, port int, to netip.AddrPort) {
	t.Helper()
	Do(t, ns, func() error {
		conn, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		_, _ = conn.Write([]byte("first"))
		return conn.Close()
	})
}
