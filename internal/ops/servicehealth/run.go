package servicehealth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// minPause and maxPause bound the time between two attempts to bind. It doubles with each.
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
	// stopTimeout is how long requests to a port that was closed may go on.
	stopTimeout = time.Second
)

// errTooManySockets is why a socket is not bound beyond [Options.MaxSockets].
var errTooManySockets = errors.New("no file descriptor left for this health check node port: too many are served")

// Run serves until ctx ends, and then returns nil with all ports closed. It is called once.
func (s *Server) Run(ctx context.Context) error {
	r := &runner{Server: s, sockets: map[netip.AddrPort]*socket{}}
	for ctx.Err() == nil {
		next := r.bind(ctx)
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer:
		}
	}
	for _, sock := range r.sockets {
		r.close(ctx, sock)
	}
	r.serving.Wait()
	return nil
}

// runner is one call of Run. Its fields are used by one goroutine only.
type runner struct {
	*Server
	sockets map[netip.AddrPort]*socket
	bound   int // sockets that are
	// serving has the servers, also those that are about to stop.
	serving sync.WaitGroup
}

// socket is an address and port to serve on.
type socket struct {
	addr netip.AddrPort
	port *port
	// listener and server are nil while it cannot be bound.
	listener net.Listener
	server   *http.Server
	// broken gets the reason if the server stops by itself.
	broken chan error

	err   error // why it cannot be bound
	pause time.Duration
	retry time.Time // when to retry
}

// bind brings the sockets in step with services and addresses, and returns when to retry, zero for never.
func (r *runner) bind(ctx context.Context) (next time.Time) {
	wanted, ports := r.wanted()
	for addr, sock := range r.sockets {
		if wanted[addr] == nil {
			r.close(ctx, sock)
			delete(r.sockets, addr)
		}
	}
	r.forget(ports)
	now := time.Now()
	// By port, so that it is certain which ones have no socket if there are too many.
	for _, addr := range slices.SortedFunc(maps.Keys(wanted), byPort) {
		sock := r.sockets[addr]
		if sock == nil {
			sock = &socket{addr: addr, port: wanted[addr]}
			r.sockets[addr] = sock
		}
		r.open(ctx, sock, now)
		if !sock.retry.IsZero() && (next.IsZero() || sock.retry.Before(next)) {
			next = sock.retry
		}
	}
	r.report()
	return next
}

func byPort(a, b netip.AddrPort) int {
	return cmp.Or(cmp.Compare(a.Port(), b.Port()), a.Addr().Compare(b.Addr()))
}

// wanted returns the addresses and ports to serve, and the ports that no service wants now.
func (r *runner) wanted() (wanted map[netip.AddrPort]*port, unwanted []uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted = map[netip.AddrPort]*port{}
	for number, p := range r.ports {
		if len(p.claimants) == 0 {
			unwanted = append(unwanted, number)
			continue
		}
		for _, addr := range r.addrs {
			wanted[netip.AddrPortFrom(addr, number)] = p
		}
	}
	return wanted, unwanted
}

// forget drops ports whose sockets are closed, unless they are wanted again by now.
func (r *runner) forget(ports []uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, number := range ports {
		if len(r.ports[number].claimants) == 0 {
			delete(r.ports, number)
		}
	}
}

// open binds a socket that is not bound, if it is time to.
func (r *runner) open(ctx context.Context, sock *socket, now time.Time) {
	if sock.listener != nil {
		select {
		case err := <-sock.broken:
			r.close(ctx, sock)
			sock.listener = nil
			r.failed(sock, err, now)
		default:
		}
		return
	}
	if sock.retry.After(now) {
		return
	}
	if r.bound == r.o.MaxSockets {
		r.failed(sock, errTooManySockets, now)
		return
	}
	network, family := "tcp4", state.IPv4
	if sock.addr.Addr().Is6() {
		network, family = "tcp6", state.IPv6
	}
	l, err := r.listen(ctx, network, sock.addr.String())
	if err != nil {
		r.failed(sock, err, now)
		return
	}
	sock.listener = l
	r.bound++
	sock.err, sock.pause, sock.retry = nil, 0, time.Time{}
	sock.server = httpserver.New(r.handler(sock.port, family), r.o.Logger)
	sock.broken = make(chan error, 1)
	server, broken, bounded := sock.server, sock.broken, sock.port.connections.Listener(l)
	r.serving.Go(func() {
		broken <- server.Serve(bounded)
		r.wakeUp()
	})
}

func (r *runner) failed(sock *socket, err error, now time.Time) {
	sock.err = err
	sock.pause = min(max(minPause, 2*sock.pause), maxPause)
	sock.retry = now.Add(sock.pause)
}

// close stops listening at once. Requests that are under way are answered, as ones to a service that has gone, unless ctx ends.
func (r *runner) close(ctx context.Context, sock *socket) {
	if sock.listener == nil {
		return
	}
	_ = sock.listener.Close()
	r.bound--
	server := sock.server
	// It closes idle connections. Shutdown would also drop requests that have arrived in part.
	server.SetKeepAlivesEnabled(false)
	r.serving.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(stopTimeout):
		}
		_ = server.Close()
	})
}

// report compares the current problems with the previous ones, and reports the difference.
func (r *runner) report() {
	r.mu.Lock()
	was := r.problems
	r.problems = r.conflicts()
	for _, sock := range r.sockets {
		if sock.err != nil {
			r.problems = append(r.problems, Problem{sock.port.owner, sock.addr.Port(), explain(sock)})
		}
	}
	slices.SortFunc(r.problems, compareProblems)
	is := r.problems
	r.mu.Unlock()

	for _, p := range without(is, was) {
		r.o.Logger.Warn("cannot serve health check node port", "service", p.Service.String(), "port", p.Port, "error", p.Err)
		if r.o.OnProblem != nil {
			r.o.OnProblem(p)
		}
	}
	for _, p := range without(was, is) {
		r.o.Logger.Info("health check node port problem resolved", "service", p.Service.String(), "port", p.Port, "was", p.Err)
	}
}

// without returns the problems of a that are not in b. Both are sorted.
func without(a, b []Problem) (rest []Problem) {
	for _, p := range a {
		for len(b) > 0 && compareProblems(b[0], p) < 0 {
			b = b[1:]
		}
		if len(b) == 0 || compareProblems(b[0], p) != 0 {
			rest = append(rest, p)
		}
	}
	return rest
}

// conflicts returns the services whose port another service has. The caller holds mu.
func (s *Server) conflicts() []Problem {
	var found []Problem
	for number, p := range s.ports {
		for name := range p.claimants {
			if name != p.owner {
				found = append(found, Problem{name, number, fmt.Errorf("service %v already uses this port; give one of them another healthCheckNodePort", p.owner)})
			}
		}
	}
	return found
}

// explain describes what keeps a socket from being bound, and what to do about it.
func explain(sock *socket) error {
	remedy := "will be retried"
	switch {
	case sock.err == errTooManySockets:
		remedy = "raise the process's limit of open files (LimitNOFILE= of a systemd unit, ulimit -n), or have fewer such services"
	case errors.Is(sock.err, syscall.EADDRINUSE):
		remedy = fmt.Sprintf("stop what listens on TCP port %d of this node, or give the service another healthCheckNodePort; %s", sock.addr.Port(), remedy)
	case errors.Is(sock.err, syscall.EADDRNOTAVAIL):
		remedy = fmt.Sprintf("no interface of this node has the address %v: leave it out of the node port addresses, or configure it; %s", sock.addr.Addr(), remedy)
	}
	return fmt.Errorf("%w; %s", sock.err, remedy)
}
