package nftables

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/staleflows"
	"github.com/switchyard-net/switchyard/state"
)

// flowCutter cuts stale flows in the background. A look at the kernel's table takes some 10 ms, for which the next commit need
// not wait. It waits while flows are being cut, though: they are judged by what the kernel shows then.
type flowCutter struct {
	log     *slog.Logger
	cleaner *staleflows.Cleaner                                   // used by cut only
	onCut   func(f state.Family, took time.Duration, deleted int) // may be nil
	wake    chan struct{}
	stop    context.CancelFunc
	done    sync.WaitGroup

	// committing is held from before a commit until its notes are in the queue, and while flows are being cut.
	committing sync.Mutex

	mu        sync.Mutex // guards all below
	queue     []flowNote
	nodePorts []netip.Addr
	// doubtful says that a commit failed, so that it is not certain what the kernel shows.
	doubtful bool
	// left says that flows were not cut for that reason.
	left bool
}

// flowNote is what a commit means for flows: one service that changed, or all that there are.
type flowNote struct {
	old, new *state.Service
	all      []*state.Service // if it is not nil
	// gap says that before the commit, connections to any of all may have begun that were not translated.
	gap bool
}

// lastPatience is how long it may take to close.
const lastPatience = time.Second

// cutAgain is how long a failure is left alone, unless another commit comes first.
const cutAgain = time.Second

// lookPause is the least time between the end of one look at the kernel's flows and the next: while it is being looked, one CPU
// handles no packets. What is committed meanwhile is looked at together, so stale flows last little longer than this.
const lookPause = 500 * time.Millisecond

func newFlowCutter(t staleflows.Table, log *slog.Logger) *flowCutter {
	c := &flowCutter{log: log, wake: make(chan struct{}, 1)}
	c.cleaner = staleflows.New(t, staleflows.Options{Logger: log, NodePortAddr: func(a netip.Addr) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Contains(c.nodePorts, a)
	}, OnCut: func(f state.Family, took time.Duration, deleted int) {
		if c.onCut != nil {
			c.onCut(f, took, deleted)
		}
	}})
	return c
}

// start begins to cut flows.
func (c *flowCutter) start() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.done.Go(func() { c.run(ctx) })
}

// close cuts what has become stale, within lastPatience: it may be long until a next process looks at all flows.
func (c *flowCutter) close() {
	if c.stop != nil {
		c.stop()
		c.done.Wait()
	}
}

// begin says that a commit is about to be made. One of committed and failed follows.
func (c *flowCutter) begin() { c.committing.Lock() }

// failed says that the commit failed, perhaps only its answer.
func (c *flowCutter) failed() {
	defer c.committing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubtful = true
}

// isDoubtful says that the last commit failed: it may have been carried out, and what it means for flows was not taken down.
func (c *flowCutter) isDoubtful() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubtful
}

// committed takes down what a commit changed, and the addresses that serve NodePorts after it.
func (c *flowCutter) committed(nodePorts []netip.Addr, notes ...flowNote) {
	defer c.committing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodePorts, c.doubtful = nodePorts, false
	for _, n := range notes {
		if n.all != nil || hasUDP(n.old) || hasUDP(n.new) {
			c.queue = append(c.queue, n)
		}
	}
	if len(c.queue) > 0 || c.left {
		c.left = false
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

func hasUDP(s *state.Service) bool {
	return s != nil && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Protocol == state.UDP })
}

func (c *flowCutter) run(ctx context.Context) {
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPatience)
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
		if err := c.cut(ctx); err != nil && ctx.Err() == nil {
			again = time.After(cutAgain)
			if !failing {
				c.log.Warn("stale flows could not be deleted; will try again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookPause):
		}
	}
}

// cut cuts what has become stale so far. What fails is left for the next call.
func (c *flowCutter) cut(ctx context.Context) error {
	c.takeNotes()
	found, err := c.cleaner.Look(ctx)
	c.committing.Lock()
	defer c.committing.Unlock()
	if doubtful := c.takeNotes(); doubtful {
		return err // the next commit that succeeds wakes us
	}
	_, cutErr := c.cleaner.Cut(ctx, found)
	return errors.Join(err, cutErr)
}

// takeNotes hands the queue to the cleaner.
func (c *flowCutter) takeNotes() (doubtful bool) {
	c.mu.Lock()
	queue, doubtful := c.queue, c.doubtful
	c.queue, c.left = nil, c.left || doubtful
	c.mu.Unlock()
	for _, n := range queue {
		switch {
		case n.all == nil:
			c.cleaner.Note(n.old, n.new)
		case n.gap:
			c.cleaner.NoteGap(slices.Values(n.all))
		default:
			c.cleaner.NoteAll(slices.Values(n.all))
		}
	}
	return doubtful
}
