package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
)

// localPorts serves NodePorts of TCP on ::1 in mode nftables (KEP-6032), where the NodePort addresses have it. The kernel cannot: it takes no answer to a
// translated connection from ::1. So a listener of this process accepts each connection, and continues it to an endpoint. NodePorts on 127.0.0.0/8 are
// translated as all others.
type localPorts struct {
	log    *slog.Logger
	inside *namespace.Namespace
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup

	changing sync.Mutex                           // held during changes of the listeners, before mu. It guards:
	services map[state.ServiceName]*state.Service // those with NodePorts of TCP over IPv6
	wanted   map[uint16]*localTarget              // including those without endpoints
	failing  map[uint16]localFailure              // why a port that is wanted cannot be listened on

	mu        sync.Mutex // never held for longer than a moment: connections wait for it
	listeners map[uint16]*localPort
	failures  uint64 // to listen
	open      int    // connections
}

// localTarget is where connections to a port go.
type localTarget struct {
	service   state.ServiceName
	endpoints []state.Endpoint
	affinity  time.Duration
}

// localFailure is why a port could not be listened on when that was last tried, and for which Service that was.
type localFailure struct {
	service state.ServiceName
	text    string
}

// localPort is a port that is listened on.
type localPort struct {
	*localPorts
	listener net.Listener
	open     int // of the connections that are open in all

	// Those below are guarded by mu of localPorts. All clients are ::1: so there is one endpoint with which they stay.
	target *localTarget
	pinned state.Endpoint
	until  time.Time
}

const (
	// maxLocalConnections is how many connections there may be in all, and maxPortConnections how many to each port. Others are closed.
	maxLocalConnections = 1024
	maxPortConnections  = 256
	localDialTimeout    = 5 * time.Second
	localDialAttempts   = 3
)

func newLocalPorts(inside *namespace.Namespace, log *slog.Logger) *localPorts {
	l := &localPorts{log: log, inside: inside, services: map[state.ServiceName]*state.Service{}, failing: map[uint16]localFailure{}, listeners: map[uint16]*localPort{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// apply takes over an update. If serves is false, another mode is in use: nothing is listened on. Ports that could not be listened on before are left
// to retry.
func (l *localPorts) apply(u *state.Update, serves bool) {
	u = u.For(0) // its relay draws evenly, and from single ports
	l.changing.Lock()
	defer l.changing.Unlock()
	for _, name := range u.Gone(maps.Keys(l.services)) {
		delete(l.services, name)
	}
	for _, svc := range u.Changed {
		l.services[svc.Name] = svc
	}
	l.wanted = map[uint16]*localTarget{}
	serves = serves && servesIPv6Loopback(u.Node)
	for name, svc := range l.services { // the range of NodePorts bounds how many there are
		has := false
		for port, target := range localNodePorts(svc) {
			has = true
			if serves {
				l.wanted[port] = target
			}
		}
		if !has {
			delete(l.services, name)
		}
	}
	for port := range l.failing {
		if l.wanted[port] == nil {
			delete(l.failing, port)
		}
	}
	l.listen(false)
}

// service returns the record of a Service that counts now, nil if there is none.
func (l *localPorts) service(name state.ServiceName) *state.Service {
	l.changing.Lock()
	defer l.changing.Unlock()
	return l.services[name]
}

// servesIPv6Loopback reports whether the NodePort addresses have ::1: a range that is no wider names it.
func servesIPv6Loopback(n *state.Node) bool {
	loopback := netip.IPv6Loopback()
	return n.NodePorts != nil && len(n.NodePorts.Select([]netip.Addr{loopback}, nil)) > 0
}

// localNodePorts goes through the NodePorts of TCP over IPv6, with where they lead for the node itself.
func localNodePorts(svc *state.Service) func(yield func(uint16, *localTarget) bool) {
	return func(yield func(uint16, *localTarget) bool) {
		for p, f := range svc.Frontends() {
			if p.Family == state.IPv6 && p.Protocol == state.TCP && f.Kind == state.NodePort &&
				!yield(f.Port, &localTarget{svc.Name, p.External.Inside.Endpoints, p.Affinity}) {
				return
			}
		}
	}
}

// retry listens on what could not be listened on before.
func (l *localPorts) retry() {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.listen(true)
}

// listen listens on the ports that are wanted and have endpoints, and on no others. It tries those again that failed before only if again is set.
// Connections that are open go on. The caller holds changing.
func (l *localPorts) listen(again bool) {
	for _, port := range l.missing() {
		before, service := l.failing[port], l.wanted[port].service
		if before.service == service && !again { // another Service is tried at once
			continue
		}
		var listener net.Listener
		err := l.inside.Do(func() (err error) {
			listener, err = net.Listen("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), port).String())
			return err
		})
		l.mu.Lock()
		if err != nil {
			l.failures++
		} else {
			p := &localPort{localPorts: l, listener: listener, target: l.wanted[port]}
			l.listeners[port] = p
			l.done.Go(p.accept)
		}
		l.mu.Unlock()
		switch {
		case err == nil:
			delete(l.failing, port)
		case before != (localFailure{service, err.Error()}):
			l.failing[port] = localFailure{service, err.Error()}
			l.log.Warn("cannot serve a NodePort on ::1, trying again", "service", service.String(), "port", port, "error", err,
				"remedy", localRemedy(err))
		}
	}
}

// localRemedy is what helps if a NodePort cannot be listened on.
func localRemedy(err error) string {
	if errors.Is(err, syscall.EACCES) {
		return "give this process the capability NET_BIND_SERVICE, which ports below 1024 need, or leave ::1/128 out of nodePortAddresses"
	}
	return "move the process that listens there to another port, or leave ::1/128 out of nodePortAddresses"
}

// missing stops listening on the ports that are not wanted, and has the others lead to where they should. It returns the ports on which
// nothing listens yet, ascending.
func (l *localPorts) missing() (ports []uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for port, p := range l.listeners {
		if t := l.wanted[port]; t != nil && len(t.endpoints) > 0 {
			p.target = t
			continue
		}
		p.listener.Close()
		delete(l.listeners, port)
	}
	for port, t := range l.wanted {
		if len(t.endpoints) > 0 && l.listeners[port] == nil {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return ports
}

// amounts returns how many ports are listened on, and how often that failed.
func (l *localPorts) amounts() (listeners int, failures uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.listeners), l.failures
}

// localRejects returns what the nftables dataplane in use has refused of NodePorts on loopback addresses.
func (s *switchable) localRejects() (rejects []metrics.LocalRejects) {
	d, ok := s.inUse().(localRejecting)
	if !ok {
		return nil
	}
	refused, err := d.LocalRejects()
	if err != nil {
		s.log.Warn("cannot read back how many packets to NodePorts on loopback addresses were refused", "error", err)
	}
	for _, r := range refused {
		rejects = append(rejects, metrics.LocalRejects(r))
	}
	return rejects
}

// close ends everything, connections too.
func (l *localPorts) close() {
	l.changing.Lock()
	l.wanted = nil
	l.listen(false)
	l.changing.Unlock()
	l.stop()
	l.done.Wait()
}

func (p *localPort) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if !p.admit() {
			conn.Close()
			continue
		}
		p.done.Go(func() {
			defer p.leave()
			p.relay(conn)
		})
	}
}

// admit counts a connection, unless there are too many.
func (p *localPort) admit() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.localPorts.open >= maxLocalConnections || p.open >= maxPortConnections {
		return false
	}
	p.localPorts.open++
	p.open++
	return true
}

func (p *localPort) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.localPorts.open--
	p.open--
}

// pick returns the endpoint of a new connection. After a failure, which ends affinity, it draws another time.
func (p *localPort) pick(failed bool) netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, t := time.Now(), p.target
	if failed || !now.Before(p.until) || !slices.Contains(t.endpoints, p.pinned) {
		p.pinned = t.endpoints[rand.IntN(len(t.endpoints))]
	}
	p.until = now.Add(t.affinity)
	return p.pinned.Addr
}

// relay continues a connection until both sides have ended.
func (p *localPort) relay(client net.Conn) {
	defer client.Close()
	server, err := p.dial()
	if err != nil {
		p.log.Debug("cannot continue a connection to a NodePort on ::1", "error", err)
		return
	}
	defer server.Close()
	defer context.AfterFunc(p.ctx, func() { client.Close(); server.Close() })()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			if _, err := io.Copy(way[1], way[0]); err != nil {
				client.Close() // the other direction also ends
				server.Close()
				return
			}
			_ = way[1].(*net.TCPConn).CloseWrite() // fails if the connection is gone
		})
	}
	both.Wait()
}

func (p *localPort) dial() (conn net.Conn, err error) {
	for attempt := range localDialAttempts {
		ctx, cancel := context.WithTimeout(p.ctx, localDialTimeout)
		conn, err = p.inside.DialTCP(ctx, p.pick(attempt > 0))
		cancel()
		if err == nil {
			return conn, nil
		}
	}
	return nil, fmt.Errorf("%d endpoints were tried: %w", localDialAttempts, err)
}
