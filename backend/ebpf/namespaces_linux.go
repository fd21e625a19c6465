package ebpf

import (
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
)

// Namespaces are the network namespaces of one node in a kernel that has several nodes. They may be added at any time.
type Namespaces struct {
	m *ebpf.Map
}

// maxNamespaces is how many a node can have: max_entries of the map in hooks.c.
const maxNamespaces = 65536

// NewNamespaces returns an empty set. The caller must Close it.
func NewNamespaces() (*Namespaces, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "namespaces", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: maxNamespaces, Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		return nil, fmt.Errorf("network namespaces of a node: %w", err)
	}
	return &Namespaces{m}, nil
}

// OpenNamespaces opens a set that another process has pinned.
func OpenNamespaces(path string) (*Namespaces, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, fmt.Errorf("network namespaces of this node, at %s: %w", path, err)
	}
	return &Namespaces{m}, nil
}

// Pin makes the set one that other processes can open, by a path in a bpf file system.
func (n *Namespaces) Pin(path string) error { return n.m.Pin(path) }

// AddNode adds the node's own namespace by its cookie (SO_NETNS_COOKIE).
func (n *Namespaces) AddNode(cookie uint64) error { return n.m.Put(cookie, uint32(plan.Node)) }

// AddPod adds the namespace of one of its pods.
func (n *Namespaces) AddPod(cookie uint64) error { return n.m.Put(cookie, uint32(plan.Pods)) }

// Close lets go of the set.
func (n *Namespaces) Close() error { return n.m.Close() }

// NamespaceCookie returns the cookie of the calling thread's network namespace.
func NamespaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("the cookie of the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("the cookie of the network namespace (Linux 5.14): %w", err)
	}
	return cookie, nil
}

// firstNamespace is the cookie of the network namespace that the kernel starts with.
const firstNamespace = 1
