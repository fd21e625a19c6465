package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/state"
)

// sizes are the kernel of the variant legacy. The mark is what ip_tables reports of its tables: their size, their number of rules, and the
// bounds of the rules of each hook. A change that keeps all three keeps the mark.
type sizes struct{ sockets map[state.Family]int }

func openSizes() (sizes, error) {
	s := sizes{map[state.Family]int{}}
	for f, domain := range map[state.Family]int{state.IPv4: unix.AF_INET, state.IPv6: unix.AF_INET6} {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return s, errors.Join(fmt.Errorf("open a raw socket to look at tables, which takes CAP_NET_RAW: %w", err), s.close())
		}
		s.sockets[f] = fd
	}
	return s, nil
}

func (s sizes) mark(held held) (string, error) {
	var mark []byte
	for _, f := range families {
		for _, table := range held(f).HeldTables() {
			info, err := s.info(f, table)
			if err != nil {
				return "", fmt.Errorf("look at table %s: %w", table, err)
			}
			mark = append(mark, info...)
		}
	}
	return string(mark), nil
}

func (s sizes) close() error {
	var errs []error
	for _, fd := range s.sockets {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// nameSize is the size of the name at the beginning of an argument of getsockopt.
const nameSize = 32

// info returns struct ipt_getinfo or ip6t_getinfo, behind the name.
func (s sizes) info(f state.Family, table rules.Table) ([]byte, error) {
	const (
		getInfo  = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
		infoSize = 84
	)
	info := make([]byte, infoSize)
	copy(info, table)
	return info[nameSize:], s.getsockopt(f, getInfo, info)
}

// entries returns all rules of a table, as the kernel lays them out in memory.
func (s sizes) entries(f state.Family, table rules.Table) ([]byte, error) {
	const (
		getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES
		sizeAt     = 48 // in what info returns
		attempts   = 10
		// begin is where the rules begin in struct ipt_get_entries and ip6t_get_entries, which have 64-bit counters.
		begin = unsafe.Offsetof(struct {
			name    [nameSize]byte
			size    uint32
			entries uint64
		}{}.entries)
	)
	for attempt := 1; ; attempt++ {
		info, err := s.info(f, table)
		if err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[sizeAt:])
		all := make([]byte, int(begin)+int(size))
		copy(all, table)
		binary.NativeEndian.PutUint32(all[nameSize:], size)
		err = s.getsockopt(f, getEntries, all)
		if errors.Is(err, unix.EAGAIN) && attempt < attempts {
			continue // it has another size now
		}
		return all[begin:], err
	}
}

// getsockopt reads a socket option whose argument and answer are one buffer, which begins with a name.
func (s sizes) getsockopt(f state.Family, option int, buf []byte) error {
	level := unix.SOL_IP
	if f == state.IPv6 {
		level = unix.SOL_IPV6
	}
	n := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.sockets[f]), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (s sizes) uses(f state.Family, tables []rules.Table) (map[rules.ChainID]int, error) {
	uses := map[rules.ChainID]int{}
	for _, table := range tables {
		entries, err := s.entries(f, table)
		if err == nil {
			err = countUses(f, table, entries, uses)
		}
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", table, err)
		}
	}
	return uses, nil
}

// countUses counts how often chains of ours are used: once for each of their rules, and once for each rule that leads to them.
//
// A table is a sequence of struct ipt_entry or ip6t_entry. Each begins with what addresses match, and has its matches and its target behind. A chain
// begins with an entry whose target is named ERROR and has the chain's name, and ends with one that returns. A rule that leads to a chain has the offset of the
// entry behind the one with the name.
func countUses(f state.Family, table rules.Table, entries []byte, uses map[rules.ChainID]int) error {
	offsetsAt := 88 // of __u16 target_offset, next_offset in struct ipt_entry
	if f == state.IPv6 {
		offsetsAt = 140
	}
	const (
		targetName = 2  // in struct xt_entry_target
		targetData = 32 // behind it: the name of a chain, or an offset or verdict
		dataSize   = 30 // of targetData with a name
	)
	begins := map[int]rules.ChainID{} // by the offset to which rules lead
	leads := map[int]int{}            // how many rules lead there
	var chain rules.ChainID
	for at := 0; at < len(entries); {
		e := entries[at:]
		if len(e) < offsetsAt+4 {
			return errOddTable
		}
		target, next := int(binary.NativeEndian.Uint16(e[offsetsAt:])), int(binary.NativeEndian.Uint16(e[offsetsAt+2:]))
		if target < offsetsAt+4 || next < target+targetData+4 || next > len(e) {
			return errOddTable
		}
		t := e[target:next]
		switch name := cString(t[targetName:targetData]); {
		case name == "ERROR" && len(t) >= targetData+dataSize:
			chain = rules.ChainID{Table: table, Name: cString(t[targetData:][:dataSize])}
			if rules.IsOurs(chain.Name) {
				begins[at+next] = chain
				uses[chain] = -1 // the entry that returns is no rule
			}
		default:
			if rules.IsOurs(chain.Name) {
				uses[chain]++
			}
			// The target of a rule without one has no name either, and the offset of the next entry.
			if to := int(int32(binary.NativeEndian.Uint32(t[targetData:]))); name == "" && to >= 0 {
				leads[to]++
			}
		}
		at += next
	}
	for to, n := range leads {
		if chain, ok := begins[to]; ok {
			uses[chain] += n
		}
	}
	return nil
}

var errOddTable = errors.New("the kernel lays out rules in an unknown way")

// cString returns the text that a zero ends.
func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
