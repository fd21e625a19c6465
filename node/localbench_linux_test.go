package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// localBench has a relay for NodePorts on ::1 in a namespace, without a node.
type localBench struct {
	*localPorts
	t          *testing.T
	ns         *netns.NS
	plane      *localPlane
	reconciler *backend.Reconciler
	logs       strings.Builder
}

func newLocalBench(t *testing.T) *localBench {
	b := &localBench{t: t, ns: netnstest.New(t)}
	var inside *namespace.Namespace
	noError(t, b.ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			inside, err = namespace.Current()
		}
		return err
	}))
	b.localPorts = newLocalPorts(inside, slog.New(slog.NewTextHandler(&b.logs, nil)))
	b.plane = &localPlane{ports: b.localPorts}
	b.reconciler = backend.NewReconciler(b.plane)
	t.Cleanup(func() {
		b.close()
		noError(t, inside.Close())
	})
	return b
}

// servesLocalhost is a node whose NodePort addresses have ::1.
var servesLocalhost = &state.Node{NodePorts: &state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("::1/128")}}}

// localPlane is a dataplane that refuses some records.
type localPlane struct {
	backend.None
	ports   *localPorts
	refuses []*state.Service
}

func (d *localPlane) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	refused := map[state.ServiceName]error{}
	for _, svc := range u.Changed {
		if slices.Contains(d.refuses, svc) {
			refused[svc.Name] = errors.New("it does not fit")
		}
	}
	if len(refused) > 0 {
		return backend.Result{}, &backend.RefusedError{Services: refused}
	}
	d.ports.apply(u, true)
	return backend.Result{}, nil
}

// update applies an update, but for records that are refused.
func (b *localBench) update(u *state.Update, refused ...*state.Service) {
	b.t.Helper()
	u.Node = servesLocalhost
	b.plane.refuses = refused
	if _, err := b.reconciler.Apply(b.t.Context(), u); err != nil {
		b.t.Fatal(err)
	}
}

// localService is a Service with NodePorts that lead to an endpoint.
func localService(name string, endpoint netip.AddrPort, nodePorts ...uint16) *state.Service {
	route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: endpoint, Local: true}}}
	p := state.Port{Name: "web", Family: state.IPv6, Protocol: state.TCP, External: state.Traffic{Inside: route, Outside: route}}
	for _, port := range nodePorts {
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.NodePort, Port: port})
	}
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}, Ports: []state.Port{p}}
}

// TestPendingConnectionsTakeNoThreads has many clients of a NodePort on ::1 whose endpoint does not answer.
func TestPendingConnectionsTakeNoThreads(t *testing.T) {
	const clients, port = 200, 34070
	b := newLocalBench(t)
	silent := b.silence(t)
	b.update(&state.Update{Changed: []*state.Service{localService("silent", silent, port)}})
	before := threads(t)
	for range clients {
		noError(t, b.ns.Do(func() error {
			conn, err := net.DialTimeout("tcp6", fmt.Sprintf("[::1]:%d", port), 20*time.Second)
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			return err
		}))
	}
	await.Until(t, "all connections to the endpoint are pending", func() bool { return b.pending(t, silent) >= clients }, func() any { return b.pending(t, silent) })
	if grown := threads(t) - before; grown > clients/4 {
		t.Errorf("%d pending connections take %d threads", clients, grown)
	}
}

// TestLocalNodePortsOfFailedServices: a Service whose change has failed loses the NodePort that another one has got, be it in the same update or in a later one.
func TestLocalNodePortsOfFailedServices(t *testing.T) {
	for name, after := range map[string]func(b *localBench, changed, other *state.Service){
		"in the same update": func(b *localBench, changed, other *state.Service) {
			b.update(&state.Update{Changed: []*state.Service{changed, other}}, changed)
		},
		"in a later update": func(b *localBench, changed, other *state.Service) {
			b.update(&state.Update{Changed: []*state.Service{changed}}, changed)
			b.update(&state.Update{Changed: []*state.Service{other}})
		},
		"in a full update": func(b *localBench, changed, other *state.Service) {
			b.update(&state.Update{Full: true, Changed: []*state.Service{changed, other}}, changed)
		},
		"which is removed later": func(b *localBench, changed, other *state.Service) {
			b.update(&state.Update{Changed: []*state.Service{changed, other}}, changed)
			b.update(&state.Update{Changed: []*state.Service{localService("more", other.Ports[0].External.Inside.Endpoints[0].Addr, 34082)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLocalBench(t)
			own, others := netip.MustParseAddrPort("[fd00::1]:80"), netip.MustParseAddrPort("[fd00::2]:80")
			for round := range 20 { // the order of a map must not decide
				before, changed := localService("a", own, 34080, 34081), localService("a", own, 34081)
				b.update(&state.Update{Full: true, Changed: []*state.Service{before}})
				after(b, changed, localService("b", others, 34080))
				for port, want := range map[uint16]netip.AddrPort{34080: others, 34081: own} {
					if got := b.listeners[port].pick(true); got != want {
						t.Fatalf("round %d: [::1]:%d leads to %v, want %v", round, port, got, want)
					}
				}
			}
		})
	}
}

// TestLocalNodePortThatFails: updates of other Services neither try a NodePort again on which another process listens, nor warn of it again.
func TestLocalNodePortThatFails(t *testing.T) {
	b := newLocalBench(t)
	var other net.Listener
	noError(t, b.ns.Do(func() (err error) { other, err = net.Listen("tcp6", "[::1]:34090"); return err }))
	to := netip.MustParseAddrPort("[fd00::1]:80")
	b.update(&state.Update{Changed: []*state.Service{localService("a", to, 34090)}})
	for range 100 {
		b.update(&state.Update{Changed: []*state.Service{localService("b", to, 34091)}})
	}
	shows := func(when string, wantListeners int, wantFailures uint64) {
		t.Helper()
		listeners, failures := b.amounts()
		if warnings := strings.Count(b.logs.String(), "level=WARN"); listeners != wantListeners || failures != wantFailures || warnings != 1 {
			t.Fatalf("%s: %d listeners, %d failures, %d warnings; want %d, %d, 1:\n%s", when, listeners, failures, warnings, wantListeners, wantFailures, b.logs.String())
		}
	}
	shows("after updates of others", 1, 1)
	b.retry()
	b.retry()
	shows("after verifies", 1, 3)
	noError(t, other.Close())
	b.retry()
	shows("once the port is free", 2, 3)
}

// TestRemedyForLowLocalNodePort: the remedy for a port that takes a right is the right.
func TestRemedyForLowLocalNodePort(t *testing.T) {
	err := &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", unix.EACCES)}
	if got := localRemedy(err); !strings.Contains(got, "NET_BIND_SERVICE") {
		t.Errorf("the remedy for %v is: %s", err, got)
	}
}

// silence returns an address that answers to no new connection: its queue is full.
func (b *localBench) silence(t *testing.T) (at netip.AddrPort) {
	noError(t, b.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 0); err != nil {
			return err
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		at = netip.AddrPortFrom(netip.IPv6Loopback(), uint16(name.(*unix.SockaddrInet6).Port))
		conn, err := net.DialTimeout("tcp6", at.String(), 20*time.Second)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return err
	}))
	return at
}

// pending returns how many connections to an address wait for an answer.
func (b *localBench) pending(t *testing.T, to netip.AddrPort) (n int) {
	const waits = " 02 "
	noError(t, b.ns.Do(func() error {
		table, err := os.ReadFile("/proc/thread-self/net/tcp6")
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, fmt.Sprintf(":%04X%s", to.Port(), waits)) {
				n++
			}
		}
		return err
	}))
	return n
}

func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	noError(t, err)
	return len(entries)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
