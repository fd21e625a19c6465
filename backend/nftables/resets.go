package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// resets has the kernel reset connections to endpoints that are gone. It commits its tables separately: before a commit that lets
// endpoints serve again, and after a commit that removes endpoints. A failure of the latter fails no update.
type resets struct {
	*ruleset.Resets
	batch nft.Batch
	// inherited is set until the tables of an earlier process have been read. doubtful is set after a failure, until they are read
	// again.
	inherited, doubtful bool
	// warned is what had no room at the last warning.
	warned ruleset.Dropped
	// now is the clock. Tests replace it.
	now func() time.Time
}

// commitResets carries out a plan of resets, and returns how many objects it wrote. If the kernel has no room for it, which must not keep
// endpoints from serving again, all resets are given up.
func (b *Backend) commitResets(p *ruleset.ResetPlan) (int, error) {
	n, err := b.commitResetsAtOnce(p)
	if errors.Is(err, nft.ErrNoRoom) {
		b.log.Warn("no room to reset connections; connections to endpoints that were removed, or had a drain deadline, are no longer reset",
			"error", err, "remedy", moreRoom)
		p.GiveUp()
		n, err = b.commitResetsAtOnce(p)
	}
	if err != nil {
		b.resets.doubtful = true
		return 0, fmt.Errorf("nftables: tables %s: %w", ruleset.ResetsName, err)
	}
	p.Commit()
	return n, nil
}

func (b *Backend) commitResetsAtOnce(p *ruleset.ResetPlan) (n int, err error) {
	batch := &b.resets.batch
	batch.Reset()
	p.Write(batch)
	if n = batch.Len(); n > 0 {
		err = b.guard.commit(func() error { return b.kernel.Commit(batch) })
	}
	if batch.Cap() > keepBatch {
		*batch = nft.Batch{}
	}
	return n, err
}

// clearResets ensures, before a plan is carried out, that no endpoint that serves afterwards is reset. After a comparison, want is its
// desired content, and the tables of resets are also compared. want is nil for other plans.
func (b *Backend) clearResets(p *ruleset.Plan, want *ruleset.Desired) (s *ruleset.Serving, written int, err error) {
	if p.UsesDeadlines(want) {
		if b.resets == nil {
			b.resets = b.newResets()
		}
		if b.resets.UseDeadlines() {
			b.resets.doubtful = true
		}
	}
	if b.resets == nil {
		return nil, 0, nil
	}
	s = b.resets.After(p, want)
	compare := want != nil || b.resets.doubtful
	var change *ruleset.ResetPlan
	if compare {
		found, err := b.readResets()
		if err != nil {
			return nil, 0, err
		}
		change = b.resets.Compare(s, found, b.resets.inherited, b.resets.now())
	} else {
		change = b.resets.Clear(s, b.resets.now())
		for _, f := range b.resets.Exists() {
			if err := b.count(f, change.Back(f)); err != nil {
				return nil, 0, fmt.Errorf("nftables: %w", err)
			}
		}
	}
	if written, err = b.commitResets(change); err != nil {
		return nil, 0, err
	}
	if compare {
		b.resets.inherited, b.resets.doubtful = false, false
	}
	return s, written, nil
}

// readResets reads the tables of resets.
func (b *Backend) readResets() ([]ruleset.Found, error) {
	var found []ruleset.Found
	for i, t := range ruleset.ResetTables() {
		in := ruleset.Found{Family: []state.Family{state.IPv4, state.IPv6}[i]}
		exists, err := b.kernel.HasTable(t)
		if err == nil && exists {
			in.Skeleton, err = b.kernel.ReadSkeleton(t)
		}
		if err == nil && exists {
			in.Elems = map[string][]nft.Elem{}
			for _, set := range ruleset.SetsIn(in.Family, in.Skeleton) {
				if in.Elems[set], err = b.kernel.Elems(t, set); err != nil {
					break
				}
			}
			for _, set := range ruleset.CountedSets() {
				b.resets.Count(in.Family, set, in.Elems[set], b.reportResets)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("nftables: reading table %v: %w", t, err)
		}
		found = append(found, in)
	}
	return found, nil
}

// count reads what elements of the sets of endpoints of a family have counted, by their keys: they may be many.
func (b *Backend) count(f state.Family, keys map[string][][]byte) error {
	for _, set := range ruleset.CountedSets() {
		of := keys[set]
		if len(of) == 0 {
			continue
		}
		if err := b.kernel.FindElems(resetTable(f), set, len(of[0]), slices.Concat(of...), func(_ int, e nft.Elem) {
			b.resets.Count(f, set, []nft.Elem{e}, b.reportResets)
		}); err != nil {
			return err
		}
	}
	return nil
}

func resetTable(f state.Family) nft.Table {
	if f == state.IPv6 {
		return ruleset.ResetTables()[1]
	}
	return ruleset.ResetTables()[0]
}

// addResets has connections reset to endpoints that are gone since the last call. It returns how many objects it wrote.
func (b *Backend) addResets() (written int) {
	if b.resets == nil {
		return 0
	}
	p, gone := b.resets.Lost(b.resets.now())
	written, err := b.commitResets(p)
	if err != nil {
		p.Commit() // the next comparison adds them
		b.guard.raise(quiet)
		b.log.Warn("cannot add endpoints whose connections are to be reset; will try again", "error", err)
	}
	b.resets.warnDropped(b.log)
	if len(gone) > 0 && b.o.OnGone != nil {
		b.o.OnGone(gone)
	}
	return written
}

// warnDropped warns if more than at the last call had no room.
func (r *resets) warnDropped(log *slog.Logger) {
	if n := r.Dropped.Gone - r.warned.Gone; n > 0 {
		log.Warn("too many removed endpoints to reset all connections; the other clients wait for their timeouts",
			"notReset", n, "mostEndpoints", ruleset.MaxGone)
	}
	if n := r.Dropped.Deadlines - r.warned.Deadlines; n > 0 {
		log.Warn("too many endpoints with a drain deadline; connections to the others stay until an end closes them", "withoutDeadline", n,
			"most", ruleset.MaxDrained, "mostOfNamespace", ruleset.MaxDrainedOf, "remedy", "remove the annotation switchyard.net/drain-timeout from Services with many endpoints")
	}
	r.warned = r.Dropped
}

// tendResets takes down how many connections were reset, and removes tables in which everything has timed out.
func (b *Backend) tendResets() error {
	if b.resets == nil {
		return nil
	}
	for _, f := range b.resets.Exists() {
		t := resetTable(f)
		sk, err := b.kernel.ReadSkeleton(t)
		if errors.Is(err, os.ErrNotExist) { // something else has deleted it
			b.resets.doubtful = true
			continue
		}
		if err == nil && b.resets.Counted(f, sk) {
			err = b.count(f, b.resets.Keys(f))
		}
		if err != nil {
			b.resets.doubtful = true
			return fmt.Errorf("nftables: reading table %v: %w", t, err)
		}
	}
	_, err := b.commitResets(b.resets.Expire(b.resets.now()))
	return err
}

// reportResets reports how many packets of a service's connections were answered with a reset. A service that is gone by now has no
// name.
func (b *Backend) reportResets(name state.ServiceName, n uint64) {
	if b.o.OnResets == nil {
		return
	}
	if b.mirror.Record(name) == nil {
		name = state.ServiceName{}
	}
	b.o.OnResets(name, n)
}

// useResets begins or ends to reset connections to endpoints that are gone, as the options say. Tables of an earlier process are compared in
// any case: their deadlines stay.
func (b *Backend) useResets() error {
	if b.resets == nil {
		wanted := b.o.ResetRemoved
		for _, t := range ruleset.ResetTables() {
			exists, err := b.kernel.HasTable(t)
			if err != nil {
				return fmt.Errorf("nftables: %w", err)
			}
			wanted = wanted || exists
		}
		if !wanted {
			return nil
		}
		b.resets = b.newResets()
		b.resets.inherited = true
	}
	b.resets.ResetGone(b.o.ResetRemoved)
	return nil
}

func (b *Backend) newResets() *resets {
	return &resets{Resets: ruleset.NewResets(b.flags), now: time.Now}
}
