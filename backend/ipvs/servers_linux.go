package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/state"
)

// kernelServers are the virtual servers of the kernel. An ipvs.Conn is one.
type kernelServers interface {
	Servers() ([]ipvs.Server, error)
	Dests(*ipvs.Server) ([]ipvs.Dest, error)
	AddServer(*ipvs.Server) error
	SetServer(*ipvs.Server) error
	DeleteServer(*ipvs.Server) error
	AddDests(*ipvs.Server, []ipvs.Dest) (refused map[int]error)
	SetDest(*ipvs.Server, *ipvs.Dest) error
	DeleteDest(*ipvs.Server, *ipvs.Dest) error
	Timeouts() (ipvs.Timeouts, error)
	SetTimeouts(ipvs.Timeouts) error
	Close() error
}

// servers are the virtual servers of ours, those that are desired and those that the kernel holds.
type servers struct {
	kernel    kernelServers
	scheduler string
	// abrupt is set if connections to TCP endpoints end as soon as those are gone.
	abrupt       bool
	drainTimeout time.Duration

	byKey map[plan.Key]*server
	// draining are the servers with endpoints that go when their connections have ended.
	draining map[plan.Key]bool
	// holding are the frontends of servers that the kernel holds.
	holding frontends
	written int
}

// server is one virtual server.
type server struct {
	// want is nil if no new connections come.
	want  *plan.Server
	owner state.ServiceName
	// shown is what the tables have of it.
	shown *plan.Server
	// keep are endpoints that keep their UDP flows while want is nil, in order.
	keep []state.Endpoint
	// held is what the kernel has, nil if it has no such server.
	held *held
}

type held struct {
	as    ipvs.Server
	dests map[netip.AddrPort]*dest
}

type dest struct {
	weight uint32
	// until is when it goes, whatever connections it has; zero if it has not been asked to go.
	until time.Time
}

func newServers(k kernelServers) *servers {
	return &servers{kernel: k, byKey: map[plan.Key]*server{}, draining: map[plan.Key]bool{}, holding: frontends{unknown: true}}
}

// name returns what identifies a server in the kernel.
func name(k plan.Key) *ipvs.Server {
	return &ipvs.Server{Protocol: uint8(k.Protocol), Addr: k.Addr}
}

func keyOf(s *ipvs.Server) plan.Key {
	return plan.Key{Protocol: state.Protocol(s.Protocol), Addr: s.Addr}
}

// read records what the kernel holds at the addresses that ours returns true for, and at the addresses of servers that are known.
func (s *servers) read(ours func(plan.Key) bool) error {
	list, err := s.kernel.Servers()
	if err != nil {
		return err
	}
	found := make(map[plan.Key]*held, len(list))
	for i := range list {
		v := &list[i]
		k := keyOf(v)
		if v.Mark != 0 || s.byKey[k] == nil && !ours(k) {
			continue
		}
		h := &held{as: *v, dests: map[netip.AddrPort]*dest{}}
		dests, err := s.kernel.Dests(v)
		if err != nil {
			return err
		}
		for _, d := range dests {
			h.dests[d.Addr] = &dest{weight: d.Weight}
		}
		found[k] = h
	}
	s.holding.replace(maps.Keys(found))
	for k, v := range s.byKey {
		was := v.held
		if v.held = found[k]; v.held != nil && was != nil {
			for addr, d := range v.held.dests {
				if before := was.dests[addr]; before != nil {
					d.until = before.until
				}
			}
		}
		delete(found, k)
	}
	for k, h := range found {
		s.byKey[k] = &server{held: h}
	}
	return nil
}

// sync makes a server in the kernel as desired.
func (s *servers) sync(k plan.Key, now time.Time) error {
	v := s.byKey[k]
	if v == nil {
		return nil
	}
	if v.want != nil {
		if err := s.serve(k, v); err != nil {
			return err
		}
	}
	if v.held != nil {
		for _, addr := range slices.SortedFunc(maps.Keys(v.held.dests), netip.AddrPort.Compare) {
			if v.want != nil && v.want.Has(addr) {
				v.held.dests[addr].until = time.Time{}
				continue
			}
			if err := s.letGo(k, v, addr, now); err != nil {
				return fmt.Errorf("virtual server %v: endpoint %v: %w", k, addr, err)
			}
		}
	}
	return s.end(k, v)
}

// serve has a server take new connections.
func (s *servers) serve(k plan.Key, v *server) error {
	as := name(k)
	if as.Scheduler = s.scheduler; v.want.Counts {
		as.Scheduler = countingScheduler
	}
	switch {
	case v.held == nil:
		err := s.kernel.AddServer(as)
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("virtual server %v: somebody else has just made it: name its address in ipvs.excludeCIDRs if it is theirs", k)
		}
		if err != nil {
			return explain(as, k, err)
		}
		s.written++
		v.held = &held{*as, map[netip.AddrPort]*dest{}}
		s.holding.put(k, true)
	case v.held.as != *as:
		if err := s.kernel.SetServer(as); err != nil {
			return explain(as, k, err)
		}
		s.written++
		v.held.as = *as
	}
	var added []ipvs.Dest
	for _, e := range v.want.Endpoints {
		to := ipvs.Dest{Addr: e.Addr, Weight: max(1, uint32(e.Weight))}
		d := v.held.dests[e.Addr]
		if d == nil {
			added = append(added, to)
			continue
		}
		if d.weight == to.Weight {
			continue
		}
		if err := s.kernel.SetDest(as, &to); err != nil {
			return fmt.Errorf("virtual server %v: endpoint %v: %w", k, e.Addr, err)
		}
		s.written++
		d.weight, d.until = to.Weight, time.Time{}
	}
	refused := s.kernel.AddDests(as, added)
	var err error
	for i, to := range added {
		if refused[i] != nil {
			err = cmp.Or(err, fmt.Errorf("virtual server %v: endpoint %v: %w", k, to.Addr, refused[i]))
			continue
		}
		s.written++
		v.held.dests[to.Addr] = &dest{weight: to.Weight}
	}
	return err
}

// explain returns why the kernel refuses a server.
func explain(as *ipvs.Server, k plan.Key, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return noScheduler(as.Scheduler)
	}
	return fmt.Errorf("virtual server %v: %w", k, err)
}

func noScheduler(name string) error {
	return fmt.Errorf("ipvs.scheduler %q: this kernel has no such scheduler: it would be in the module ip_vs_%s", name, name)
}

// letGo makes an endpoint of a server get no new connections. Those that it has go on for some time, but for flows of UDP, which do so only
// while the endpoint serves.
func (s *servers) letGo(k plan.Key, v *server, addr netip.AddrPort, now time.Time) error {
	keeps := v.want != nil && v.want.Keeps(addr)
	if v.want == nil {
		_, keeps = slices.BinarySearchFunc(v.keep, addr, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	}
	if !keeps && (k.Protocol == state.UDP || k.Protocol == state.TCP && s.abrupt) {
		return s.remove(k, v, addr)
	}
	d := v.held.dests[addr]
	if d.weight != 0 {
		if err := s.kernel.SetDest(name(k), &ipvs.Dest{Addr: addr}); err != nil {
			return err
		}
		s.written++
		d.weight = 0
	}
	if v.want != nil && keeps {
		d.until = time.Time{}
		return nil
	}
	if d.until.IsZero() {
		d.until = now.Add(s.drainTimeout)
	}
	s.draining[k] = true
	return nil
}

func (s *servers) remove(k plan.Key, v *server, addr netip.AddrPort) error {
	if err := s.kernel.DeleteDest(name(k), &ipvs.Dest{Addr: addr}); err != nil {
		return err
	}
	s.written++
	delete(v.held.dests, addr)
	return nil
}

// end deletes a server that is not desired and has no endpoints left.
func (s *servers) end(k plan.Key, v *server) error {
	if v.want != nil || v.held != nil && len(v.held.dests) > 0 {
		return nil
	}
	if v.held != nil {
		if err := s.kernel.DeleteServer(name(k)); err != nil {
			return fmt.Errorf("virtual server %v: %w", k, err)
		}
		s.written++
		s.holding.put(k, false)
	}
	delete(s.byKey, k)
	delete(s.draining, k)
	return nil
}

// drain lets endpoints go that have no connections, of count servers at most, and reports which servers are gone.
func (s *servers) drain(now time.Time, count int) (ended []plan.Key, err error) {
	var errs []error
	for k := range s.draining {
		if count--; count < 0 {
			break
		}
		gone, err := s.drainOne(k, now)
		errs = append(errs, err)
		if gone {
			ended = append(ended, k)
		}
	}
	slices.SortFunc(ended, plan.Key.Compare)
	return ended, errors.Join(errs...)
}

func (s *servers) drainOne(k plan.Key, now time.Time) (ended bool, err error) {
	v := s.byKey[k]
	if v == nil || v.held == nil {
		delete(s.draining, k)
		return false, nil
	}
	dests, err := s.kernel.Dests(name(k))
	if err != nil {
		return false, err
	}
	for _, in := range dests {
		d := v.held.dests[in.Addr]
		if d == nil || d.until.IsZero() {
			continue
		}
		if in.Active+in.Inactive == 0 || !now.Before(d.until) {
			if err := s.remove(k, v, in.Addr); err != nil {
				return false, fmt.Errorf("virtual server %v: endpoint %v: %w", k, in.Addr, err)
			}
		}
	}
	waiting := false
	for _, d := range v.held.dests {
		waiting = waiting || !d.until.IsZero()
	}
	if !waiting {
		delete(s.draining, k)
	}
	err = s.end(k, v)
	return s.byKey[k] == nil, err
}

// checkScheduler returns an error if the kernel does not have the scheduler. It asks by a server for a mark that no packet has, for a moment.
func checkScheduler(k kernelServers, scheduler string) error {
	probe := &ipvs.Server{Mark: probeMark, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 0), Scheduler: scheduler}
	err := k.AddServer(probe)
	if errors.Is(err, unix.ENOENT) {
		return noScheduler(scheduler)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("making a virtual server: %w", err)
	}
	return k.DeleteServer(probe)
}

// probeMark is "swyd".
const probeMark = 0x73777964
