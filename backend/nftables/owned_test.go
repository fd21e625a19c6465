//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/internal/kernel/nodelock"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// needsOwnedTables skips a test on kernels that cannot keep others from changing our tables.
func needsOwnedTables(t *testing.T, c *nft.Conn) {
	t.Helper()
	switch ok, err := c.Has(nft.PersistentTables); {
	case err != nil:
		t.Fatal(err)
	case !ok:
		t.Skipf("this kernel does not have %s, as Linux %s has", nft.PersistentTables.Name, nft.PersistentTables.Since)
	}
}

// TestOwnedTables lets others do to our tables what they like. Nothing comes of it, and it costs nothing to know.
func TestOwnedTables(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	needsOwnedTables(t, conn)
	counting := &countingKernel{}
	b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { counting.kernel = c; return counting })
	apply(t, b, full(someServices()...))
	before, reads := dump(t, conn), counting.skeletons
	netnstest.NFT(t, ns, "flush ruleset; add table ip other; flush ruleset")
	for name, fill := range map[string]func(*nft.Batch){
		"deleting a table": func(b *nft.Batch) { b.DeleteTable(table(families[0])) },
		"flushing a chain": func(b *nft.Batch) { b.FlushChain(table(families[1]), "services") },
		"flushing a set":   func(b *nft.Batch) { b.FlushSet(table(families[0]), "hairpin") },
		"deleting an element": func(b *nft.Batch) {
			b.DeleteElem(table(families[0]), "service-slots", anElement(t, conn, families[0], "service-slots"))
		},
	} {
		var batch nft.Batch
		fill(&batch)
		if err := conn.Commit(&batch); !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s: %v, want %v", name, err, syscall.EPERM)
		}
	}
	undisturbed(t, b)
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("Verify: %+v", r)
	}
	apply(t, b, delta(dualStack("sticky", 3, 2, time.Hour)))
	apply(t, b, delta(someServices()[2]))
	if counting.skeletons != reads {
		t.Error("the tables were read back")
	}
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}

// TestNextProcessOwns goes through what a process may find: tables of one that had them for itself, and of one that had not.
func TestNextProcessOwns(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	needsOwnedTables(t, conn)
	start := func(open func(testing.TB, place, Options) *Backend, flags nft.TableFlags, written bool) {
		t.Helper()
		b := open(t, ns, Options{})
		if r := apply(t, b, full(someServices()...)); (r.Written > 0) != written {
			t.Errorf("%d objects written", r.Written)
		}
		if r := verify(t, b); r.Written != 0 {
			t.Errorf("Verify: %+v", r)
		}
		for when, want := range []nft.TableFlags{flags, flags &^ nft.Owned} {
			for _, f := range families {
				if info, err := conn.Table(table(f)); err != nil || info.Flags != want {
					t.Errorf("%d, %v: the table has flags %d, want %d, %v", when, f, info.Flags, want, err)
				}
			}
			closeBackend(b)
		}
	}
	start(newSharedBackend, 0, true)
	start(newBackend, nft.Owned|nft.Persistent, true)
	before := dump(t, conn)
	start(newBackend, nft.Owned|nft.Persistent, false)
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	start(newSharedBackend, 0, true) // as on a downgrade
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}

// TestForeignProcessOwnsTheTable is about a process without a lock, such as an administrator's experiment.
func TestForeignProcessOwnsTheTable(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	commitRaw(t, conn, func(b *nft.Batch) { b.CreateTable(table(families[1]), nft.Owned, "an experiment") })
	b, err := newAt(t, ns, Options{})
	if e, ok := errors.AsType[*nodelock.InUseError](err); !ok || !strings.Contains(e.Holder, "an experiment") {
		t.Errorf("New: %v, %v", b, err)
	}
	conn.Close()
	apply(t, newBackend(t, ns, Options{}), full(someServices()...))
}

// TestTablesVanish: tables that others cannot change, but that are not as they were all the same, are found by a Verify.
func TestTablesVanish(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	needsOwnedTables(t, conn)
	b := newBackend(t, ns, Options{})
	apply(t, b, full(someServices()...))
	before := dump(t, conn)
	for name, fill := range map[string]func(*nft.Batch){
		"deleted": func(b *nft.Batch) { b.DeleteTable(table(families[1])) },
		"another": func(b *nft.Batch) {
			b.DeleteTable(table(families[0]))
			b.AddTable(table(families[0]))
		},
	} {
		commitRaw(t, b.kernel.(*nft.Conn), fill)
		if r := verify(t, b); r.Repaired == 0 || r.Repaired != r.Written {
			t.Errorf("%s: %+v", name, r)
		}
		if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
			t.Errorf("%s: changed: %v", name, diff)
		}
	}
}

// newAt calls New in a namespace.
func newAt(t *testing.T, ns *netns.NS, o Options) (b *Backend, err error) {
	netnstest.Do(t, ns, func() error { b, err = New(t.Context(), o); return nil })
	if err == nil {
		t.Cleanup(func() { closeBackend(b) })
	}
	return b, err
}

// TestSecondWriter: there is one dataplane for a network namespace.
func TestSecondWriter(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	first, err := newAt(t, ns, Options{Program: "first v1"})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, first, full(someServices()...))
	before := dump(t, conn)
	generation, err := conn.Generation()
	if err != nil {
		t.Fatal(err)
	}
	_, err = newAt(t, ns, Options{Program: "second v1"})
	checkRefusal(t, err, "first v1")
	netnstest.Do(t, ns, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		removed, err := Cleanup(ctx)
		checkRefusal(t, err, "first v1")
		if removed {
			t.Error("something was removed")
		}
		return nil
	})
	if now, err := conn.Generation(); err != nil || now != generation {
		t.Errorf("something was committed: generation %d, %v, was %d", now, err, generation)
	}
	if r := verify(t, first); r.Written != 0 {
		t.Errorf("Verify: %+v", r)
	}
	closeBackend(first)
	second, err := newAt(t, ns, Options{Program: "second v1"})
	if err != nil {
		t.Fatal(err)
	}
	if r := apply(t, second, full(someServices()...)); r.Written != 0 {
		t.Errorf("%d objects written", r.Written)
	}
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	// Other namespaces are others' own.
	if _, err := newAt(t, netnstest.New(t), Options{}); err != nil {
		t.Errorf("in another namespace: %v", err)
	}
}

func checkRefusal(t *testing.T, err error, holder string) {
	t.Helper()
	e, ok := errors.AsType[*nodelock.InUseError](err)
	if !ok || !strings.Contains(e.Holder, holder) || !strings.Contains(e.Holder, fmt.Sprintf("PID %d", os.Getpid())) ||
		!strings.Contains(err.Error(), "stop it first") {
		t.Errorf("%v; want %s to be named", err, holder)
	}
}

// TestTakeOver waits for the first dataplane to end, or for its own end.
func TestTakeOver(t *testing.T) {
	ns := netnstest.New(t)
	first, err := newAt(t, ns, Options{})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, first, full(someServices()...))
	ctx, cancel := context.WithCancelCause(t.Context())
	given := errors.New("given up")
	time.AfterFunc(50*time.Millisecond, func() { cancel(given) })
	netnstest.Do(t, ns, func() error {
		_, err := New(ctx, Options{TakeOver: time.Hour})
		if _, inUse := errors.AsType[*nodelock.InUseError](err); !inUse || !errors.Is(err, given) {
			t.Errorf("after its context has ended: %v", err)
		}
		return nil
	})
	ended := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() {
		closeBackend(first)
		close(ended)
	})
	second, err := newAt(t, ns, Options{TakeOver: time.Hour})
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	if r := apply(t, second, full(someServices()...)); r.Written != 0 {
		t.Errorf("%d objects written", r.Written)
	}
}

// TestReconfigure goes from some options to others. The tables belong to the process during each change, and show what a fresh start
// with
// the same options writes.
func TestReconfigure(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	b := newBackend(t, ns, Options{})
	apply(t, b, full(someServices()...))
	for _, o := range []Options{
		{LocalDetector: detectPods(families...)},
		{LocalDetector: detectPods(families...), MasqueradeBit: new(3)},
		{MasqueradeBit: new(3), NodePortAddresses: state.NodePortAddresses{CIDRs: []netip.Prefix{prefix("127.0.0.0/8")}}},
		{},
	} {
		if err := b.Reconfigure(o); err != nil {
			t.Fatal(err)
		}
		netnstest.NFT(t, ns, "flush", "ruleset") // takes away what belongs to nobody
		if err := b.Reconfigure(Options{MasqueradeBit: new(32)}); err == nil {
			t.Error("a mask bit that does not exist")
		}
		if r := apply(t, b, full(someServices()...)); r.Written == 0 {
			t.Error("nothing was written")
		}
		after := dump(t, conn)
		closeBackend(b)
		b = newBackend(t, ns, o)
		if r := apply(t, b, full(someServices()...)); r.Written != 0 {
			t.Errorf("%+v: a fresh start writes %d objects: %v", o, r.Written, changesBetween(after, dump(t, conn)))
		}
	}
}

// TestOpeningIsTriedAgain: what the kernel refuses for a moment ends no start, also if it has been carried out all the same.
func TestOpeningIsTriedAgain(t *testing.T) {
	failures := 0
	for seed := range uint64(30) {
		ns := netnstest.New(t)
		b := newBackend(t, ns, Options{})
		apply(t, b, full(someServices()...))
		closeBackend(b)
		k := &faulty{rng: rand.New(rand.NewPCG(seed, 6)), rate: 0.05}
		b = openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
			k.kernel = c
			return k
		})
		failures += k.failures
		k.rate = 0
		if r := apply(t, b, full(someServices()...)); r.Written != 0 {
			t.Errorf("seed %d: %d objects written", seed, r.Written)
		}
	}
	if failures == 0 {
		t.Error("nothing failed")
	}
}
