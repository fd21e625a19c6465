package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// network stands in for the kernel.
type network struct {
	mu     sync.Mutex
	open   map[string]*listener
	errs   map[string]error // by address
	opened []string         // in order, also what failed
	block  chan struct{}    // if set, listening waits for it
}

type listener struct {
	network *network
	key     string
	once    sync.Once
	closed  chan struct{}
	broken  chan error
}

func (n *network) listen(_ context.Context, netw, address string) (net.Listener, error) {
	if n.block != nil {
		<-n.block
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := netw + " " + address
	n.opened = append(n.opened, key)
	if err := n.errs[address]; err != nil {
		return nil, err
	}
	if n.open[key] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &listener{network: n, key: key, closed: make(chan struct{}), broken: make(chan error, 1)}
	n.open[key] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case err := <-l.broken:
		return nil, err
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.open, l.key)
		close(l.closed)
	})
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

func (n *network) listening() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(n.open)), ", ")
}

// setErr makes address fail, or succeed again.
func (n *network) setErr(address string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.errs[address] = err
}

// takeOpened returns what was tried since the last call.
func (n *network) takeOpened() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() { n.opened = nil }()
	slices.Sort(n.opened)
	return strings.Join(n.opened, ", ")
}

// start runs a server on a network that is not real until the end of the test's bubble.
func start(t *testing.T) (*Server, *network, *[]string) { return startWith(t, Options{}) }

// startWith is like start, with other options than the callbacks.
func startWith(t *testing.T, o Options) (*Server, *network, *[]string) {
	n := &network{open: map[string]*listener{}, errs: map[string]error{}}
	var events []string
	o.Healthy = func() bool { return true }
	o.OnProblem = func(p Problem) { events = append(events, p.Error()) }
	s := New(o)
	s.listen = n.listen
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if open := n.listening(); open != "" {
			t.Errorf("still listening after the end: %s", open)
		}
	})
	return s, n, &events
}

func record(name string, port uint16, counts ...int) *state.Service {
	check := state.HealthCheck{Port: port}
	if len(counts) == 2 {
		check.LocalIPv4, check.LocalIPv6 = counts[0], counts[1]
	}
	return &state.Service{Name: state.ServiceName{Namespace: "d", Name: name}, HealthCheck: check}
}

func full(records ...*state.Service) *state.Update {
	return &state.Update{Full: true, Changed: records}
}

func delta(records ...*state.Service) *state.Update { return &state.Update{Changed: records} }

func removed(name string) *state.Update {
	return &state.Update{Removed: []state.ServiceName{{Namespace: "d", Name: name}}}
}

func TestListensWhereItShould(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n, events := start(t)
		expect := func(when, listening, opened string) {
			t.Helper()
			synctest.Wait()
			if got := n.listening(); got != listening {
				t.Errorf("%s: listens on %s, want %s", when, got, listening)
			}
			if got := n.takeOpened(); got != opened {
				t.Errorf("%s: opened %s, want %s", when, got, opened)
			}
		}
		s.Update(full(record("a", 101), record("b", 0)))
		expect("without addresses", "", "")
		s.SetAddresses(recordtest.Addrs("10.0.0.1", "fd00::1"))
		expect("with addresses", "tcp4 10.0.0.1:101, tcp6 [fd00::1]:101", "tcp4 10.0.0.1:101, tcp6 [fd00::1]:101")
		s.SetAddresses(recordtest.Addrs("10.0.0.2", "fd00::1"))
		expect("another address", "tcp4 10.0.0.2:101, tcp6 [fd00::1]:101", "tcp4 10.0.0.2:101")
		s.SetAddresses(AllAddresses(state.IPv4, state.IPv6))
		expect("all addresses", "tcp4 0.0.0.0:101, tcp6 [::]:101", "tcp4 0.0.0.0:101, tcp6 [::]:101")
		s.SetAddresses(recordtest.Addrs("10.0.0.1"))
		expect("one address", "tcp4 10.0.0.1:101", "tcp4 10.0.0.1:101")
		s.Update(delta(record("a", 101, 5, 5)))
		expect("other numbers", "tcp4 10.0.0.1:101", "")
		s.Update(delta(record("a", 102)))
		expect("another port", "tcp4 10.0.0.1:102", "tcp4 10.0.0.1:102")
		s.Update(delta(record("c", 103)))
		expect("another service", "tcp4 10.0.0.1:102, tcp4 10.0.0.1:103", "tcp4 10.0.0.1:103")
		s.Update(&state.Update{Changed: []*state.Service{record("a", 103), record("c", 102)}})
		expect("two that swap ports", "tcp4 10.0.0.1:102, tcp4 10.0.0.1:103", "")
		s.Update(removed("a"))
		expect("one gone", "tcp4 10.0.0.1:102", "")
		s.Update(&state.Update{Changed: []*state.Service{record("d", 102)}, Removed: removed("c").Removed})
		expect("renamed", "tcp4 10.0.0.1:102", "")
		s.Update(full(record("e", 104)))
		expect("all others gone", "tcp4 10.0.0.1:104", "tcp4 10.0.0.1:104")
		s.Update(delta(record("e", 0)))
		expect("no longer local", "", "")
		if len(*events) > 0 {
			t.Errorf("problems: %v", *events)
		}
	})
}

func TestPortInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n, events := start(t)
		inUse := &net.OpError{Op: "listen", Net: "tcp4", Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:101")), Err: syscall.EADDRINUSE}
		n.setErr("10.0.0.1:101", inUse)
		s.SetAddresses(recordtest.Addrs("10.0.0.1", "10.0.0.2"))
		s.Update(full(record("a", 101)))
		synctest.Wait()
		if got := n.listening(); got != "tcp4 10.0.0.2:101" {
			t.Errorf("listens on %s: one address must not keep another from being served", got)
		}
		want := "healthCheckNodePort 101 of service d/a: listen tcp4 10.0.0.1:101: address already in use; stop what listens on " +
			"TCP port 101 of this node, or give the service another healthCheckNodePort; will be retried"
		if len(*events) != 1 || (*events)[0] != want {
			t.Errorf("problems: %q\nwant %q", *events, want)
		}
		if p := s.Problems(); len(p) != 1 || !errors.Is(p[0], syscall.EADDRINUSE) {
			t.Errorf("problems: %v", p)
		}
		n.takeOpened()
		time.Sleep(time.Minute)
		// 0.1+0.2+...+6.4 s, and then every 10 s.
		if got := strings.Count(n.takeOpened(), "10.0.0.1:101"); got != 11 {
			t.Errorf("tried %d times in a minute, want 11", got)
		}
		if len(*events) != 1 {
			t.Errorf("the same problem was reported %d times", len(*events))
		}
		n.setErr("10.0.0.1:101", nil)
		time.Sleep(maxPause)
		if got := n.listening(); got != "tcp4 10.0.0.1:101, tcp4 10.0.0.2:101" || len(s.Problems()) > 0 {
			t.Errorf("after the port became free: listens on %s, problems %v", got, s.Problems())
		}
	})
}

func TestAddressThatIsNotThereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n, events := start(t)
		n.setErr("[fd00::1]:101", syscall.EADDRNOTAVAIL)
		s.SetAddresses(recordtest.Addrs("fd00::1"))
		s.Update(full(record("a", 101)))
		synctest.Wait()
		if len(*events) != 1 || !strings.Contains((*events)[0], "no interface of this node has the address fd00::1") {
			t.Errorf("problems: %v", *events)
		}
		s.SetAddresses(nil)
		synctest.Wait()
		if p := s.Problems(); len(p) > 0 {
			t.Errorf("problems of an address that is not served: %v", p)
		}
	})
}

func TestTwoServicesWantOnePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n, events := start(t)
		owner := func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.ports[101].owner.Name
		}
		s.SetAddresses(recordtest.Addrs("10.0.0.1"))
		s.Update(full(record("b", 101), record("c", 101)))
		synctest.Wait()
		if owner() != "b" {
			t.Errorf("%s has the port, want the first by name", owner())
		}
		s.Update(delta(record("a", 101), record("b", 101, 3, 3)))
		synctest.Wait()
		if owner() != "b" {
			t.Errorf("%s has the port, want who had it", owner())
		}
		var reported []string
		for _, name := range []string{"c", "a"} {
			reported = append(reported, fmt.Sprintf("healthCheckNodePort 101 of service d/%s: service d/b already uses this port; give one of them another healthCheckNodePort", name))
		}
		if !slices.Equal(*events, reported) {
			t.Errorf("problems: %q\nwant %q", *events, reported)
		}
		s.Update(removed("b"))
		synctest.Wait()
		if owner() != "a" || len(s.Problems()) != 1 {
			t.Errorf("%s has the port, problems %v", owner(), s.Problems())
		}
		s.Update(delta(record("c", 102)))
		synctest.Wait()
		if len(s.Problems()) != 0 || n.listening() != "tcp4 10.0.0.1:101, tcp4 10.0.0.1:102" {
			t.Errorf("listens on %s, problems %v", n.listening(), s.Problems())
		}
	})
}

func TestBrokenListenerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n, events := start(t)
		s.SetAddresses(recordtest.Addrs("10.0.0.1"))
		s.Update(full(record("a", 101)))
		synctest.Wait()
		n.open["tcp4 10.0.0.1:101"].broken <- errors.New("broken")
		synctest.Wait()
		if len(*events) != 1 || n.listening() != "" {
			t.Errorf("listens on %q, problems %v", n.listening(), *events)
		}
		time.Sleep(minPause)
		synctest.Wait()
		if n.listening() != "tcp4 10.0.0.1:101" || len(s.Problems()) > 0 {
			t.Errorf("listens on %q, problems %v", n.listening(), s.Problems())
		}
	})
}

// TestUpdatesDoNotWait: the reconciler must not be held up by a bind that takes its time.
func TestUpdatesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{open: map[string]*listener{}, errs: map[string]error{}, block: make(chan struct{})}
		s := New(Options{Healthy: func() bool { return true }})
		s.listen = n.listen
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx) })
		s.SetAddresses(recordtest.Addrs("10.0.0.1"))
		s.Update(full(record("a", 101)))
		synctest.Wait()
		for port := range uint16(100) {
			s.Update(delta(record(fmt.Sprint(port), 200+port)))
		}
		s.Problems()
		close(n.block)
		synctest.Wait()
		if got := len(n.open); got != 101 {
			t.Errorf("listens on %d ports, want 101", got)
		}
		cancel()
		wg.Wait()
	})
}

// TestPortIsWantedAgain: a service may come between the moment in which a port's sockets are closed and the one in which it is
// forgotten.
func TestPortIsWantedAgain(t *testing.T) {
	s := New(Options{Healthy: func() bool { return true }})
	r := &runner{Server: s}
	s.Update(full(record("a", 101), record("b", 102)))
	s.Update(full())
	_, unwanted := r.wanted()
	s.Update(full(record("c", 101)))
	r.forget(unwanted)
	if len(s.ports) != 1 || s.ports[101] == nil {
		t.Errorf("knows ports %v, want 101", slices.Collect(maps.Keys(s.ports)))
	}
}

// TestMovedServiceIsGoneFromItsOldPort is about requests to the old port that are under way.
func TestMovedServiceIsGoneFromItsOldPort(t *testing.T) {
	s := New(Options{Healthy: func() bool { return true }})
	s.Update(full(record("a", 101, 2, 2)))
	old := s.ports[101]
	s.Update(delta(record("a", 102, 2, 2)))
	if owner, n := s.local(old, state.IPv4); owner.Name != "a" || n != 0 {
		t.Errorf("the old port answers %v with %d endpoints, want none", owner, n)
	}
	if _, n := s.local(s.ports[102], state.IPv4); n != 2 {
		t.Errorf("the new port answers with %d endpoints, want 2", n)
	}
}
