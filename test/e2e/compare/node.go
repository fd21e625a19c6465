//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

var (
	nodeAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:0:1::1")}
	podCIDRs  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")}
)

// node is a lab in which every endpoint of the cluster answers.
type node struct {
	*topology.Lab
	client *topology.Host
	server net.Listener
	// attempt is how long a connection may take. It bounds the error of the measurement, since nobody answers before
	// the proxy has programmed anything.
	attempt time.Duration
}

func newNode(ctx context.Context, attempt time.Duration) (*node, error) {
	l, err := topology.New(ctx, topology.Options{OtherPodCIDRs: []netip.Prefix{endpointCIDR, netip.MustParsePrefix("fd00:10:244:2::/64")}})
	if err != nil {
		return nil, err
	}
	n := &node{Lab: l, attempt: attempt}
	if n.client, err = l.AddPod(topology.PodOptions{Name: "client"}); err == nil {
		err = l.OtherNode().Do(n.serveAll)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return n, nil
}

// serveAll answers each connection to any endpoint with the address that it went to. It runs inside the other node.
func (n *node) serveAll() error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return err
	}
	all := &net.IPNet{IP: endpointCIDR.Addr().AsSlice(), Mask: net.CIDRMask(endpointCIDR.Bits(), 32)}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST}
	if err := nl.RouteReplace(route); err != nil {
		return fmt.Errorf("answer for %v: %w", endpointCIDR, err)
	}
	if n.server, err = net.Listen("tcp4", fmt.Sprintf(":%d", endpointPort)); err != nil {
		return err
	}
	go func() {
		for {
			conn, err := n.server.Accept()
			if err != nil {
				return
			}
			addr := netip.MustParseAddrPort(conn.LocalAddr().String())
			_, _ = io.WriteString(conn, addr.Addr().String()+" "+conn.RemoteAddr().String()+"\n")
			conn.Close()
		}
	}()
	return nil
}

func (n *node) close() error { return errors.Join(n.server.Close(), n.Close()) }

// answers returns who answers at a frontend, or nothing.
func (n *node) answers(ctx context.Context, dst netip.AddrPort) string {
	return n.client.Probe(ctx, state.TCP, dst, topology.ProbeOptions{Timeout: n.attempt}).Server
}
