package nftables

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// alarm is what a Verify should look for.
type alarm uint8

const (
	quiet alarm = iota
	addressesChanged
	foreignChange
)

// guard notices changes of the kernel's rules by other programs, where the kernel does not prevent them. Every commit raises the generation
// of the ruleset, including our own commits. If our commits explain the generation, nothing else was committed, and the guard need not look
// for drift. A request for the generation takes about a microsecond. With a subscription to nf_tables' events, the kernel would report
// every element that we write.
type guard struct {
	disturbed chan struct{}
	log       *slog.Logger
	conn      generations // nil if nothing else can change our tables
	stop      chan struct{}
	done      sync.WaitGroup

	mu         sync.Mutex // held over our commits, so that their generations are counted
	armed      bool
	generation uint32
	pending    alarm
	// suspicion is when a foreign commit was first seen that has not been looked into.
	suspicion time.Time
	// nextCheck is when a full comparison may be made again for such a suspicion alone.
	nextCheck time.Time
	// failing is how long the generation is not asked for after the last failure; 0 if it could be read.
	failing  time.Duration
	nextPoll time.Time
}

// generations is what the guard needs of the kernel, over a socket of its own.
type generations interface {
	Generation() (uint32, error)
	HasTable(nft.Table) (bool, error)
	Close() error
}

// guardPeriod is the time between two requests for the generation. suspicionCost bounds the share of time for comparisons that only follow
// other programs' changes of their own tables.
const (
	guardPeriod   = 25 * time.Millisecond
	suspicionCost = 50
	// guardPatience is the longest time that the generation is not asked for.
	guardPatience = time.Minute
)

func newGuard(addresses <-chan struct{}, log *slog.Logger, owned bool) (*guard, error) {
	g := &guard{disturbed: make(chan struct{}, 1), log: log, stop: make(chan struct{})}
	if !owned {
		conn, err := nft.Dial()
		if err != nil {
			return nil, err
		}
		if g.generation, err = conn.Generation(); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		g.conn = conn
	}
	g.done.Go(func() { g.watch(addresses) })
	return g, nil
}

func (g *guard) close() error {
	close(g.stop)
	g.done.Wait()
	if g.conn == nil {
		return nil
	}
	return g.conn.Close()
}

func (g *guard) watch(addresses <-chan struct{}) {
	var ticks <-chan time.Time // never, if there is nothing to ask for
	if g.conn != nil {
		ticker := time.NewTicker(guardPeriod)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-g.stop:
			return
		case <-addresses:
			g.raise(addressesChanged)
		case <-ticks:
			if g.mu.TryLock() { // else a commit is under way, and we look again after it
				if a := g.look(time.Now()); a != quiet {
					g.alert(a)
				}
				g.mu.Unlock()
			}
		}
	}
}

// look compares the generation with the one of our last commit, and returns what to look for now.
func (g *guard) look(now time.Time) alarm {
	if g.conn == nil || now.Before(g.nextPoll) {
		return quiet
	}
	generation, err := g.conn.Generation()
	if err != nil {
		g.fail(now, err)
		return foreignChange
	}
	if g.failing > 0 {
		g.log.Info("the generation of the kernel's rules can be read again")
		g.failing = 0
	}
	if !g.armed {
		g.generation = generation
		return quiet
	}
	if generation != g.generation {
		g.generation = generation
		if g.suspicion.IsZero() {
			g.suspicion = now
		}
		for _, t := range ruleset.Tables() {
			if ok, err := g.conn.HasTable(t); err == nil && !ok {
				return foreignChange
			}
		}
	}
	if !g.suspicion.IsZero() && now.After(g.nextCheck) {
		return foreignChange
	}
	return quiet
}

// fail says once that the generation cannot be read, and has it asked for less and less often.
func (g *guard) fail(now time.Time, err error) {
	if g.failing == 0 {
		g.log.Warn("cannot watch for changes of the kernel's rules by other programs; comparing them periodically",
			"error", err)
	}
	g.failing = min(max(2*g.failing, guardPeriod), guardPatience)
	g.nextPoll = now.Add(g.failing)
}

func (g *guard) alert(a alarm) {
	g.pending = max(g.pending, a)
	select {
	case g.disturbed <- struct{}{}:
	default:
	}
}

// raise asks for a Verify.
func (g *guard) raise(a alarm) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alert(a)
}

// take returns what there is to look for, and considers it done. It asks for no Verify: this is one.
func (g *guard) take() alarm {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := max(g.pending, g.look(time.Now()))
	if !g.suspicion.IsZero() || g.failing > 0 {
		a = foreignChange
	}
	g.pending, g.suspicion = quiet, time.Time{}
	select {
	case <-g.disturbed: // the pending Verify is this one
	default:
	}
	return a
}

// spent says how long a full comparison took, which bounds how soon the next may follow.
func (g *guard) spent(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextCheck = time.Now().Add(suspicionCost * d)
}

// commit runs fn, which commits one batch or fails.
func (g *guard) commit(fn func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := fn()
	if err == nil {
		g.generation++
	}
	return err
}

// arm starts the alarms, for whatever is committed from now on.
func (g *guard) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.armed {
		if a := g.look(time.Now()); a != quiet {
			g.alert(a)
		}
		g.armed = true
	}
}
