package ebpf

import (
	"log/slog"

	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of the hooks. The zero value is useful.
type Options struct {
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// LocalDetector distinguishes connections of pods from others where the state does not say ([state.Node]).
	LocalDetector state.LocalDetector
	// NodePortAddresses are the addresses on which NodePorts are served where the state does not say.
	NodePortAddresses state.NodePortAddresses
	// CgroupPath is the cgroup2 directory whose processes connect through hooks. Default: the root, which has all.
	CgroupPath string
	// NodeOnly leaves the connections of pods to netfilter.
	NodeOnly bool
	// MeshPorts are TCP ports: a pod in which something listens on one of them has a service mesh proxy, and is left to netfilter. At most 4.
	MeshPorts []uint16
	// Namespaces are the network namespaces that belong to this node. Default: all that this kernel has. Then the calling thread's
	// network namespace must be the kernel's first one, or CgroupPath must say which processes are this node's.
	Namespaces *Namespaces
	// Counters counts new connections to each frontend, for [Backend.Counts]. The base counts those that hooks do not take, if it is to.
	Counters bool
	// UpstreamMark is the bit of the mark of the node's sockets that are left to the base. A proxy gets its state by these sockets. 0:
	// there are none.
	UpstreamMark uint32
	// EndRemoved ends the node's connections that hooks have translated to endpoints which are gone: to all that a call of
	// [Backend.Gone] has named. It needs CAP_PERFMON and Linux 6.5; without these, such connections go on, and a warning says so. The
	// connections of pods are left to netfilter then, as with NodeOnly. Their sockets are in other network namespaces, where only an
	// address identifies them, and anybody may have that address in an own namespace.
	EndRemoved bool
}

// State is whether connections go through hooks.
type State int

// The states.
const (
	// Off: the hooks could not be attached.
	Off State = iota
	// Degraded: some Services that hooks could serve are left to netfilter, because memory is short.
	Degraded
	// On: the hooks do all that they can.
	On
)

func (s State) String() string {
	switch s {
	case Off:
		return "off"
	case Degraded:
		return "degraded"
	case On:
		return "on"
	}
	return "unknown"
}

// Status is how hooks are doing. It is a value of its own.
type Status struct {
	State State
	// Reason is why State is not On, with the remedy where there is one.
	Reason error
	// Frontends are how many are translated by hooks.
	Frontends int
	// Memory is how many bytes of the kernel's memory the maps take, not counting notes of single sockets. They are charged to the memory cgroup
	// of this process.
	Memory uint64
	// Translated counts the connections that hooks have translated, and Mesh those that they left to a service mesh.
	Translated, Mesh uint64
}
