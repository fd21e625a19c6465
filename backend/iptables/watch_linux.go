package iptables

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/kernel/ifaddr"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// watcher asks for a Verify when addresses have changed, and when another program seems to have changed the tables. The
// tables have a mark, which takes microseconds to read. When the mark changes, the watcher counts chains. If rules of
// ours are missing or were added, a Verify is due at once. If the numbers are right, another program has probably
// changed its own rules. Then a Verify, which reads each rule, can wait.
//
// The mark is read before the tables, so that a later change of another program gives them another mark. After a change
// of ours, it is read after the write. If another program changes rules in between and the numbers stay right, the
// watcher does not notice it. Only a periodic Verify repairs such a change.
type watcher struct {
	disturbed chan struct{}
	log       *slog.Logger
	addrs     *ifaddr.Watcher
	kernel    kernel
	held      held
	stop      chan struct{}
	done      sync.WaitGroup

	mu sync.Mutex // held while we look at the tables or change them
	// expected is the mark that the tables had after our last look at all of them or our last change, empty before.
	expected string
	// counted is the mark that they had before the chains were last counted, or read, and were right. It is empty after a change of ours.
	counted string
	// A changed mark leads to a Verify from nextVerify on, and wrong counts from nextRepair on. Chains may be counted again from nextCount on.
	nextVerify, nextCount, nextRepair time.Time
	// vain is how many times the duration of a Verify that found nothing passes before wrong numbers lead to the next one.
	vain time.Duration
	// foreign is set if the tables had another mark than expected since they were last read.
	foreign bool
	failing bool
}

// kernel is what a watcher reads of the tables of both families.
type kernel interface {
	// mark returns what changes with the tables.
	mark(held) (string, error)
	// uses returns how often chains of ours are used, as [rules.Tables.ChainUses] has it.
	uses(state.Family, []rules.Table) (map[rules.ChainID]int, error)
	close() error
}

// held returns what the kernel is to hold of a family. It may be called while watcher.mu is held, once there was an update.
type held func(state.Family) *rules.Tables

const (
	// watchPeriod is how often the mark is looked at.
	watchPeriod = 50 * time.Millisecond
	// verifyCost bounds the share of time spent on reading all rules after changes of foreign rules. The pause is so many times as long as the
	// reading took. countCost bounds the share of counting chains. repairCost bounds the share of repairs, when other programs keep changing
	// our rules.
	verifyCost, countCost, repairCost = 50, 20, 1
)

func newWatcher(v Variant, held held, addrs *ifaddr.Watcher, log *slog.Logger) (*watcher, error) {
	w := &watcher{disturbed: make(chan struct{}, 1), log: log, addrs: addrs, held: held, stop: make(chan struct{}), vain: repairCost}
	var err error
	if v == NFT {
		w.kernel, err = openGeneration()
	} else {
		w.kernel, err = openSizes()
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
	return w.kernel.close()
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

// look compares the mark, counts chains if it is another one, and asks for a Verify if it is time for one.
func (w *watcher) look(now time.Time) {
	if w.expected == "" {
		return
	}
	mark, ok := w.mark()
	w.foreign = w.foreign || ok && mark != w.expected
	if w.foreign && now.After(w.nextVerify) {
		w.disturb()
	}
	if !ok || mark == w.counted || now.Before(w.nextCount) {
		return
	}
	right, err := w.count()
	w.nextCount = time.Now().Add(countCost * time.Since(now))
	w.note(err)
	switch {
	case err != nil:
	case right:
		w.counted, w.vain = mark, repairCost
	case now.After(w.nextRepair):
		w.disturb()
	}
}

// mark returns the mark that the tables have, if it can be read.
func (w *watcher) mark() (mark string, ok bool) {
	mark, err := w.kernel.mark(w.held)
	w.note(err)
	return mark, err == nil
}

// note logs that watching fails, once.
func (w *watcher) note(err error) {
	if err != nil && !w.failing {
		w.log.Warn("cannot watch for changes of the tables by other programs; comparing them periodically", "error", err)
	}
	w.failing = err != nil
}

// count reports whether the kernel has our chains, with as many rules as they should have, and as many that lead to them.
func (w *watcher) count() (right bool, err error) {
	for _, f := range families {
		t := w.held(f)
		uses, err := w.kernel.uses(f, t.HeldTables())
		if err != nil || !maps.Equal(uses, t.ChainUses()) {
			return false, err
		}
	}
	return true, nil
}

// during runs fn, which changes the tables, reads all of them before if it reads, and returns how much it has written.
func (w *watcher) during(reads bool, fn func() (written int, err error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, ok := w.mark()
	w.foreign = w.foreign || ok && w.expected != "" && before != w.expected // another program's change must not be taken for ours
	began := time.Now()
	written, err := fn()
	if reads {
		now := time.Now()
		w.rest(now, now.Sub(began), written > 0 || err != nil)
		w.foreign = w.foreign && err != nil
	}
	switch {
	case err != nil:
	case reads && written == 0:
		if ok {
			w.expected, w.counted = before, before
		}
	case written > 0:
		// Counting finds changes by other programs between our change and this mark. Our changes may follow each other
		// so closely that there is no other time for it.
		if after, ok := w.mark(); ok {
			w.expected, w.counted = after, ""
			w.look(time.Now())
		}
	}
	return err
}

// rest works out when the next Verify may come, after one that ends now and took so long.
func (w *watcher) rest(now time.Time, took time.Duration, useful bool) {
	if useful {
		w.nextVerify, w.nextRepair, w.vain = now.Add(repairCost*took), now.Add(repairCost*took), repairCost
		return
	}
	w.nextVerify, w.nextRepair = now.Add(verifyCost*took), now.Add(w.vain*took)
	w.vain = min(2*w.vain, verifyCost)
}

// generation is the kernel of the variant nft. Every commit to nf_tables gives it another mark.
type generation struct{ conn *nft.Conn }

func openGeneration() (generation, error) {
	conn, err := nft.Dial()
	return generation{conn}, err
}

func (g generation) mark(held) (string, error) {
	n, err := g.conn.Generation()
	return fmt.Sprint("generation ", n), err
}

func (g generation) uses(f state.Family, tables []rules.Table) (map[rules.ChainID]int, error) {
	family := nft.IPv4
	if f == state.IPv6 {
		family = nft.IPv6
	}
	chains, err := g.conn.ChainUses(family)
	if err != nil {
		return nil, err
	}
	uses := make(map[rules.ChainID]int, len(chains))
	for _, c := range chains {
		if table := rules.Table(c.Table); rules.IsOurs(c.Name) && slices.Contains(tables, table) {
			uses[rules.ChainID{Table: table, Name: c.Name}] = c.Uses
		}
	}
	return uses, nil
}

func (g generation) close() error { return g.conn.Close() }
