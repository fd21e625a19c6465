package nftables

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/kernel/staleflows"
	"github.com/switchyard-net/switchyard/state"
)

// flowCutter deletes stale flows in the background. A look at the kernel's table takes from 10 ms to a second, for which no
// commit waits. It waits while a few flows are judged and deleted: they are judged by what the kernel shows then.
type flowCutter struct {
	log     *slog.Logger
	cleaner *staleflows.Cleaner                                   // used by cut only, except for Removing
	onCut   func(f state.Family, took time.Duration, deleted int) // may be nil
	wake    chan struct{}
	stop    context.CancelFunc
	// processorTime is that of the thread that looks. Tests replace it.
	processorTime func() time.Duration
	done          sync.WaitGroup

	// committing has room for one value, which is in it from before a commit until its notes are in the queue, and while flows are
	// judged. Unlike a mutex, it serves those who wait in turn.
	committing chan struct{}

	mu        sync.Mutex // guards all below
	queue     []flowNote
	nodePorts []netip.Addr
	// doubtful is set if a commit failed, so that it is not certain what the kernel shows.
	doubtful bool
	// left is set if flows were not cut for that reason.
	left bool
}

// flowNote is what a commit means for flows: one service that changed, or all that there are.
type flowNote struct {
	old, new *state.Service
	all      []*state.Service // if it is not nil
	// gap is set if before the commit, connections to any of all may have begun that were not translated.
	gap bool
}

// lastPatience is how long it may take to close.
const lastPatience = time.Second

// cutAgain is how long a failure is left alone, unless another commit comes first.
const cutAgain = time.Second

// lookPause is the least time between the end of one look at the kernel's flows and the next: while it is being looked, one CPU
// handles no packets. What is committed meanwhile is looked at together, so stale flows last little longer than this.
const lookPause = 250 * time.Millisecond

// lookShare is how many times as long as a look's processor time the pause after it is at least. A look takes a second of one CPU if
// somebody has filled the kernel's table with flows; more than a quarter of a CPU is not spent on that. The time that a look waits
// for a CPU does not count: on a busy node, stale flows would last longer for nothing.
const lookShare = 3

// removalPatience is how long a commit waits for the end of a removal of flows to a frontend that it concerns. With 10,000 flows in
// the kernel's table, a removal takes 3 ms. With so many that it takes longer, others must not wait: then a flow to an endpoint
// that comes back at this very moment may have to begin once more.
const removalPatience = 5 * time.Millisecond

func newFlowCutter(t staleflows.Table, log *slog.Logger) *flowCutter {
	c := &flowCutter{log: log, wake: make(chan struct{}, 1), committing: make(chan struct{}, 1), processorTime: processorTime}
	c.cleaner = staleflows.New(t, staleflows.Options{Logger: log, OnClean: func(f state.Family, took time.Duration, deleted int) {
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

// begin waits until a commit may be made that changes these services. One of committed and failed follows.
func (c *flowCutter) begin(changes ...flowNote) {
	c.committing <- struct{}{}
	for _, n := range changes {
		if removed := c.cleaner.Removing(n.new); removed != nil {
			select {
			case <-removed:
			case <-time.After(removalPatience):
			}
			return // the next removal begins after the commit
		}
	}
}

// failed notes that the commit failed, perhaps only its answer.
func (c *flowCutter) failed() {
	defer func() { <-c.committing }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubtful = true
}

// isDoubtful reports whether the last commit failed: it may have been carried out, and what it means for flows was not taken down.
func (c *flowCutter) isDoubtful() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubtful
}

// committed takes down what a commit changed, and the addresses that serve NodePorts after it, which are sorted.
func (c *flowCutter) committed(nodePorts []netip.Addr, notes ...flowNote) {
	defer func() { <-c.committing }()
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
	runtime.LockOSThread()     // for processorTime
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
		began := c.processorTime()
		if err := c.cut(ctx); err != nil && ctx.Err() == nil {
			again = time.After(cutAgain)
			if !failing {
				c.log.Warn("stale flows could not be deleted; will try again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(lookPause, lookShare*(c.processorTime()-began))):
		}
	}
}

// errDoubtful ends a look when it is not certain what the kernel shows.
var errDoubtful = errors.New("a commit has failed")

// cut cuts what has become stale so far. What fails is left for the next call.
func (c *flowCutter) cut(ctx context.Context) error {
	c.takeNotes()
	_, err := c.cleaner.Clean(ctx, func(fn func() error) error {
		c.takeNotes() // those of all services take long
		c.committing <- struct{}{}
		defer func() { <-c.committing }()
		if doubtful := c.takeNotes(); doubtful {
			return errDoubtful
		}
		return fn()
	})
	if errors.Is(err, errDoubtful) {
		return nil // the next commit that succeeds wakes us
	}
	return err
}

// takeNotes hands the queue to the cleaner.
func (c *flowCutter) takeNotes() (doubtful bool) {
	c.mu.Lock()
	queue, doubtful := c.queue, c.doubtful
	c.queue, c.left = nil, c.left || doubtful
	c.cleaner.SetNodePortAddrs(c.nodePorts)
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
