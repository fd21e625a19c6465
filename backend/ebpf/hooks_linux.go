package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/internal/ebpf/programs"
)

// hooks are programs at sockets with their maps.
type hooks struct {
	options  *Options // those that the programs were made with
	cgroup   *os.File
	programs *ebpf.Collection
	tables   *maps.Tables
	attached *programs.Attached
	// nodePorts are the addresses in the maps of those that serve NodePorts.
	nodePorts map[netip.Addr]bool
	// memory is how many bytes the maps take.
	memory uint64
}

// shared are the maps that stay when hooks are replaced: their size is not known beforehand, or the programs fill them.
var shared = []string{"connections", "meshes", "counts", "node_ports4", "node_ports6"}

// newHooks loads programs with empty maps. They share some maps with old, which may be nil, and count in the maps of counters, which is
// nil if nothing is counted.
func newHooks(o *Options, cookie uint64, needs maps.Needs, old *hooks, counters *maps.Counters) (*hooks, error) {
	h := &hooks{options: new(*o), nodePorts: map[netip.Addr]bool{}}
	var err error
	if h.cgroup, err = openCgroup(o, cookie); err != nil {
		return nil, err
	}
	if err := h.load(cookie, needs, old, counters); err != nil {
		return nil, errors.Join(err, h.discard())
	}
	return h, nil
}

// openCgroup opens the cgroup whose processes are to connect through hooks.
func openCgroup(o *Options, cookie uint64) (*os.File, error) {
	if o.CgroupPath != "" {
		return programs.OpenCgroup(o.CgroupPath)
	}
	if o.Namespaces == nil && cookie != firstNamespace {
		return nil, errors.New("this node shares its kernel with other nodes: its network namespace is not the kernel's first one; " +
			"set ebpf.cgroupPath to the cgroup of this node's processes")
	}
	return programs.RootCgroup()
}

func (h *hooks) load(cookie uint64, needs maps.Needs, old *hooks, counters *maps.Counters) error {
	o := h.options
	spec, err := programs.Load(programs.Settings{
		Node: cookie, NodeOnly: o.NodeOnly || o.EndRemoved, Limited: o.Namespaces != nil, MeshPorts: o.MeshPorts, UpstreamMark: o.UpstreamMark, Counting: counters != nil,
	})
	if err != nil {
		return err
	}
	maps.Resize(spec, needs)
	replaced := map[string]*ebpf.Map{}
	if old != nil {
		for _, name := range shared {
			replaced[name] = old.programs.Maps[name]
		}
		h.nodePorts = old.nodePorts
	}
	if o.Namespaces != nil {
		replaced["namespaces"] = o.Namespaces.m
	}
	if counters != nil {
		counters.Use(spec, replaced)
	}
	if h.programs, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced}); err != nil && (errors.Is(err, unix.EPERM) || !permitted()) {
		return fmt.Errorf("loading the programs: %w: give the process CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and let its seccomp filter pass bpf()", unix.EPERM)
	} else if err != nil {
		return fmt.Errorf("loading the programs (Linux 5.16 and CAP_PERFMON are needed): %w", err)
	}
	if h.tables, err = maps.New(h.programs, counters); err != nil {
		return err
	}
	for _, m := range h.programs.Maps {
		if info, err := m.Info(); err == nil {
			bytes, _ := info.Memlock()
			h.memory += bytes
		}
	}
	return nil
}

// permitted reports whether this process may make maps at all. The library takes some refusals for a missing feature.
func permitted() bool {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 1, Flags: unix.BPF_F_NO_PREALLOC})
	if err == nil {
		m.Close()
	}
	return !errors.Is(err, unix.EPERM)
}

// attach attaches the programs, which replace the programs of old. old may be nil.
func (h *hooks) attach(old *hooks) error {
	if old != nil && old.options.CgroupPath == h.options.CgroupPath {
		if err := old.attached.Update(old.programs, h.programs); err != nil {
			return err
		}
		h.attached, old.attached = old.attached, &programs.Attached{}
		return nil
	}
	var err error
	h.attached, err = programs.Attach(h.cgroup, h.programs)
	return err
}

// close detaches the programs.
func (h *hooks) close() error { return errors.Join(h.attached.Close(), h.discard()) }

// discard lets go of programs and maps that are not attached.
func (h *hooks) discard() (err error) {
	if h.tables != nil {
		err = h.tables.Close()
	}
	if h.programs != nil {
		h.programs.Close()
	}
	return errors.Join(err, h.cgroup.Close())
}

// limitNodePorts removes the addresses that no longer serve NodePorts; addrs are the ones that do, sorted.
func (h *hooks) limitNodePorts(addrs []netip.Addr) error {
	for addr := range h.nodePorts {
		if _, stays := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare); stays {
			continue
		}
		if err := h.deleteNodePort(addr); err != nil {
			return err
		}
		delete(h.nodePorts, addr)
	}
	return nil
}

// addNodePorts adds addresses that serve NodePorts. Loopback addresses do that for the node itself only: each pod has its own.
// Addresses for which the maps have no room are left to netfilter.
func (h *hooks) addNodePorts(addrs []netip.Addr) error {
	for _, addr := range addrs {
		if h.nodePorts[addr] {
			continue
		}
		if err := h.putNodePort(addr); errors.Is(err, unix.E2BIG) {
			continue
		} else if err != nil {
			return err
		}
		h.nodePorts[addr] = true
	}
	return nil
}

// onlyNode returns the value of an address that serves NodePorts: 1 if only the node itself may connect to it.
func onlyNode(addr netip.Addr) uint32 {
	if addr.IsLoopback() {
		return 1
	}
	return 0
}

// repairNodePorts compares the maps with the addresses that serve NodePorts, writes what differs, and returns how many did.
func (h *hooks) repairNodePorts() (repaired int, err error) {
	held := map[netip.Addr]uint32{}
	for _, name := range []string{"node_ports4", "node_ports6"} {
		var key []byte
		var value uint32
		entries := h.programs.Maps[name].Iterate()
		for entries.Next(&key, &value) {
			addr, _ := netip.AddrFromSlice(key)
			held[addr] = value
		}
		if err := entries.Err(); err != nil {
			return 0, fmt.Errorf("reading the NodePort addresses: %w", err)
		}
	}
	for addr := range h.nodePorts {
		value, there := held[addr]
		delete(held, addr)
		if there && value == onlyNode(addr) {
			continue
		}
		repaired++
		if err := h.putNodePort(addr); err != nil {
			return repaired, err
		}
	}
	for addr := range held {
		repaired++
		if err := h.deleteNodePort(addr); err != nil {
			return repaired, err
		}
	}
	return repaired, nil
}

func (h *hooks) putNodePort(addr netip.Addr) error {
	m, key := h.nodePortMap(addr)
	if err := m.Put(key, onlyNode(addr)); err != nil {
		return fmt.Errorf("adding the NodePort address %v: %w", addr, err)
	}
	return nil
}

func (h *hooks) deleteNodePort(addr netip.Addr) error {
	m, key := h.nodePortMap(addr)
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the NodePort address %v: %w", addr, err)
	}
	return nil
}

func (h *hooks) nodePortMap(addr netip.Addr) (m *ebpf.Map, key any) {
	if addr.Is4() {
		return h.programs.Maps["node_ports4"], addr.As4()
	}
	return h.programs.Maps["node_ports6"], addr.As16()
}

// Indices of the counts in the map; see COUNT_... in hooks.c.
const (
	countTranslated uint32 = iota
	countMesh
)

// count returns how often something has happened since the programs were first loaded.
func (h *hooks) count(what uint32) (n uint64) {
	var perCPU []uint64
	if h.programs.Maps["counts"].Lookup(what, &perCPU) != nil {
		return 0
	}
	for _, v := range perCPU {
		n += v
	}
	return n
}
