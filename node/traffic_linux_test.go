package node_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/sockethooks"
)

// counted is a lone node whose metrics are read.
type counted struct {
	*loneNode
	addr netip.AddrPort
}

func newCounted(t *testing.T) *counted {
	return &counted{newLoneNode(t, config.ModeNFTables), freeAddress(t)}
}

// configure has it go on with another configuration.
func (n *counted) configure(mode config.Mode, counters bool, set ...func(*config.Config)) {
	n.t.Helper()
	c := *n.c
	c.Mode, c.NFTables.Counters, c.MetricsBindAddress = mode, counters, n.addr
	for _, s := range set {
		s(&c)
	}
	check(n.t, n.node.Reconfigure(&c))
}

// shows waits until the metrics have a text, or do not have it.
func (n *counted) shows(text string, want bool) {
	n.t.Helper()
	var last string
	await.Until(n.t, fmt.Sprintf("the metrics show %q: %v", text, want), func() bool {
		r, err := http.Get("http://" + n.addr.String() + "/metrics")
		if err != nil {
			return false // the server is about to listen there
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		check(n.t, err)
		last = string(body)
		return strings.Contains(last, text) == want
	}, func() any { return last })
}

const (
	counting = `switchyard_service_connections_total{namespace="",port="",service=""} 0`
	series   = `switchyard_service_connections_total{namespace="shop",port="TCP",service="web"} `
)

// TestTraffic: connections are counted and shown while the configuration wants that, also when it changes while the node runs.
func TestTraffic(t *testing.T) {
	n := newCounted(t)
	n.configure(config.ModeNFTables, true)
	n.shows(counting, true)
	for range 5 {
		check(t, n.once())
	}
	n.shows(series+"5\n", true)
	n.configure(config.ModeNFTables, false)
	n.shows("switchyard_service_", false)
}

// TestTrafficOfRelay: in mode userspace, nftables counts what it leads to the relay, and goes on when the mode changes.
func TestTrafficOfRelay(t *testing.T) {
	n := newCounted(t)
	udp := strings.Replace(series, "TCP", "UDP", 1)
	n.configure(config.ModeUserspace, true)
	n.shows(counting, true)
	for range 3 {
		check(t, n.once())
	}
	flow := n.flow()
	ask(t, flow)
	ask(t, flow)
	n.shows(series+"3\n", true)
	n.shows(udp+"1\n", true)
	open, err := n.dial()
	check(t, err)
	defer open.Close()
	check(t, exchange(open))
	n.configure(config.ModeNFTables, true)
	check(t, exchange(open)) // the relay still carries it
	n.shows(series+"4\n", true)
	check(t, n.once())
	n.shows(series+"5\n", true)
	n.configure(config.ModeUserspace, true)
	check(t, n.once())
	n.shows(series+"6\n", true)
	n.configure(config.ModeUserspace, false)
	n.shows("switchyard_service_", false)
}

// TestTrafficOfIPTables: sets of iptables count, too, and what they count adds to what another mode has counted.
func TestTrafficOfIPTables(t *testing.T) {
	if err := iptables.Available(); err != nil {
		t.Skip(err)
	}
	n := newCounted(t)
	n.configure(config.ModeNFTables, true)
	n.shows(counting, true)
	for range 2 {
		check(t, n.once())
	}
	n.shows(series+"2\n", true)
	n.configure(config.ModeIPTables, true)
	n.shows(`kubeproxy_sync_proxy_rules_iptables_restore_failures_total`, true)
	n.shows(`kubeproxy_iptables_ct_state_invalid_dropped_packets_total 0`, true)
	for range 3 {
		check(t, n.once())
	}
	n.shows(series+"5\n", true)
	n.configure(config.ModeNFTables, true)
	n.shows(`kubeproxy_sync_proxy_rules_iptables_restore_failures_total`, false)
	check(t, n.once())
	n.shows(series+"6\n", true)
	n.configure(config.ModeIPTables, true)
	n.shows(`kubeproxy_sync_proxy_rules_iptables_restore_failures_total`, true)
	check(t, n.once())
	n.shows(series+"7\n", true)
	n.configure(config.ModeIPTables, false)
	n.shows("switchyard_service_", false)
}

// TestTrafficOfLayers: in mode ebpf, what hooks take and what they leave to nftables counts once each, and goes on when the mode changes.
func TestTrafficOfLayers(t *testing.T) {
	namespaces, err := ebpf.NewNamespaces()
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	check(t, err)
	defer namespaces.Close()
	path, unpin, err := sockethooks.Pin(namespaces, t.TempDir())
	check(t, err)
	defer func() { check(t, unpin()) }()
	n := newCounted(t)
	check(t, n.ns.Do(func() error {
		cookie, err := ebpf.NamespaceCookie()
		return errors.Join(err, namespaces.AddNode(cookie))
	}))
	hooks := func(c *config.Config) { c.EBPF.NamespaceMap = path }
	datagram := func() { ask(t, n.flow()) }
	bound := func() {
		check(t, n.ns.Do(func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(endpoint)}, Timeout: 5 * time.Second}
			conn, err := d.Dial("tcp", clusterIP+":80")
			if err != nil {
				return err
			}
			return conn.Close()
		}))
	}
	udp := strings.Replace(series, "TCP", "UDP", 1)

	n.configure(config.ModeNFTables, true)
	n.shows(counting, true)
	for range 3 {
		check(t, n.once())
	}
	datagram()
	n.shows(series+"3\n", true)
	n.configure(config.ModeEBPF, true, hooks)
	n.shows("switchyard_socket_hooks_frontends 1\n", true)
	n.shows(series+"3\n", true)
	for range 4 {
		check(t, n.once())
	}
	n.shows(`switchyard_socket_hooks_connections_total{result="translated"} 4`, true)
	n.shows(series+"7\n", true)
	bound()
	datagram()
	n.shows(series+"8\n", true)
	n.shows(udp+"2\n", true)
	n.configure(config.ModeNFTables, true)
	n.shows("switchyard_socket_hooks", false)
	n.shows(series+"8\n", true)
	check(t, n.once())
	n.shows(series+"9\n", true)
	n.configure(config.ModeEBPF, true, hooks)
	n.shows("switchyard_socket_hooks_frontends 1\n", true)
	check(t, n.once())
	n.shows(series+"10\n", true)
	n.configure(config.ModeEBPF, false, hooks)
	n.shows("switchyard_service_", false)
}
