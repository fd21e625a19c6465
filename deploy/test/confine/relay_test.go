package confine

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// relayConfig is a configuration file of mode userspace.
func (n *node) relayConfig(more string) string {
	n.Helper()
	text, err := os.ReadFile(n.config(more))
	if err != nil {
		n.Fatal(err)
	}
	return n.file("relay.yaml", strings.Replace(string(text), "mode: nftables", "mode: userspace", 1))
}

// echoes reports whether a datagram to the Service comes back.
func (n *node) echoes() bool {
	var conn net.Conn
	if err := n.ns.Do(func() (err error) { conn, err = net.Dial("udp", "10.96.0.10:53"); return err }); err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("hello"))
	answer := make([]byte, 10)
	size, err := conn.Read(answer)
	return err == nil && string(answer[:size]) == "hello"
}

// TestRelay is a node in mode userspace, with the capability that nftables takes, and a second process that replaces
// the first.
func TestRelay(t *testing.T) {
	n := newNode(t)
	var server net.PacketConn
	if err := n.ns.Do(func() (err error) { server, err = net.ListenPacket("udp", endpointAddr+":8053"); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		b := make([]byte, 100)
		for {
			size, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:size], from)
		}
	}()
	args := []string{"proxy", "--config", n.relayConfig(kernelSettings), "--master", "http://" + apiAddr}
	for range 2 {
		p := n.start(somebody, somebody, netAdmin, args...)
		n.eventually("the relay works", func() bool { return n.get("127.0.0.1:10249", "/proxyMode") == "200 userspace" })
		n.eventually("the node is healthy", func() bool { return strings.HasPrefix(n.get(nodeAddr+":10256", "/healthz"), "200") })
		n.eventually("connections to the cluster IP are relayed", n.routes(clusterAddr))
		n.eventually("connections to the node port are relayed", n.routes(nodeAddr+":"+nodePort))
		n.eventually("datagrams are relayed", n.echoes)
		p.stop()
		n.eventually("nftables takes over", n.routes(clusterAddr))
	}
}

// TestRelayWithoutRights serves a cluster IP on an address of the host, without a capability.
func TestRelayWithoutRights(t *testing.T) {
	n := newNode(t)
	config := n.relayConfig("userspace: {listen: ['127.0.0.1:18080=10.96.0.10:80/tcp']}\nlinux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0}}\n")
	p := n.start(somebody, somebody, nil, "proxy", "--config", config, "--master", "http://"+apiAddr)
	n.eventually("connections to the address of the host are relayed", n.routes("127.0.0.1:18080"))
	p.stop()
}
