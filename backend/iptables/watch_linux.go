package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/ifaddr"
)

// watcher asks for a Verify when addresses have changed, and when somebody else seems to have changed the tables: their mark is not the one
// that it was after our last look at them. The kernel has no better sign, and to ask for this one takes microseconds.
type watcher struct {
	disturbed chan struct{}
	log       *slog.Logger
	addrs     *ifaddr.Watcher
	marks     marks
	stop      chan struct{}
	done      sync.WaitGroup

	mu sync.Mutex // held while we look at the tables or change them
	// expected is the mark that the tables had then, empty before.
	expected string
	// nextCheck is when somebody else's change may lead to the next Verify.
	nextCheck time.Time
	// foreign is set if the tables had another mark since they were last looked at.
	foreign bool
	failing bool
}

// marks reads what changes with the tables.
type marks interface {
	mark() (string, error)
	close() error
}

const (
	// watchPeriod is how often the mark is looked at.
	watchPeriod = 250 * time.Millisecond
	// checkCost bounds the share of the time that is spent on looking at the tables for nothing, because others change rules of their own, and
	// repairCost the one that is spent on repairs, because others change ours again and again.
	checkCost, repairCost = 50, 1
)

func newWatcher(v Variant, addrs *ifaddr.Watcher, log *slog.Logger) (*watcher, error) {
	w := &watcher{disturbed: make(chan struct{}, 1), log: log, addrs: addrs, stop: make(chan struct{})}
	var err error
	if v == NFT {
		w.marks, err = openGeneration()
	} else {
		w.marks, err = openSizes()
	}
	if err != nil {
		return nil, err
	}
	w.done.Go(w.run)
	return w, nil
}

func (w *watcher) close() error {
	close(w.stop)
	w.done.Wait()
	return w.marks.close()
}

func (w *watcher) run() {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.addrs.Changed():
			w.disturb()
		case <-tick.C:
			if w.mu.TryLock() { // else they are being changed, and we look again after it
				w.look(time.Now())
				w.mu.Unlock()
			}
		}
	}
}

func (w *watcher) disturb() {
	select {
	case w.disturbed <- struct{}{}:
	default:
	}
}

// look compares the mark, and asks for a Verify if it is time for one.
func (w *watcher) look(now time.Time) {
	if w.expected == "" {
		return
	}
	mark, err := w.marks.mark()
	if err != nil && !w.failing {
		w.log.Warn("cannot watch for changes of the tables by other programs; comparing them periodically", "error", err)
	}
	w.failing = err != nil
	w.foreign = w.foreign || err == nil && mark != w.expected
	if w.foreign && now.After(w.nextCheck) {
		w.disturb()
	}
}

// during runs fn, which changes the tables, reads all of them if it looks, and returns how much it has written. What they are like afterwards is
// expected.
func (w *watcher) during(looks bool, fn func() (written int, err error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(time.Time{}) // somebody else's change must not be taken for ours
	began := time.Now()
	written, err := fn()
	if looks {
		cost := time.Duration(checkCost)
		if written > 0 {
			cost = repairCost
		}
		w.nextCheck = time.Now().Add(cost * time.Since(began))
		w.foreign = w.foreign && err != nil
	}
	if mark, markErr := w.marks.mark(); err == nil && markErr == nil {
		w.expected = mark
	}
	return err
}

// generation is the mark of nf_tables: every commit raises it.
type generation struct{ conn *nft.Conn }

func openGeneration() (generation, error) {
	conn, err := nft.Dial()
	return generation{conn}, err
}

func (g generation) mark() (string, error) {
	n, err := g.conn.Generation()
	return fmt.Sprint("generation ", n), err
}

func (g generation) close() error { return g.conn.Close() }

// sizes are the mark of ip_tables: how large the tables are, and how many rules they have.
type sizes struct{ sockets [2]int }

func openSizes() (sizes, error) {
	var s sizes
	for i, domain := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			if i > 0 {
				_ = unix.Close(s.sockets[0])
			}
			return s, fmt.Errorf("open a raw socket to look at tables, which takes CAP_NET_RAW: %w", err)
		}
		s.sockets[i] = fd
	}
	return s, nil
}

func (s sizes) mark() (string, error) {
	var mark []byte
	for i, level := range []int{unix.SOL_IP, unix.SOL_IPV6} {
		for _, table := range []string{"nat", "filter"} {
			const (
				getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
				infoSize   = 84 // struct ipt_getinfo
				numEntries = 76
			)
			info, err := getsockopt(s.sockets[i], level, getInfo, infoSize, table)
			if err != nil {
				return "", fmt.Errorf("look at table %s: %w", table, err)
			}
			mark = binary.NativeEndian.AppendUint64(mark, binary.NativeEndian.Uint64(info[numEntries:])) // and the size, behind it
		}
	}
	return string(mark), nil
}

func (s sizes) close() error { return errors.Join(unix.Close(s.sockets[0]), unix.Close(s.sockets[1])) }

// getsockopt reads a socket option whose argument and answer are one buffer, which begins with a name.
func getsockopt(fd, level, option, size int, name string) ([]byte, error) {
	buf := make([]byte, size)
	copy(buf, name)
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return nil, errno
	}
	return buf, nil
}
