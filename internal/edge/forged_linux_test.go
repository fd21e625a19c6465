package edge_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// TestMasqueradedForgery: what a node masquerades for pods and clients has the address of the node. It does not get to another node as if this node had handed it
// over. Packets that are none of the edge's get through.
func TestMasqueradedForgery(t *testing.T) {
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			t.Parallel()
			masqueradedForgery(t, family)
		})
	}
}

func masqueradedForgery(t *testing.T, family state.Family) {
	const leads, plain = 7777, 7778
	l := newLab(t, family, "pb1", "pc1")
	l.on(map[string]uint32{"b": 1, "c": 1})
	i := slices.Index([]state.Family{state.IPv4, state.IPv6}, family)
	b, c, table, all := nodeIPs("b")[i], nodeIPs("c")[i], []string{"ip", "ip6"}[i], []string{"10.244.0.0/16", "fd00:10:244::/48"}[i]
	// Plugins of the network masquerade what pods send to others than pods. A Service may lead its clients to any address.
	l.nft("c", fmt.Sprintf(`
table %[1]s plugin {
	chain prerouting {
		type nat hook prerouting priority -105
		udp dport %[2]d dnat to %[3]s
	}
	chain postrouting {
		type nat hook postrouting priority 90
		%[1]s saddr %[4]s %[1]s daddr != %[4]s masquerade
		meta l4proto udp ct original proto-dst %[2]d masquerade
	}
}
`, table, leads, netip.AddrPortFrom(b, edge.DefaultPort), all))
	listen := func(host string, at netip.AddrPort) <-chan string {
		heard := make(chan string, 100)
		must(t, l.hosts[host].Do(func() error {
			conn, err := net.ListenPacket("udp", at.String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			go func() {
				buf := make([]byte, 1500)
				for {
					n, _, err := conn.ReadFrom(buf)
					if err != nil {
						return
					}
					heard <- string(buf[:n])
				}
			}()
			return nil
		}))
		return heard
	}
	send := func(from string, to netip.AddrPort, text []byte) {
		t.Helper()
		conn, err := l.dial(from, "udp", to)
		must(t, err)
		defer conn.Close()
		_, err = conn.Write(text)
		must(t, err)
	}

	victim := at(clientIPs[0], 5000)
	answers := listen("client", victim)
	forged := append(header(1, 0, 0), datagram(victim, at(vips[0], webPort), "hello\n")...)
	for from, to := range map[string]netip.AddrPort{"pc1": at(b, edge.DefaultPort), "client": at(c, leads)} {
		before := l.stats("c")[programs.Forged]
		await.Until(t, "node c drops forged packets from "+from, func() bool {
			send(from, to, forged)
			return l.stats("c")[programs.Forged] > before
		}, func() any { return l.stats("c") })
	}
	for host, at := range map[string]netip.AddrPort{"client": at(clientIPs[i], edge.DefaultPort), "b": at(b, plain)} { // no node, and another port of a node
		heard := listen(host, at)
		await.Until(t, fmt.Sprintf("%v gets packets of a pod", at), func() bool {
			send("pc1", at, []byte("hello"))
			select {
			case <-heard:
				return true
			case <-time.After(100 * time.Millisecond):
				return false
			}
		})
	}
	select {
	case line := <-answers:
		t.Errorf("an answer to a forged packet: %q", line)
	case <-time.After(300 * time.Millisecond):
	}
	if s := l.stats("b"); s[programs.TakenIn] != 0 || s[programs.Foreign] != 0 {
		t.Errorf("node b got forged packets: %v", s)
	}

	// What nodes hand over and pass on gets through, and so do probes.
	if _, err := l.ask("client", "tcp", at(vips[i], webPort)); err != nil {
		t.Error(err)
	}
	if s := l.stats("a"); s[programs.HandedOver] == 0 || s[programs.Forged] != 0 {
		t.Errorf("node a: %v", s)
	}
	await.Until(t, "node c answers probes", func() bool { return l.stats("c")[programs.Probe] > 0 })
}
