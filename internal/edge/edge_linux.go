package edge

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/internal/kernel/bpfarray"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
)

// Edge hands connections from outside over to the nodes that serve them. Its methods may be called concurrently.
type Edge struct {
	settings Settings
	ns       *namespace.Namespace

	mu     sync.Mutex // guards all below
	closed bool
	maps   *ebpf.Collection
	peers  *peers
	ports  *ports
	// attached are the programs at each device, by its name. They are there from the first Apply on.
	attached map[string]*programs.Attached
	// node is the node of the last update, nil before the first one.
	node *state.Node
	// lacking is why the programs are not at all devices.
	lacking error
	timer   *time.Timer
	prober  prober
	network network
	// silent is the list of Silent.
	silent atomic.Pointer[[]string]
}

// frontendsPerTable is how many frontends of each family there is room for, for each table.
const frontendsPerTable, leastFrontends, mostFrontends = 4, 1024, 1 << 18

func (s *Settings) programs() programs.Settings {
	frontends := max(leastFrontends, min(mostFrontends, frontendsPerTable*(s.MaxSlots/s.TableSize)))
	return programs.Settings{
		Port: s.Port, Mark: s.Mark, MTU: uint32(s.MTU), TableSize: uint32(s.TableSize), Slots: uint32(s.MaxSlots), Frontends: uint32(frontends), XDP: s.XDP,
	}
}

// Available returns why the edge cannot run with these settings on this kernel. It attaches nothing.
func Available(s Settings) error {
	s, err := s.complete()
	if err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	s.MaxSlots = s.TableSize // for the probe
	c, err := programs.Load(s.programs())
	if err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	c.Close()
	return nil
}

// Open loads the programs in the calling thread's network namespace. They do nothing before the first Apply. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and Linux 6.6; the
// error says what is missing. The caller must Close the edge.
func Open(s Settings) (*Edge, error) {
	s, err := s.complete()
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	e := &Edge{settings: s, attached: map[string]*programs.Attached{}, network: newNetwork()}
	if e.ns, err = namespace.Current(); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	if err := e.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("edge: %w", err), e.Close())
	}
	return e, nil
}

func (e *Edge) load() (err error) {
	if e.maps, err = programs.Load(e.settings.programs()); err != nil {
		return err
	}
	e.peers = newPeers(e.maps, &e.settings)
	e.ports = &ports{
		settings: &e.settings, v4: e.maps.Maps["frontends4"], v6: e.maps.Maps["frontends6"], nodePortsVar: e.maps.Variables["node_ports"], peers: e.peers,
		ranges:   plan.NewRanges(e.settings.MaxSlots, e.settings.TableSize),
		services: map[state.ServiceName]*state.Service{}, byName: map[PortName]*port{}, frontends: map[state.FrontendKey]*frontend{}, left: map[PortName]error{}, earlier: map[plan.Number]bool{},
		shares: map[uint32]int{},
	}
	e.ports.slots, err = bpfarray.Of(e.maps.Maps["slots"])
	return err
}

// Apply makes the edge show u. Netfilter must show u as well, except for the services in failed. For these, the edge stays as it is until an update has
// them again. The first update must be full. It attaches the programs at its end.
//
// Ports that cannot be served are left to netfilter, and [Status] has the reasons. An error means that no new connections are handed over, or not at all devices. The
// next Apply and Verify try again. The update is not modified, and its records are kept.
func (e *Edge) Apply(u *state.Update, failed map[state.ServiceName]error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("edge: %w", os.ErrClosed)
	}
	if e.node == nil && !u.Full {
		return errors.New("edge: the first update is not full")
	}
	again := e.node == nil || !e.node.Equal(u.Node)
	e.node = u.Node
	return e.apply(u, failed, again)
}

// apply applies an update. If again is set, it also looks at nodes and devices, as it does if these had errors.
func (e *Edge) apply(u *state.Update, failed map[state.ServiceName]error, again bool) error {
	now := time.Now()
	e.ports.expire(now)
	again = again || e.ports.refused != nil
	var cluster *cluster
	var err error
	if again {
		cluster, err = e.peers.extend(u.Node)
		e.ports.refused = err
	}
	for _, name := range u.Gone(maps.Keys(e.network.samples)) {
		e.network.sample(name, nil)
	}
	for _, name := range u.Gone(maps.Keys(e.ports.services)) {
		if failed[name] == nil {
			err = errors.Join(err, e.ports.replace(name, nil, now))
		}
	}
	for _, record := range u.Changed {
		e.network.sample(record.Name, record)
		if failed[record.Name] == nil {
			err = errors.Join(err, e.ports.replace(record.Name, record, now))
		}
	}
	if err == nil && again {
		var gone []plan.Number
		gone, err = e.peers.shrink(cluster)
		e.ports.forget(gone)
		e.peers.release(gone)
	}
	if err != nil { // a client within the cluster may look like one from outside
		e.ports.refuse(err, now)
	}
	e.ports.retry(again, now)
	if again || e.lacking != nil {
		e.lacking = errors.Join(e.attach(), e.prober.bind(e))
	}
	e.schedule(now)
	if err := e.reason(); err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	return nil
}

func (e *Edge) reason() error { return errors.Join(e.ports.refused, e.lacking) }

// schedule has frontends removed when their drain is over.
func (e *Edge) schedule(now time.Time) {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if len(e.ports.draining) == 0 {
		return
	}
	e.timer = time.AfterFunc(e.ports.draining[0].until.Sub(now), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed {
			return
		}
		now := time.Now()
		e.ports.expire(now)
		e.ports.retry(false, now)
		e.schedule(now)
	})
}

// attach attaches the programs to the devices that are to have them, and detaches them from others.
func (e *Edge) attach() error {
	return e.ns.Do(func() error {
		devices, err := e.devices()
		if devices == nil {
			return err
		}
		errs := []error{err}
		for name, index := range devices {
			if a := e.attached[name]; a != nil && a.Index == index && a.Check() == nil {
				continue
			} else if a != nil {
				errs = append(errs, a.Close())
				delete(e.attached, name)
			}
			a, err := programs.Attach(index, e.maps)
			if a != nil {
				e.attached[name] = a
			}
			if a != nil && err != nil {
				e.settings.Logger.Warn("packets are handed over by the kernel, and not by the driver", "device", name, "error", err)
			} else if err != nil {
				errs = append(errs, fmt.Errorf("device %s: %w", name, err))
			}
		}
		for name, a := range e.attached {
			if _, stays := devices[name]; !stays {
				errs = append(errs, a.Close())
				delete(e.attached, name)
			}
		}
		return errors.Join(errs...)
	})
}

// devices returns the numbers of the devices that are to have programs, by their names.
func (e *Edge) devices() (map[string]int, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the devices: %w", err)
	}
	devices := map[string]int{}
	var errs []error
	for _, name := range e.settings.Interfaces {
		i := slices.IndexFunc(all, func(i net.Interface) bool { return i.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("there is no device %s: set edge.interfaces to the devices of the node", name))
		} else if err := usable(&all[i]); err != nil {
			errs = append(errs, err)
		} else {
			devices[name] = all[i].Index
		}
	}
	if len(e.settings.Interfaces) > 0 {
		return devices, errors.Join(errs...)
	}
	held, err := netlink.AddrList(nil, netlink.FAMILY_ALL) // of all devices at once: pods have many
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of the devices: %w", err)
	}
	for _, a := range held {
		addr, _ := netip.AddrFromSlice(a.IP)
		if !slices.Contains(e.node.Addresses, addr.Unmap()) {
			continue
		}
		i := slices.IndexFunc(all, func(i net.Interface) bool { return i.Index == a.LinkIndex })
		if i >= 0 && usable(&all[i]) == nil {
			devices[all[i].Name] = all[i].Index
		}
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no device with Ethernet headers has an address of the node, which are %v: set edge.interfaces", e.node.Addresses)
	}
	return devices, nil
}

// ethernet is how many bytes the hardware address of a device with Ethernet headers has.
const ethernet = 6

// usable returns why a device cannot have the programs.
func usable(i *net.Interface) error {
	if len(i.HardwareAddr) != ethernet {
		return fmt.Errorf("device %s has no Ethernet headers: take it out of edge.interfaces", i.Name)
	}
	return nil
}

// Verify attaches programs again that are not where they should be, and tries again what has failed, as an Apply of nothing new. It returns how many devices lacked programs.
func (e *Edge) Verify() (repaired int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, fmt.Errorf("edge: %w", os.ErrClosed)
	}
	if e.node == nil {
		return 0, nil
	}
	before := maps.Clone(e.attached)
	err = e.apply(&state.Update{Node: e.node}, nil, true)
	for name, a := range e.attached {
		if before[name] != a {
			repaired++
		}
	}
	return repaired, err
}

// Status returns how the edge is doing.
func (e *Edge) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Reason: e.reason()}
	if e.closed {
		s.Reason = os.ErrClosed
		return s
	}
	for name, a := range e.attached {
		s.Attached = append(s.Attached, name)
		if a.Driver {
			s.Driver = append(s.Driver, name)
		}
	}
	slices.Sort(s.Attached)
	slices.Sort(s.Driver)
	s.Left, s.Ports, s.Draining = maps.Clone(e.ports.left), e.ports.served(), e.ports.drains
	return s
}

// Stats returns what was done with packets.
func (e *Edge) Stats() (s Stats, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return s, fmt.Errorf("edge: %w", os.ErrClosed)
	}
	var perCPU []uint64
	for action := range s {
		if err := e.maps.Maps["actions"].Lookup(uint32(action), &perCPU); err != nil {
			return s, fmt.Errorf("edge: reading the counters of packets: %w", err)
		}
		for _, n := range perCPU {
			s[action] += n
		}
	}
	return s, nil
}

// Slot returns the slot of a connection from outside, as programs find it now. ok is false if the edge does not serve the frontend. A NodePort is found at each address of a node.
func (e *Edge) Slot(protocol state.Protocol, client, frontend netip.AddrPort) (s Slot, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return s, false
	}
	key := state.FrontendKey{Family: state.FamilyOf(frontend.Addr()), Protocol: protocol, Addr: frontend.Addr(), Port: frontend.Port()}
	f := e.ports.frontends[key]
	if _, isNode := e.peers.heldAddresses[key.Addr]; f == nil && isNode {
		key.Addr = netip.Addr{}
		f = e.ports.frontends[key]
	}
	if f == nil || !f.until.IsZero() || f.port.waits {
		return s, false
	}
	s.Of = e.settings.TableSize
	s.Number = plan.Slot(protocol, client, frontend, s.Of)
	word := plan.Word(e.ports.slots.Load(f.port.table*uint32(s.Of)+uint32(s.Number), 0))
	for i := range plan.Owners {
		switch n, is := word.Owner(i); {
		case is && i == 0:
			s.Owner = e.peers.nameOf(n)
		case is:
			s.Earlier = append(s.Earlier, e.peers.nameOf(n))
		}
	}
	return s, true
}

// Close detaches the programs. Netfilter serves all connections from then on.
func (e *Edge) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	errs := []error{e.prober.close()}
	for _, a := range e.attached {
		errs = append(errs, a.Close())
	}
	if e.ports != nil {
		errs = append(errs, e.ports.slots.Close())
	}
	if e.maps != nil {
		e.maps.Close()
	}
	return errors.Join(append(errs, e.ns.Close())...)
}
