package maps

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// region is a used part of a map that may be used again: slots, or a route if count is 0.
type region struct {
	family int
	base   uint32
	count  int
}

// barrier waits for programs: the kernel lets a call that changes a map of maps wait until all that run have ended (maybe_wait_bpf_programs).
type barrier struct {
	outer, inner *ebpf.Map
}

func newBarrier() (b barrier, err error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	if b.inner, err = ebpf.NewMap(inner); err != nil {
		return barrier{}, fmt.Errorf("grace period: %w", err)
	}
	if b.outer, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner}); err != nil {
		b.inner.Close()
		return barrier{}, fmt.Errorf("grace period: %w", err)
	}
	return b, nil
}

// wait takes 10 ms or more.
func (b *barrier) wait() error { return b.outer.Put(uint32(0), b.inner) }

func (b *barrier) close() {
	b.outer.Close()
	b.inner.Close()
}

// grace keeps used elements until no program can look at them. It waits for that in a goroutine of its own.
type grace[T any] struct {
	barrier barrier

	mu      sync.Mutex // guards all below
	retired []T
	free    []T
	waiting bool
	closed  bool
}

func newGrace[T any]() (*grace[T], error) {
	b, err := newBarrier()
	return &grace[T]{barrier: b}, err
}

// retire takes elements that nothing leads to.
func (g *grace[T]) retire(r T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retired = append(g.retired, r)
	if !g.waiting && !g.closed {
		g.waiting = true
		go g.wait()
	}
}

// past returns that whose grace period has ended since the last call.
func (g *grace[T]) past() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	free := g.free
	g.free = nil
	return free
}

// wait waits for grace periods until nothing is left to wait for.
func (g *grace[T]) wait() {
	for {
		g.mu.Lock()
		batch := g.retired
		g.retired = nil
		if len(batch) == 0 || g.closed {
			g.waiting = false
			if g.closed {
				g.barrier.close()
			}
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		if err := g.barrier.wait(); err != nil {
			continue // they are lost for reuse, until larger maps are made
		}
		g.mu.Lock()
		g.free = append(g.free, batch...)
		g.mu.Unlock()
	}
}

// close ends it. It does not wait for a grace period, which may take seconds on a busy machine.
func (g *grace[T]) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed = true; !g.waiting {
		g.barrier.close()
	}
}
