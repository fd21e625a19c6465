package programs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:generate go tool -modfile=../../../tools/go.mod bpf2go -target bpfel,bpfeb -no-global-types -cc clang-14 -cflags "-O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" hooks hooks.c
//go:generate go tool -modfile=../../../tools/go.mod bpf2go -target bpfel,bpfeb -no-global-types -cc clang-14 -cflags "-O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" ends ends.c
//go:generate sh -c "sha256sum *.c *.h > sources.sha256"

// Settings are constants of the programs: those that are loaded keep them.
type Settings struct {
	// Node is the cookie of the node's own network namespace.
	Node uint64
	// UpstreamMark is the bit of the mark of the node's sockets that are left alone.
	UpstreamMark uint32
	// NodeOnly leaves the connections of pods alone.
	NodeOnly bool
	// Limited leaves the network namespaces alone that are not in the map namespaces.
	Limited bool
	// MeshPorts are where the proxies of service meshes listen, MaxMeshPorts at most.
	MeshPorts []uint16
	// Counting has connections counted by frontend, in the maps counts4 and counts6, which there are only then. Frontends that have no element in
	// them are left alone.
	Counting bool
}

// Load returns what the programs and their maps are made from.
func Load(s Settings) (*ebpf.CollectionSpec, error) {
	if strconv.IntSize < 64 {
		return nil, fmt.Errorf("mode ebpf needs a 64-bit architecture, not %s: set mode nftables", runtime.GOARCH)
	}
	spec, err := loadHooks()
	if err != nil {
		return nil, fmt.Errorf("the programs in this executable: %w", err)
	}
	var ports [MaxMeshPorts]uint16
	if copy(ports[:], s.MeshPorts) < len(s.MeshPorts) {
		return nil, fmt.Errorf("%d mesh ports, at most %d are possible", len(s.MeshPorts), MaxMeshPorts)
	}
	for name, value := range map[string]any{
		"node_netns": s.Node, "pods": boolean(!s.NodeOnly), "limited": boolean(s.Limited), "mesh_ports": ports, "upstream_mark": s.UpstreamMark,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("constant %s of the programs: %w", name, err)
		}
	}
	for name, counting := range counters {
		if s.Counting {
			spec.Programs[name] = spec.Programs[counting.program]
		} else {
			delete(spec.Maps, counting.counts)
		}
		delete(spec.Programs, counting.program)
	}
	return spec, nil
}

// counters are the programs that replace others if connections are counted, and the maps that only they have.
var counters = map[string]struct{ program, counts string }{"connect4": {"counting4", "counts4"}, "connect6": {"counting6", "counts6"}}

func boolean(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// hooks are the programs, with the places to attach them to.
var hooks = [...]struct {
	name string
	at   ebpf.AttachType
}{
	// First what notes of connections are read by, so that nobody sees an endpoint for a moment.
	{"getpeername4", ebpf.AttachCgroupInet4GetPeername},
	{"getpeername6", ebpf.AttachCgroupInet6GetPeername},
	{"connect4", ebpf.AttachCGroupInet4Connect},
	{"connect6", ebpf.AttachCGroupInet6Connect},
}

// Attached are programs that are attached to a cgroup. They are until Close, or until the process ends: nothing is pinned.
type Attached struct {
	links []link.Link
}

// Attach attaches the programs of a collection to a cgroup, and leaves other programs attached.
func Attach(cgroup *os.File, c *ebpf.Collection) (*Attached, error) {
	a := &Attached{}
	for _, h := range hooks {
		l, err := attach(link.RawLinkOptions{Target: int(cgroup.Fd()), Program: c.Programs[h.name], Attach: h.at})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attaching %s: %w", h.name, err), a.Close())
		}
		a.links = append(a.links, l)
	}
	return a, nil
}

// attach returns a link whose Info has the cgroup: a raw link's Info does not.
func attach(o link.RawLinkOptions) (link.Link, error) {
	raw, err := link.AttachRawLink(o)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	fd, err := unix.FcntlInt(uintptr(raw.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return link.NewFromFD(fd)
}

// Update replaces the programs by the programs of another collection, each in one step. If one cannot be replaced,
// the previous programs are put back.
func (a *Attached) Update(old, c *ebpf.Collection) error {
	for i, h := range hooks {
		if err := a.links[i].Update(c.Programs[h.name]); err != nil {
			err = fmt.Errorf("replacing %s: %w", h.name, err)
			for i, h := range hooks[:i] {
				err = errors.Join(err, a.links[i].Update(old.Programs[h.name]))
			}
			return err
		}
	}
	return nil
}

// ErrSevered means that the cgroup is gone to which the programs were attached.
var ErrSevered = errors.New("the cgroup is gone")

// Check returns an error if a program is not attached.
func (a *Attached) Check() error {
	for i, h := range hooks {
		info, err := a.links[i].Info()
		if err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
		if c := info.Cgroup(); c == nil || c.CgroupId == 0 {
			return fmt.Errorf("%s is not attached: %w", h.name, ErrSevered)
		}
	}
	return nil
}

// Close detaches the programs.
func (a *Attached) Close() error {
	var errs []error
	for _, l := range a.links {
		errs = append(errs, l.Close())
	}
	a.links = nil
	return errors.Join(errs...)
}
