//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// fillKernel calls a function before each commit, which may refuse it, and one after it.
type fillKernel struct {
	kernel
	before func(commit int) error
	after  func(size int)
	made   int // attempts to commit
}

func (k *fillKernel) Commit(b *nft.Batch) error {
	k.made++
	if k.before != nil {
		if err := k.before(k.made); err != nil {
			return err
		}
	}
	size := b.Size()
	err := k.kernel.Commit(b)
	if err == nil && k.after != nil {
		k.after(size)
	}
	return err
}

// newFill returns a kernel, the backend of a network namespace on it, and a connection of the test's own.
func newFill(t *testing.T) (*fillKernel, *nft.Conn, func() *Backend) {
	ns := netnstest.New(t)
	k := &fillKernel{}
	return k, dial(t, ns), func() *Backend {
		return openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { k.kernel, k.made = c, 0; return k })
	}
}

// fillServices are enough for several transactions.
func fillServices() (services []*state.Service) {
	for i := range 1000 {
		services = append(services, dualStack(fmt.Sprintf("service-%03d", i), 1+i, 5, 0))
	}
	return services
}

// tablesMet returns how many of our tables are there, and how many of them packets meet, by chains that hooks call.
func tablesMet(t *testing.T, c *nft.Conn) (tables, met int) {
	t.Helper()
	for _, f := range families {
		exists, err := c.HasTable(table(f))
		if err != nil {
			t.Fatal(err)
		}
		if !exists {
			continue
		}
		tables++
		sk, err := c.ReadSkeleton(table(f))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(sk.ChainNames(), sk.IsBase) {
			met++
		}
	}
	return tables, met
}

// TestNewTablesAreFilledFirst lets packets meet new tables in the last of several transactions, with everything in them.
func TestNewTablesAreFilledFirst(t *testing.T) {
	k, c, start := newFill(t)
	services := fillServices()
	b := start()
	var seen []int // after each commit, how many tables packets meet
	var shown map[string]string
	k.after = func(size int) {
		if size > partBytes+partBytes/4 {
			t.Errorf("a transaction has %d bytes", size)
		}
		_, met := tablesMet(t, c)
		seen = append(seen, met)
		if met > 0 && shown == nil {
			shown = dump(t, c)
		}
	}
	r := apply(t, b, full(services...))
	if last := len(seen) - 1; last < 3 || seen[last] != len(families) || seen[last-1] != 0 {
		t.Errorf("after each transaction, packets meet %v tables; want two after the last of several, and none before", seen)
	}
	after := dump(t, c)
	if diff := changesBetween(shown, after); len(diff) > 0 {
		t.Errorf("when packets meet the tables, %d elements are missing, such as %s", len(diff), diff[0])
	}
	if r.Written < len(after) {
		t.Errorf("%d objects are reported as written, of %d", r.Written, len(after))
	}
	closeBackend(b)
	if r := apply(t, start(), full(services...)); r.Written > 0 {
		t.Errorf("a restart writes %d objects", r.Written)
	}

	// A change, and few services, take one transaction.
	k, _, start = newFill(t)
	b = start()
	made := k.made
	apply(t, b, full(services[:10]...))
	apply(t, b, delta(services[10]))
	if k.made-made != 2 {
		t.Errorf("%d transactions, want 2", k.made-made)
	}
}

// TestFillingFails has each transaction of a first Apply refused in turn. Without room it is carried out in another way; otherwise, nothing is left
// in the kernel that another Apply would find.
func TestFillingFails(t *testing.T) {
	k, c, start := newFill(t)
	services := fillServices()
	b := start()
	first := k.made + 1
	apply(t, b, full(services...))
	last, want := k.made, dump(t, c)
	for n := first; n <= last; n += max(1, (last-first)/4) {
		for name, errno := range map[string]error{"no room": fmt.Errorf("%w: %w", nft.ErrNoRoom, syscall.ENOBUFS), "refused": syscall.EPERM} {
			t.Run(fmt.Sprint(name, ", transaction ", n), func(t *testing.T) {
				k, c, start := newFill(t)
				k.before = func(commit int) error {
					if commit == n {
						return errno
					}
					return nil
				}
				b := start()
				_, err := b.Apply(t.Context(), full(services...))
				if errors.Is(errno, nft.ErrNoRoom) {
					if err != nil {
						t.Errorf("there was room for the rest: %v", err)
					}
				} else {
					if !errors.Is(err, errno) {
						t.Errorf("Apply: %v, want %v", err, errno)
					}
					if tables, met := tablesMet(t, c); met > 0 || tables > 0 && n < last {
						t.Errorf("%d tables are left, packets meet %d", tables, met)
					}
					apply(t, b, full(services...))
				}
				if diff := changesBetween(want, dump(t, c)); len(diff) > 0 {
					t.Errorf("%d differences, such as %s", len(diff), diff[0])
				}
			})
		}
	}
}

// TestFillingBreaksOff lets a process die while it fills new tables. The next one does not take what it finds for a state.
func TestFillingBreaksOff(t *testing.T) {
	k, c, start := newFill(t)
	services := fillServices()
	died := errors.New("died")
	b := start()
	first := k.made
	k.before = func(commit int) error {
		if commit > first+2 {
			return died
		}
		return nil
	}
	if _, err := b.Apply(t.Context(), full(services...)); !errors.Is(err, died) {
		t.Fatal(err)
	}
	closeBackend(b)
	if tables, met := tablesMet(t, c); tables == 0 || met > 0 || len(dump(t, c)) == 0 {
		t.Fatalf("%d tables, of which packets meet %d: this is no test of anything", tables, met)
	}

	k.before = nil
	reading := &readingKernel{dumped: map[string]bool{}}
	b = start()
	reading.kernel, b.kernel = b.kernel, reading
	apply(t, b, full(services[:3]...))
	if len(reading.dumped) > 0 {
		t.Errorf("sets of tables that served nobody were read: %v", slices.Sorted(maps.Keys(reading.dumped)))
	}
	got := dump(t, c)

	_, fresh, startFresh := newFill(t)
	apply(t, startFresh(), full(services[:3]...))
	if diff := changesBetween(dump(t, fresh), got); len(diff) > 0 {
		t.Errorf("%d differences, such as %s", len(diff), diff[0])
	}
}
