package node_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// localNode is a lone node whose Service has NodePorts of TCP in both families, and an endpoint in each.
type localNode struct {
	*counted
	service *state.Service
}

const localPort = 30080

func newLocalNode(t *testing.T) *localNode {
	n := &localNode{counted: newCounted(t)}
	var service *state.Service
	for _, svc := range n.feed.Services() {
		copied := *svc
		service = &copied
	}
	service.Ports = nil
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		addr := netip.MustParseAddr(endpoint)
		if f == state.IPv6 {
			addr = netip.MustParseAddr("fd00:10:244::1")
		}
		route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.AddrPortFrom(addr, 8080), Local: true}}}
		service.Ports = append(service.Ports, state.Port{
			Name: "web", Family: f, Protocol: state.TCP, Frontends: []state.Frontend{{Kind: state.NodePort, Port: localPort}},
			Internal: state.Traffic{Inside: route, Outside: route}, External: state.Traffic{Inside: route, Outside: route, Masquerade: state.MasqueradeAlways},
		})
	}
	n.service = service
	check(t, n.ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, _ := netlink.ParseAddr("fd00:10:244::1/128")
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return err
		}
		server, err := net.Listen("tcp", "[fd00:10:244::1]:8080")
		if err != nil {
			return err
		}
		t.Cleanup(func() { server.Close() })
		go echo(server)
		return nil
	}))
	n.feed.Publish([]*state.Service{service})
	return n
}

// dialPort connects to the NodePort at an address.
func (n *localNode) dialPort(at string) (conn net.Conn, err error) {
	err = n.ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(at, fmt.Sprint(localPort)), 5*time.Second)
		return err
	})
	return conn, err
}

// sayHello sends a line and waits for it to come back.
func sayHello(conn net.Conn) error {
	err := conn.SetDeadline(time.Now().Add(20 * time.Second))
	if err == nil {
		_, err = fmt.Fprintln(conn, "hello")
	}
	if err == nil {
		_, err = bufio.NewReader(conn).ReadString('\n')
	}
	return err
}

func (n *localNode) reach(at string) {
	n.t.Helper()
	conn, err := n.dialPort(at)
	if err == nil {
		err = errors.Join(sayHello(conn), conn.Close())
	}
	if err != nil {
		n.t.Fatalf("NodePort at %s: %v", at, err)
	}
}

// TestLocalNodePorts: with localhost among the NodePort addresses, mode nftables serves NodePorts of TCP on the loopback addresses of both families. Nothing
// listens on ::1 by default, nor in other modes. Connections go on when the mode changes.
func TestLocalNodePorts(t *testing.T) {
	n := newLocalNode(t)
	const listeners = `kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"} `
	on := func(c *config.Config) { c.NodePortAddresses.Localhost = true }
	n.configure(config.ModeNFTables, false)
	n.shows(listeners+"0\n", true)
	if conn, err := n.dialPort("::1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without localhost: %v, %v", conn, err)
	}
	n.configure(config.ModeNFTables, false, on)
	n.shows(listeners+"1\n", true)
	for _, at := range []string{"127.0.0.1", "::1"} {
		n.reach(at)
	}
	open, err := n.dialPort("::1")
	check(t, err)
	defer open.Close()
	check(t, sayHello(open))

	none := *n.service
	none.Ports = slices.Clone(none.Ports)
	none.Ports[1].External = state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Reject}}
	n.feed.Publish([]*state.Service{&none})
	n.shows(listeners+"0\n", true)
	if conn, err := n.dialPort("::1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without endpoints: %v, %v", conn, err)
	}
	n.feed.Publish([]*state.Service{n.service})
	n.shows(listeners+"1\n", true)

	n.configure(config.ModeUserspace, false, on)
	n.shows(listeners, false)
	check(t, sayHello(open))
	n.configure(config.ModeNFTables, false, on)
	n.shows(listeners+"1\n", true)
	n.reach("::1")
}

// TestLocalNodePortsRefused: with localhost among the NodePort addresses, UDP to ::1 is refused even if a program listens there, and so are Services without
// endpoints on the loopback addresses of both families. That is counted, and nothing else (KEP-6032).
func TestLocalNodePortsRefused(t *testing.T) {
	n := newLocalNode(t)
	const clusterIP = "10.96.0.99"
	service := *n.service
	for _, p := range n.service.Ports {
		datagrams, without := p, p
		datagrams.Name, datagrams.Protocol, datagrams.Frontends = "udp", state.UDP, []state.Frontend{{Kind: state.NodePort, Port: localPort}}
		without.Name, without.Frontends = "none", []state.Frontend{{Kind: state.NodePort, Port: localPort + 1}}
		without.External = state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Reject}, Masquerade: state.MasqueradeAlways}
		if p.Family == state.IPv4 {
			without.Internal = without.External
			without.Frontends = append(without.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: netip.MustParseAddr(clusterIP), Port: localPort + 1})
		}
		service.Ports = append(service.Ports, datagrams, without)
	}
	n.feed.Publish([]*state.Service{&service})
	rejected := func(family, protocol string, packets int) string {
		return fmt.Sprintf("kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family=%q,protocol=%q} %d\n", family, protocol, packets)
	}
	n.configure(config.ModeNFTables, false)
	n.shows("kubeproxy_nftables_localhost_nodeport_listeners", true)
	n.shows("localhost_nodeport_rejected_packets_total", false)
	n.configure(config.ModeNFTables, false, func(c *config.Config) { c.NodePortAddresses.Localhost = true })
	n.shows(rejected("IPv6", "UDP", 0), true)

	check(t, n.ns.Do(func() error {
		other, err := net.ListenPacket("udp6", fmt.Sprintf("[::1]:%d", localPort))
		if err == nil {
			t.Cleanup(func() { other.Close() })
		}
		return err
	}))
	for _, at := range []string{"::1", "127.0.0.1", clusterIP} {
		check(t, n.ns.Do(func() error {
			conn, err := net.Dial("tcp", net.JoinHostPort(at, fmt.Sprint(localPort+1)))
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("without endpoints, at %s: %v, %v", at, conn, err)
			}
			if at == clusterIP {
				return nil
			}
			udp, err := net.Dial("udp", net.JoinHostPort(at, fmt.Sprint(localPort)))
			if err != nil {
				return err
			}
			defer udp.Close()
			check(t, udp.SetDeadline(time.Now().Add(20*time.Second)))
			_, err = udp.Write([]byte("hello"))
			if at == "::1" {
				if !errors.Is(err, unix.EPERM) { // so a rule that refuses what the node sends tells
					t.Errorf("UDP to %s: %v", at, err)
				}
				return nil
			}
			if err == nil {
				_, err = udp.Read(make([]byte, 10))
			}
			return err
		}))
	}
	n.reach("::1")
	n.reach("127.0.0.1")
	n.shows(rejected("IPv6", "TCP", 1)+rejected("IPv6", "UDP", 1), true)
	n.shows(rejected("IPv4", "TCP", 1), true)
	n.shows(rejected("IPv4", "UDP", 0), true)
	n.shows(rejected("IPv6", "SCTP", 0), true)

	n.configure(config.ModeNFTables, false)
	n.shows("localhost_nodeport_rejected_packets_total", false)
}

// TestLocalNodePortIsTaken: a port on which somebody else listens is counted as a failure, and served once it is free.
func TestLocalNodePortIsTaken(t *testing.T) {
	n := newLocalNode(t)
	var other net.Listener
	check(t, n.ns.Do(func() (err error) { other, err = net.Listen("tcp6", fmt.Sprintf("[::1]:%d", localPort)); return err }))
	on := func(c *config.Config) {
		c.NodePortAddresses.Localhost, c.SyncPeriod.Duration = true, time.Second
	}
	n.configure(config.ModeNFTables, false, on)
	n.shows(`kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv6"} 0`, false)
	check(t, other.Close())
	n.shows(`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"} 1`, true)
	n.reach("::1")
}

// TestNeighboursCannotReachLoopback has a neighbour send packets to NodePorts on loopback addresses of the node, from an address that the node would answer. None
// gets there (CVE-2020-8558).
func TestNeighboursCannotReachLoopback(t *testing.T) {
	n := newLocalNode(t)
	n.configure(config.ModeNFTables, false, func(c *config.Config) { c.NodePortAddresses.Localhost = true })
	n.shows(`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"} 1`, true)
	neighbour := netnstest.New(t)
	var mac net.HardwareAddr // the node's
	check(t, n.ns.Do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "n0"}, PeerName: "n1"}
		check(t, neighbour.Fd(func(fd int) error { link.PeerNamespace = netlink.NsFd(fd); return netlink.LinkAdd(link) }))
		n0, err := netlink.LinkByName("n0")
		if err != nil {
			return err
		}
		mac = n0.Attrs().HardwareAddr
		for _, text := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
			addr, _ := netlink.ParseAddr(text)
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(n0, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(n0)
	}))
	check(t, neighbour.Do(func() error {
		n1, err := netlink.LinkByName("n1")
		if err != nil {
			return err
		}
		for _, text := range []string{"192.0.2.2/24", "2001:db8::2/64"} {
			addr, _ := netlink.ParseAddr(text)
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(n1, addr); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(n1); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300) // ETH_P_ALL
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
			return err
		}
		at := &unix.SockaddrLinklayer{Ifindex: n1.Attrs().Index, Protocol: 0x0300}
		if err := unix.Bind(fd, at); err != nil {
			return err
		}
		// The last one goes to an address that nobody keeps from the neighbour, at a port that refuses: after its answer all others would have come.
		for _, to := range []string{"127.0.0.1", "::1", "192.0.2.1"} {
			frame := syn(n1.Attrs().HardwareAddr, mac, netip.MustParseAddr(to))
			if err := unix.Sendto(fd, frame, 0, at); err != nil {
				return err
			}
		}
		buf := make([]byte, 2000)
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
			size, from, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			source, isTCP := answerFrom(buf[:size])
			switch {
			case !isTCP:
			case source == netip.MustParseAddr("192.0.2.1"):
				return nil
			default:
				return fmt.Errorf("an answer from %v", source)
			}
		}
		return errors.New("no answer at all")
	}))
}

// syn is the first packet of a connection from the neighbour to the NodePort at an address of the node.
func syn(from, to net.HardwareAddr, dst netip.Addr) []byte {
	src, etherType := netip.MustParseAddr("192.0.2.2"), uint16(unix.ETH_P_IP)
	port := uint16(localPort)
	if dst.Is6() {
		src, etherType = netip.MustParseAddr("2001:db8::2"), unix.ETH_P_IPV6
	}
	if !dst.IsLoopback() {
		port = 9
	}
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment[0:], 40000)
	binary.BigEndian.PutUint16(segment[2:], port)
	binary.BigEndian.PutUint32(segment[4:], 1)
	segment[12], segment[13] = 5<<4, 0x02
	binary.BigEndian.PutUint16(segment[14:], 500)
	binary.BigEndian.PutUint16(segment[16:], netnstest.Checksum(src.AsSlice(), dst.AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, 20}, segment))
	var header []byte
	if dst.Is6() {
		header = append([]byte{6 << 4, 0, 0, 0, 0, 20, unix.IPPROTO_TCP, 64}, slices.Concat(src.AsSlice(), dst.AsSlice())...)
	} else {
		header = append([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}, slices.Concat(src.AsSlice(), dst.AsSlice())...)
		binary.BigEndian.PutUint16(header[10:], netnstest.Checksum(header))
	}
	return slices.Concat(to, from, binary.BigEndian.AppendUint16(nil, etherType), header, segment)
}

// answerFrom returns the source of a segment of TCP to the neighbour's port.
func answerFrom(frame []byte) (source netip.Addr, ok bool) {
	if len(frame) < 14+40 {
		return source, false
	}
	packet := frame[14:]
	switch packet[0] >> 4 {
	case 4:
		source, ok = netip.AddrFromSlice(packet[12:16])
		return source, ok && packet[9] == unix.IPPROTO_TCP
	case 6:
		source, ok = netip.AddrFromSlice(packet[8:24])
		return source, ok && packet[6] == unix.IPPROTO_TCP
	}
	return source, false
}
