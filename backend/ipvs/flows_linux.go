package ipvs

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/kernel/staleflows"
	"github.com/switchyard-net/switchyard/state"
)

// flowCutter deletes the tracked flows of virtual servers that lead to the wrong place, in the background. IPVS itself lets go of a flow with
// the next packet after its endpoint was deleted, but a flow that was tracked before there was a virtual server would never be masqueraded.
type flowCutter struct {
	log     *slog.Logger
	table   *conntrack.Conn
	cleaner *staleflows.Cleaner
	wake    chan struct{}

	// mu is held while a change is made. It guards all below.
	mu *sync.Mutex
	// notes are what changes meant that the cleaner has not been given yet.
	notes []func()
	// known is set if it is certain what IPVS does.
	known bool
}

const (
	// cutPause is the least time between two looks at the kernel's flows.
	cutPause = 250 * time.Millisecond
	// cutShare is how many times as long as a look the pause after it is at least.
	cutShare = 3
	// cutAgain is how long a failure is left alone.
	cutAgain = time.Second
	// removalTimeout is how long a change waits for the end of a deletion that concerns it.
	removalTimeout = 5 * time.Millisecond
)

func newFlowCutter(log *slog.Logger, mu *sync.Mutex) (*flowCutter, error) {
	table, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	return &flowCutter{
		log: log, table: table, cleaner: staleflows.New(table, staleflows.Options{Logger: log}), wake: make(chan struct{}, 1), mu: mu,
	}, nil
}

func (c *flowCutter) close() error { return c.table.Close() }

// begin waits for the end of a deletion of flows to services that change.
func (c *flowCutter) begin(changed []*state.Service) {
	for _, s := range changed {
		if removed := c.cleaner.Removing(s); removed != nil {
			select {
			case <-removed:
			case <-time.After(removalTimeout):
			}
			return // the next deletion begins after the change
		}
	}
}

func (c *flowCutter) note(old, new *state.Service) {
	if hasUDP(old) || hasUDP(new) {
		c.notes = append(c.notes, func() { c.cleaner.Note(old, new) })
	}
}

// noteAll is for when it is not known what was before. gap is set if connections may have begun that IPVS did not see.
func (c *flowCutter) noteAll(all []*state.Service, gap bool) {
	c.notes = append(c.notes, func() {
		if gap {
			c.cleaner.NoteGap(slices.Values(all))
		} else {
			c.cleaner.NoteAll(slices.Values(all))
		}
	})
}

// committed has what was noted taken up, if known.
func (c *flowCutter) committed(known bool) {
	c.known = known
	if !known || len(c.notes) == 0 {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func hasUDP(s *state.Service) bool {
	return s != nil && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Protocol == state.UDP })
}

// run deletes flows until ctx ends, and then once more.
func (c *flowCutter) run(ctx context.Context) {
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutAgain)
		defer cancel()
		if err := c.cut(last); err != nil {
			c.log.Warn("stale flows could not be deleted; the next process will try again", "error", err)
		}
	}()
	var again <-chan time.Time // set while something is left from a failure
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-again:
		}
		failing := again != nil
		again = nil
		began := time.Now()
		if err := c.cut(ctx); err != nil && ctx.Err() == nil {
			again = time.After(cutAgain)
			if !failing {
				c.log.Warn("stale flows could not be deleted; will try again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(cutPause, cutShare*time.Since(began))):
		}
	}
}

// errDoubtful ends a look when it is not certain what IPVS does.
var errDoubtful = errors.New("a change has failed")

func (c *flowCutter) cut(ctx context.Context) error {
	inTurn := func(fn func() error) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.known {
			return errDoubtful
		}
		for _, note := range c.notes {
			note()
		}
		c.notes = nil
		return fn()
	}
	if err := inTurn(func() error { return nil }); err != nil {
		return nil // the next change that succeeds wakes us
	}
	_, err := c.cleaner.Clean(ctx, inTurn)
	if errors.Is(err, errDoubtful) {
		c.mu.Lock()
		defer c.mu.Unlock()
		// What is pending is taken up after the next change that succeeds.
		c.notes = append(c.notes, func() {})
		return nil
	}
	return err
}
