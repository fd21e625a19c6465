package edge_test

import (
	"net"
	"testing"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/state"
)

// TestOthersUsePort: netfilter may choose the port of the edge for a connection that it masquerades. Its answers come back.
func TestOthersUsePort(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1")
	l.pod("pa1")
	l.on(map[string]uint32{"b": 1})
	for _, vip := range vips {
		var r reply
		err := l.hosts["pa1"].Do(func() error {
			conn, err := net.DialUDP("udp", &net.UDPAddr{Port: edge.DefaultPort}, net.UDPAddrFromAddrPort(at(vip, webPort)))
			if err != nil {
				return err
			}
			defer conn.Close()
			r, err = exchange(conn, []byte("hello\n"))
			return err
		})
		if err != nil {
			t.Errorf("%v: %+v, %v; %v", vip, r, err, l.stats("a"))
		}
	}
}
