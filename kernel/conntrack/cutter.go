package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Cutter deletes stale flows in the background, for a dataplane whose commits must not wait for looks at the kernel's table. A commit stands
// between [Cutter.Begin] and one of [Cutter.Committed] and [Cutter.Failed]. A look at the kernel's table takes from 10 ms to a second, for which no
// commit waits. It waits while a few flows are judged and deleted: they are judged by what the kernel shows then.
type Cutter struct {
	log     *slog.Logger
	cleaner *Cleaner // used by Cut only, except for Removing
	wake    chan struct{}
	stop    context.CancelFunc
	// clock returns processorTime for the calling thread. Tests replace it.
	clock func() func() time.Duration
	// processorTime is the processor time of the thread that looks, 0 until Start. Any thread may ask.
	processorTime func() time.Duration
	done          sync.WaitGroup

	// committing has room for one value. It holds the value from before a commit until the notes of the commit are in the queue, and while
	// flows are judged. Unlike a mutex, it serves waiting goroutines in turn.
	committing chan struct{}
	// reserve is for how much processor time commits may wait for removals beyond removalWait, as of filled. Only Begin uses both.
	reserve time.Duration
	filled  time.Time

	mu               sync.Mutex // guards all below
	queue            []Note
	nodePorts, peers []netip.Addr
	// doubtful is set if a commit failed, so that it is not certain what the kernel shows.
	doubtful bool
	// left is set if flows were not cut for that reason.
	left bool
}

// Note is what a commit means for flows: one service that changed, or all that there are.
type Note struct {
	Old, New *state.Service
	All      []*state.Service // if it is not nil
	// Gap is set if before the commit, connections to any of All may have begun that were not translated.
	Gap bool
}

// closeTimeout is how long it may take to close.
const closeTimeout = time.Second

// cutAgain is how long a failure is left alone, unless another commit comes first.
const cutAgain = time.Second

// lookPause is the least time between the end of one look at the kernel's flows and the next. During a look, one CPU handles no packets.
// The next look covers all commits since the last one, so stale flows last little longer than this.
const lookPause = 250 * time.Millisecond

// lookShare is the ratio of the time without looks to their processor time, so that looks take at most a quarter of a
// CPU. A look takes a second of one CPU if a client has filled the kernel's table with flows. The time that a look
// waits for a CPU does not count. Otherwise stale flows would needlessly last longer on a busy node.
//
// The pause for a look may come after the next look. A change often comes soon after another one, or soon after the start with its long
// look.
const lookShare = 3

// removalWait is the processor time of a removal for which a commit waits if it adds endpoints to the frontend whose
// flows are removed. Otherwise flows that begin after the commit would also be removed. With 10,000 flows in the
// kernel's table, a removal takes 3 ms. On a busy node a removal gets a processor only now and then, and so do
// processes that would not wait for it. That is no reason to lose flows.
const removalWait = 5 * time.Millisecond

// In a larger table, a commit waits longer, from a reserve that all commits share. So services that lose and get back
// their endpoints all the time do not delay others. With removalWait, it is enough for a removal among 200,000 flows.
// A commit that finds it empty may cut off flows that have begun since: these start over.
const (
	removalReserve = 60 * time.Millisecond
	// reserveShare is how many times as long it takes to save up for a wait.
	reserveShare = 500
)

// removalPatience is how long a commit waits for a removal, whatever keeps it from working.
const removalPatience = time.Second

// CutterOptions are the settings of a Cutter.
type CutterOptions struct {
	// Logger gets messages about deleted flows and failures. Required.
	Logger *slog.Logger
	// OnCut is called after each search for stale flows of a family, with its duration and about how many flows were deleted. It may be nil.
	OnCut func(f state.Family, took time.Duration, deleted int)
	// Elsewhere reports whether another dataplane serves a frontend that no noted service has. Scheduled reports whether IPVS has a virtual
	// server for the frontend. Both are as in [CleanerOptions], and may be nil.
	Elsewhere, Scheduled func(state.FrontendKey) bool
}

// NewCutter returns a Cutter of t that is not started.
func NewCutter(t Table, o CutterOptions) *Cutter {
	return &Cutter{
		log: o.Logger, wake: make(chan struct{}, 1), committing: make(chan struct{}, 1),
		clock: threadClock, processorTime: func() time.Duration { return 0 }, reserve: removalReserve, filled: time.Now(),
		cleaner: NewCleaner(t, CleanerOptions{Logger: o.Logger, OnClean: o.OnCut, Elsewhere: o.Elsewhere, Scheduled: o.Scheduled}),
	}
}

// Start begins to delete stale flows.
func (c *Cutter) Start() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	started := make(chan struct{})
	c.done.Go(func() {
		runtime.LockOSThread()
		c.processorTime = c.clock()
		close(started)
		c.run(ctx)
	})
	<-started
}

// Close cuts what has become stale, within a second: it may be long until a next process looks at all flows.
func (c *Cutter) Close() {
	if c.stop != nil {
		c.stop()
		c.done.Wait()
	}
}

// Begin waits until a commit may be made that changes these services. One of Committed and Failed follows.
func (c *Cutter) Begin(changes ...Note) {
	c.committing <- struct{}{}
	for _, n := range changes {
		if removed := c.cleaner.Removing(n.Old, n.New); removed != nil {
			c.await(removed)
			return // the next removal begins after the commit
		}
	}
}

// await waits for the end of a removal, within bounds.
func (c *Cutter) await(removed <-chan struct{}) {
	began, worked := time.Now(), c.processorTime()
	c.reserve = min(removalReserve, c.reserve+began.Sub(c.filled)/reserveShare)
	c.filled = began
	took := func() time.Duration { return c.processorTime() - worked }
	defer func() { c.reserve -= min(c.reserve, max(0, took()-removalWait)) }()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for time.Since(began) < removalPatience && took() < removalWait+c.reserve {
		select {
		case <-removed:
			return
		case <-look.C:
		}
	}
}

// Failed notes that the commit failed, perhaps only its answer.
func (c *Cutter) Failed() {
	defer func() { <-c.committing }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubtful = true
}

// Suspend leaves all flows alone until the next commit, also when the Cutter is closed. Another dataplane is about to
// begin flows, to endpoints that have not been noted here.
func (c *Cutter) Suspend() {
	c.Begin()
	c.Failed() // so that, as after a failure, it is not certain what the kernel shows
}

// IsDoubtful reports whether the Cutter may have missed changes. It may have if it was suspended since, or if the last commit failed. A
// failed commit may have been carried out without a record of its effect on flows.
func (c *Cutter) IsDoubtful() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubtful
}

// Committed takes down what a commit changed, and the addresses that serve NodePorts after it, which are sorted.
func (c *Cutter) Committed(nodePorts []netip.Addr, notes ...Note) {
	defer func() { <-c.committing }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodePorts, c.doubtful = nodePorts, false
	for _, n := range notes {
		if n.All != nil || hasUDP(n.Old) || hasUDP(n.New) {
			c.queue = append(c.queue, n)
		}
	}
	if len(c.queue) > 0 || c.left {
		c.left = false
		c.wakeUp()
	}
}

// SetPeerAddrs is [Cleaner.SetPeerAddrs] for all that is cut from now on. Any goroutine may call it.
func (c *Cutter) SetPeerAddrs(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peers = addrs
}

func (c *Cutter) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func hasUDP(s *state.Service) bool {
	return s != nil && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Protocol == state.UDP })
}

func (c *Cutter) run(ctx context.Context) {
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := c.Cut(last); err != nil {
			c.log.Warn("stale flows could not be deleted; the next process will try again", "error", err)
		}
	}()
	var again <-chan time.Time // set while something is left from a failure
	var repaid time.Time       // when others have had their share for all looks so far
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-again:
		}
		failing := again != nil
		again = nil
		began, worked := time.Now(), c.processorTime()
		more, err := c.cut(ctx, failing)
		if err != nil && ctx.Err() == nil {
			again = time.After(cutAgain)
			if !failing {
				c.log.Warn("stale flows could not be deleted; will try again", "error", err)
			}
		}
		if more {
			c.wakeUp()
		}
		pause := max(lookPause, time.Until(repaid))
		if repaid.Before(began) {
			repaid = began
		}
		repaid = repaid.Add((1 + lookShare) * (c.processorTime() - worked))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// errDoubtful ends a look when it is not certain what the kernel shows.
var errDoubtful = errors.New("a commit has failed")

// Cut deletes the flows that are stale so far. Failed deletions are left for the next call.
func (c *Cutter) Cut(ctx context.Context) error {
	_, err := c.cut(ctx, true)
	return err
}

// cut cuts all that has become stale, or a part, and reports whether to go on with another one.
func (c *Cutter) cut(ctx context.Context, all bool) (more bool, err error) {
	c.takeNotes()
	judge := func(fn func() error) error {
		c.takeNotes() // the frontends of all services take long
		c.committing <- struct{}{}
		defer func() { <-c.committing }()
		if doubtful := c.takeNotes(); doubtful {
			return errDoubtful
		}
		return fn()
	}
	if all {
		_, err = c.cleaner.Clean(ctx, judge)
	} else {
		_, more, err = c.cleaner.CleanPart(ctx, judge)
	}
	if errors.Is(err, errDoubtful) {
		return false, nil // the next commit that succeeds wakes us
	}
	return more, err
}

// takeNotes hands the queue to the cleaner.
func (c *Cutter) takeNotes() (doubtful bool) {
	c.mu.Lock()
	queue, doubtful := c.queue, c.doubtful
	c.queue, c.left = nil, c.left || doubtful
	c.cleaner.SetNodePortAddrs(c.nodePorts)
	c.cleaner.SetPeerAddrs(c.peers)
	c.mu.Unlock()
	for _, n := range queue {
		switch {
		case n.All == nil:
			c.cleaner.Note(n.Old, n.New)
		case n.Gap:
			c.cleaner.NoteGap(slices.Values(n.All))
		default:
			c.cleaner.NoteAll(slices.Values(n.All))
		}
	}
	return doubtful
}
