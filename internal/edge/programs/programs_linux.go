package programs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:generate go tool -modfile=../../../tools/go.mod bpf2go -target bpfel,bpfeb -no-global-types -cc clang-14 -cflags "-O2 -g -mcpu=v3 -Wall -Werror -Wno-address-of-packed-member -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" edge edge.c
//go:generate sh -c "sha256sum *.c *.h > sources.sha256"

// Settings are constants of the programs: those that are loaded keep them.
type Settings struct {
	// Port is the UDP port at which this node takes packets.
	Port uint16
	// Mark is the bit of packets that netfilter serves by the edge view.
	Mark uint32
	// MTU is the most bytes of a packet between nodes, 0 for what the routes allow.
	MTU uint32
	// TableSize is how many slots each table has.
	TableSize uint32
	// Slots and Frontends are how many there is room for, and Frontends counts for each family.
	Slots, Frontends uint32
	// XDP has the program for drivers, too.
	XDP bool
}

// entry, exit and driver are the programs.
const entry, exit, driver = "edge_in", "edge_out", "edge_xdp"

// spec returns what the programs and their maps are made from.
func spec(s Settings) (*ebpf.CollectionSpec, error) {
	if strconv.IntSize < 64 {
		return nil, fmt.Errorf("the edge needs a 64-bit architecture, not %s: set edge.mode off", runtime.GOARCH)
	}
	spec, err := loadEdge()
	if err != nil {
		return nil, fmt.Errorf("the programs in this executable: %w", err)
	}
	for name, value := range map[string]any{
		"udp_port": binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, s.Port)), "mark": s.Mark, "max_mtu": s.MTU, "table_size": s.TableSize,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("constant %s of the programs: %w", name, err)
		}
	}
	spec.Maps["slots"].MaxEntries = s.Slots
	spec.Maps["frontends4"].MaxEntries, spec.Maps["frontends6"].MaxEntries = s.Frontends, s.Frontends
	if !s.XDP {
		delete(spec.Programs, driver)
		delete(spec.Maps, "xdp_routes")
	}
	return spec, nil
}

// Load loads the programs with empty maps. The error names what the kernel or this process lacks. The caller must Close the collection.
func Load(s Settings) (*ebpf.Collection, error) {
	spec, err := spec(s)
	if err != nil {
		return nil, err
	}
	c, err := ebpf.NewCollection(spec)
	switch {
	case err == nil:
	case errors.Is(err, unix.EPERM) || !permitted():
		return nil, fmt.Errorf("loading the programs: %w: give the process CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and let its seccomp filter pass bpf()", unix.EPERM)
	case errors.Is(err, unix.ENOMEM):
		return nil, fmt.Errorf("loading the programs: %w: raise the memory limit, or lower edge.maxSlots", err)
	default:
		return nil, fmt.Errorf("loading the programs (Linux 6.6 with CONFIG_DEBUG_INFO_BTF and the module nf_conntrack are needed): %w", err)
	}
	if err := supported(c.Programs[entry]); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// permitted reports whether this process may make maps at all. The library takes some refusals for a missing feature.
func permitted() bool {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 1, Flags: unix.BPF_F_NO_PREALLOC})
	if err == nil {
		m.Close()
	}
	return !errors.Is(err, unix.EPERM)
}

// supported returns why programs cannot be attached to devices. It tries a device that does not exist.
func supported(p *ebpf.Program) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: 1<<31 - 1, Program: p, Attach: ebpf.AttachTCXIngress})
	switch {
	case err == nil:
		return errors.Join(errors.New("a program can be attached to a device that does not exist"), l.Close())
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel has no TCX (Linux 6.6 is needed): set edge.mode off: %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("attaching programs to devices: %w: give the process CAP_NET_ADMIN", err)
	}
	return nil
}

// Attached are the programs at one device. They are there until Close, or until the process ends: nothing is pinned.
type Attached struct {
	// Index is the number of the device.
	Index int
	// Driver reports whether the driver hands packets over to the program for that.
	Driver bool

	links []link.Link
}

// Attach attaches the programs of a collection to a device, before others there. If the driver does not take its program, a has
// the others all the same, and the error says why.
func Attach(index int, c *ebpf.Collection) (a *Attached, err error) {
	a = &Attached{Index: index}
	// First the exit: packets may come back at once.
	for _, p := range []struct {
		name string
		at   ebpf.AttachType
	}{{exit, ebpf.AttachTCXEgress}, {entry, ebpf.AttachTCXIngress}} {
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: c.Programs[p.name], Attach: p.at, Anchor: link.Head()})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attaching %s: %w", p.name, err), a.Close())
		}
		a.links = append(a.links, l)
	}
	if c.Programs[driver] == nil {
		return a, nil
	}
	l, err := link.AttachXDP(link.XDPOptions{Interface: index, Program: c.Programs[driver], Flags: link.XDPDriverMode})
	if err != nil {
		return a, fmt.Errorf("attaching %s: the driver of the device does not take it, or has another one: set edge.mode tcx: %w", driver, err)
	}
	a.links, a.Driver = append(a.links, l), true
	return a, nil
}

// ErrSevered means that the device is gone to which programs were attached.
var ErrSevered = errors.New("the device is gone")

// Check returns an error if a program is not attached.
func (a *Attached) Check() error {
	for _, l := range a.links {
		info, err := l.Info()
		if err != nil {
			return err
		}
		if tcx := info.TCX(); tcx != nil && int(tcx.Ifindex) != a.Index {
			return ErrSevered
		}
		if xdp := info.XDP(); xdp != nil && int(xdp.Ifindex) != a.Index {
			return ErrSevered
		}
	}
	return nil
}

// Close detaches the programs.
func (a *Attached) Close() error {
	var errs []error
	for i := len(a.links) - 1; i >= 0; i-- { // the entry before the exit
		errs = append(errs, a.links[i].Close())
	}
	a.links = nil
	return errors.Join(errs...)
}
