package leftovers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket options of ip_tables; ip6_tables has the same numbers.
const (
	xtGetInfo     = 64 // IPT_SO_GET_INFO
	xtGetEntries  = 65 // IPT_SO_GET_ENTRIES
	xtSetReplace  = 64 // IPT_SO_SET_REPLACE
	xtAddCounters = 65 // IPT_SO_SET_ADD_COUNTERS
)

// Sizes of the options' headers, on 64-bit systems, before the entries or counters.
const (
	xtInfoSize       = 84 // struct ipt_getinfo
	xtGetEntriesSize = 40 // struct ipt_get_entries
	xtReplaceSize    = 96 // struct ipt_replace
	xtCountersInfo   = 40 // struct xt_counters_info
)

// lockFile is what all iptables-legacy programs lock while they read and write a table.
const lockFile = "/run/xtables.lock"

// legacyFamily is how a family's tables are reached.
type legacyFamily struct {
	xtFormat
	domain, level int
	names         string // the file that lists the tables that exist
}

var legacyFamilies = []legacyFamily{
	{xtIPv4, unix.AF_INET, unix.SOL_IP, "/proc/thread-self/net/ip_tables_names"},
	{xtIPv6, unix.AF_INET6, unix.SOL_IPV6, "/proc/thread-self/net/ip6_tables_names"},
}

// sweepLegacy is about iptables-legacy. It asks for no table that does not exist, because the kernel would make it.
func sweepLegacy(ctx context.Context, do action) ([]Item, error) {
	var items []Item
	var errs []error
	for _, f := range legacyFamilies {
		names, err := os.ReadFile(f.names)
		if errors.Is(err, os.ErrNotExist) {
			continue // ip_tables is not loaded, or is not part of this kernel
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tables of iptables-legacy: %w", err))
			continue
		}
		for name := range strings.FieldsSeq(string(names)) {
			if slices.Contains(iptablesTables, name) {
				found, err := f.sweep(ctx, name, do)
				items = append(items, found...)
				errs = append(errs, err)
			}
		}
	}
	return items, errors.Join(errs...)
}

func (f *legacyFamily) sweep(ctx context.Context, name string, do action) (items []Item, err error) {
	place := fmt.Sprintf("table %s %s of iptables-legacy", f.ip, name)
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return nil, fmt.Errorf("%s: %w on 32-bit systems; remove kube-proxy's rules with iptables-legacy", place, errors.ErrUnsupported)
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("%s: opening a raw socket (CAP_NET_RAW is required): %w", place, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	s := legacySocket{fd, f}
	// The kernel refuses to replace a table whose number of entries has changed since it was read: EAGAIN.
	err = retry(ctx, func() error {
		items = nil
		e, err := s.edit(ctx, name, do)
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		items = e.items(place)
		return nil
	}, unix.EAGAIN)
	return items, err
}

// legacySocket is a raw socket, through which tables are read and written.
type legacySocket struct {
	fd int
	f  *legacyFamily
}

// edit reads a table, and replaces it if that is needed. To find something takes no lock: the kernel hands out a table whole.
func (s legacySocket) edit(ctx context.Context, name string, do action) (edit, error) {
	if do == remove {
		unlock, err := lock(ctx)
		if err != nil {
			return edit{}, err
		}
		defer unlock()
	}
	t, err := s.read(name)
	if err != nil {
		return edit{}, fmt.Errorf("reading it: %w", err)
	}
	p, err := t.parse()
	if err != nil {
		return edit{}, err
	}
	e := plan(p.chains)
	if e.isEmpty() || do == find {
		return e, nil
	}
	replacement, kept, err := t.without(p, &e)
	if err != nil {
		return edit{}, err
	}
	if err := s.replace(replacement, len(p.entries), kept); err != nil {
		return edit{}, fmt.Errorf("replacing it without %d chains and %d jumps of kube-proxy: %w", len(e.remove), len(e.jumps), err)
	}
	return e, nil
}

// lock takes the lock of the iptables-legacy programs. It protects from nothing in a container without the host's /run. If the file cannot
// be made, there is no lock, as in iptables, and the kernel's own check remains.
func lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(lockFile, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return func() {}, nil
	}
	err = retry(ctx, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }, unix.EAGAIN, unix.EINTR)
	if err != nil {
		f.Close()
		// The error number is left out: outside, EAGAIN would mean that the table has changed.
		return nil, errors.Join(fmt.Errorf("another program holds %s: %v", lockFile, err), ctx.Err())
	}
	return func() { f.Close() }, nil
}

// get reads a socket option whose argument and answer are one buffer.
func (s legacySocket) get(option int, buf []byte) error {
	n := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.f.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	if int(n) != len(buf) {
		return errXT
	}
	return nil
}

func (s legacySocket) read(name string) (*xtTable, error) {
	info := make([]byte, xtInfoSize)
	copy(info[:xtTableName-1], name)
	if err := s.get(xtGetInfo, info); err != nil {
		return nil, err
	}
	t := &xtTable{xtFormat: s.f.xtFormat, name: name, hooks: native.Uint32(info[32:])}
	for h := range xtHooks {
		t.hookEntry[h] = native.Uint32(info[36+4*h:])
		t.underflow[h] = native.Uint32(info[56+4*h:])
	}
	size := native.Uint32(info[80:])
	entries := make([]byte, xtGetEntriesSize+int(size))
	copy(entries[:xtTableName-1], name)
	native.PutUint32(entries[32:], size)
	if err := s.get(xtGetEntries, entries); err != nil {
		return nil, err // EAGAIN if the size has changed since
	}
	t.block = entries[xtGetEntriesSize:]
	return t, nil
}

// replace puts a table in place of the one of the same name, and gives its entries the counters that they had. before is the
// number of entries of the old table, kept the old index of each new one.
func (s legacySocket) replace(t *xtTable, before int, kept []int) error {
	counters := make([]byte, before*xtCountersSize) // the kernel fills it with the old table's last figures
	buf := make([]byte, xtReplaceSize, xtReplaceSize+len(t.block))
	copy(buf[:xtTableName-1], t.name)
	native.PutUint32(buf[32:], t.hooks)
	native.PutUint32(buf[36:], uint32(len(kept)))
	native.PutUint32(buf[40:], uint32(len(t.block)))
	for h := range xtHooks {
		native.PutUint32(buf[44+4*h:], t.hookEntry[h])
		native.PutUint32(buf[64+4*h:], t.underflow[h])
	}
	native.PutUint32(buf[84:], uint32(before))
	var pin runtime.Pinner
	pin.Pin(&counters[0])
	defer pin.Unpin()
	native.PutUint64(buf[88:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
	buf = append(buf, t.block...)
	if err := unix.SetsockoptString(s.fd, s.f.level, xtSetReplace, string(buf)); err != nil {
		return err
	}
	add := bytes.NewBuffer(make([]byte, xtCountersInfo, xtCountersInfo+len(kept)*xtCountersSize))
	copy(add.Bytes()[:xtTableName-1], t.name)
	native.PutUint32(add.Bytes()[32:], uint32(len(kept)))
	for _, i := range kept {
		add.Write(counters[i*xtCountersSize : (i+1)*xtCountersSize])
	}
	// The rules are in place; a table that somebody else has changed since keeps its own counters.
	err := unix.SetsockoptString(s.fd, s.f.level, xtAddCounters, add.String())
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("setting its counters: %w", err)
	}
	return nil
}
