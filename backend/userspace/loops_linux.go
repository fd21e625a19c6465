package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// A connection of the relay must not come back to the relay. Endpoints that are frontends of the relay get no connections. In addition,
// each relay decrements the hop limit of relayed traffic, as a router does. This ends loops that no single node can see.

var (
	errLeadsBack = errors.New("is a cluster IP, a frontend of the Service itself or a listener of the relay, and gets no connections: remove it from the EndpointSlice")
	errHops      = errors.New("is used up: connections to the Service come back to it, mostly through another node, or the client sends with hop limit 1; " +
		"remove addresses of nodes and of Services from its EndpointSlices, or look at the client")
)

// leadsBack reports whether the relay would get its own connections to an endpoint of a service.
func (r *relay) leadsBack(name state.ServiceName, k plan.Kind, endpoint netip.AddrPort) bool {
	isListener := func(at netip.AddrPort, of state.Protocol) bool {
		return of == k.Protocol && at.Port() == endpoint.Port() &&
			(at.Addr() == endpoint.Addr() || at.Addr().IsUnspecified() && r.isLocal(endpoint.Addr()))
	}
	if slices.ContainsFunc(r.streams, func(l *streamListener) bool { return isListener(l.at, l.kind.Protocol) }) ||
		slices.ContainsFunc(r.datagrams, func(l *datagramListener) bool { return isListener(l.at, l.kind.Protocol) }) {
		return true
	}
	if r.tracked == nil { // without a base, other frontends are not the relay's
		return false
	}
	r.tableMu.RLock()
	defer r.tableMu.RUnlock()
	return r.table.LeadsBack(name, k, endpoint, r.isLocal)
}

func (r *relay) isLocal(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(r.addrs.Addrs(), addr, netip.Addr.Compare)
	return found || addr.IsLoopback() || addr.IsUnspecified()
}

// problem is what the relay could not do for a service, and when.
type problem struct {
	err error
	at  time.Time
}

// isOver reports whether nothing was wrong for so long that others had no reason to say so.
func (p problem) isOver(now time.Time) bool { return now.Sub(p.at) >= ledger.CrowdedFor }

// noteProblem records the current problem of a service.
func (r *relay) noteProblem(name state.ServiceName, err error) {
	r.problemsMu.Lock()
	defer r.problemsMu.Unlock()
	now := time.Now()
	if last, noted := r.problems[name]; !noted || last.isOver(now) {
		r.log.Warn("the relay does not serve all of a service", "service", name.String(), "error", err)
	}
	r.problems[name] = problem{err, now}
}

// clearProblem clears the problem of a service.
func (r *relay) clearProblem(name state.ServiceName) {
	r.problemsMu.Lock()
	defer r.problemsMu.Unlock()
	delete(r.problems, name)
}

// Features implements [backend.Featured]. The base answers echo requests.
func (b *Backend) Features() state.Features {
	return state.Weights | state.Balances | state.DrainDeadline | backend.FeaturesOf(b.base)&state.Ping
}

// Problems returns the ports of the relay that other programs hold, and the failures of services within the last minute. It also returns
// why connections and flows ended in that minute to make room for others, and which services are not hashed. It may be called at any time.
func (b *Backend) Problems() []error {
	r, errs := b.relay, b.relay.crowding()
	r.tableMu.RLock()
	defer r.tableMu.RUnlock()
	r.problemsMu.Lock()
	defer r.problemsMu.Unlock()
	for _, t := range b.taken {
		errs = append(errs, t.err)
	}
	errs = append(errs, r.table.Problems()...)
	now := time.Now()
	maps.DeleteFunc(r.problems, func(name state.ServiceName, p problem) bool { return p.isOver(now) || r.table.Get(name) == nil })
	for i, name := range slices.SortedFunc(maps.Keys(r.problems), state.ServiceName.Compare) {
		if i == maxProblems {
			return append(errs, fmt.Errorf("and %d services more", len(r.problems)-maxProblems))
		}
		errs = append(errs, fmt.Errorf("service %v: %w", name, r.problems[name].err))
	}
	return errs
}

// maxProblems is how many services are named.
const maxProblems = 20

// usualHops is the usual hop limit of sockets, and the highest one for relayed traffic.
const usualHops = 64

// hopsLeft returns the hop limit of relayed packets, if they have come with the hop limit came. 0 is too low.
func hopsLeft(came int) int { return min(max(came-1, 0), usualHops) }

// hopsOf returns the hop limit with which the client's last packet of the handshake has come. Linux keeps it in the field of an
// accepted socket that holds the hop limit of multicast packets (mc_ttl and mcast_hops), for IP_PKTOPTIONS.
func hopsOf(fd int, of netip.Addr) (came int, err error) {
	if of.Is4() {
		came, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL)
	} else {
		came, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS)
	}
	return came, os.NewSyscallError("getsockopt", err)
}

// limitHops has a socket send with a hop limit.
func limitHops(fd int, f state.Family, hops int) error {
	if f == state.IPv4 {
		return os.NewSyscallError("setsockopt IP_TTL", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops))
	}
	return os.NewSyscallError("setsockopt IPV6_UNICAST_HOPS", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops))
}

// learnHops has a listener for datagrams report the hop limit of each.
func learnHops(fd int, at netip.Addr) error {
	var err error
	if at.Is6() { // it may get datagrams of both families
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
	}
	return os.NewSyscallError("setsockopt", err)
}

// hopsIn returns the hop limit in what came with a datagram, 0 if there is none.
func hopsIn(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		isHops := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if isHops && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
