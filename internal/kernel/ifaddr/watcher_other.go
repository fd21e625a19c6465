//go:build !linux

package ifaddr

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
)

// pollPeriod is the time between two looks at the addresses.
const pollPeriod = 2 * time.Second

// Watcher knows the current addresses of all interfaces of this machine: it looks at them every two seconds. Its methods may be called by several
// goroutines at once.
type Watcher struct {
	current
	log     *slog.Logger
	stop    chan struct{}
	stopped chan struct{}
	closed  atomic.Bool
}

// Open starts to follow the addresses. The error is always nil on this system. The caller must Close the Watcher.
func Open(o Options) (*Watcher, error) {
	w := &Watcher{current: newCurrent(), log: o.Logger, stop: make(chan struct{}), stopped: make(chan struct{})}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if w.addrs, err = list(); err != nil {
		w.log.Warn("cannot read interface addresses, trying again; only the loopback addresses count until then", "error", err)
		w.addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	go w.run(err != nil)
	return w, nil
}

// Close stops following. The last addresses stay readable. Closing twice returns os.ErrClosed.
func (w *Watcher) Close() error {
	if w.closed.Swap(true) {
		return fmt.Errorf("stop watching interface addresses: %w", os.ErrClosed)
	}
	close(w.stop)
	<-w.stopped
	return nil
}

func (w *Watcher) run(failing bool) {
	defer close(w.stopped)
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		addrs, err := list()
		if err != nil {
			if !failing {
				w.log.Warn("cannot read interface addresses, trying again", "error", err)
			}
			failing = true
			continue
		}
		failing = false
		w.set(addrs)
	}
}

func list() (addrs []netip.Addr, err error) {
	prefixes, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read interface addresses: %w", err)
	}
	for _, a := range prefixes {
		prefix, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if addr, ok := netip.AddrFromSlice(prefix.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return normalize(addrs), nil
}
