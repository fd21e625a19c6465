//go:build linux

package loadcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Stream is a kind of connection that is made again and again. It has a thread of its own.
type Stream struct {
	// From is the host that connects, and Client what the oracle calls it.
	From   *topology.Host
	Client probe.Client
	Target Target
	// Judge decides which outcomes of connections are allowed.
	Judge Judge
	// Control reports whether no proxy has to do with the stream.
	Control bool
	// Sticky reports whether each new connection must go where the one before went, as long as that endpoint is allowed.
	Sticky bool
	// Own reports whether servers must see the client's own address, in each answer.
	Own bool
	// Every is the time between two new connections. Each of them makes one request. 0 makes none.
	Every time.Duration
	// Flows is the number of connections that are kept open, and Pause the time between an answer on one of them and the next
	// request.
	Flows int
	Pause time.Duration
}

// Options are the settings of a counter.
type Options struct {
	Streams []Stream
	// Timeout is how long a new connection or a datagram may stay without an answer until it counts as lost. Default: 900 ms, which
	// is less than TCP's first retransmission, so that one lost packet is a lost connection.
	Timeout time.Duration
	// EstablishedTimeout is the same for requests on established TCP connections. Default: 5 s.
	EstablishedTimeout time.Duration
	// CutTimeout is how long an endpoint that serves no longer may go on getting datagrams of flows that it had. Such flows are
	// cut after the change that took the endpoint away. Default: 1 s.
	CutTimeout time.Duration
	// Receipts are the servers' receipts: they tell who had a datagram whose answer was lost. Default: none.
	Receipts *Receipts
	// Explain describes a connection from an address that was answered by the wrong server, for the report. It is
	// called soon after that, by a goroutine of its own, for the first such connections. Default: no description.
	Explain func(proto state.Protocol, from netip.AddrPort) string
}

// Counts are the outcome of connections.
type Counts struct {
	// Connections were tried, each with a number of its own. Requests were sent on them and had to be answered.
	Connections, Requests int
	// Lost got no answer in time. Reset were refused, or ended by somebody other than the server. WrongEndpoint were answered by a
	// server that was not allowed to at that moment, or did not see the client that it had to see.
	Lost, Reset, WrongEndpoint int
	// ExpectedFailures had to fail. Broken are the failures of connections that had been open. Moved were answered by another endpoint than
	// before while the proxy could not know better. Ended were closed by their server, or ended with a process that had no successor. They
	// also are UDP flows whose endpoint was gone.
	ExpectedFailures, Broken, Moved, Ended int
	// Strict are the new connections that were answered while only one state of the cluster counted, not one of two.
	Strict int
	// Hashed are the new connections of clients of a hash that had to have the endpoint of the client's connection before.
	Hashed int
	// Own are the connections whose server saw the client's own address at first.
	Own int
	// Skipped were not made, because the load itself had stood still.
	Skipped int
}

// Bad is the number of connections that went wrong.
func (c *Counts) Bad() int { return c.Lost + c.Reset + c.WrongEndpoint }

func (c *Counts) add(o *Counts) {
	c.Connections += o.Connections
	c.Requests += o.Requests
	c.Lost += o.Lost
	c.Reset += o.Reset
	c.WrongEndpoint += o.WrongEndpoint
	c.ExpectedFailures += o.ExpectedFailures
	c.Broken += o.Broken
	c.Moved += o.Moved
	c.Ended += o.Ended
	c.Strict += o.Strict
	c.Hashed += o.Hashed
	c.Own += o.Own
	c.Skipped += o.Skipped
}

// Report is the result of a counter. Counts and gaps are of what goes through the proxy, Control of the rest.
type Report struct {
	Counts
	Control Counts
	// New is the longest time in which no new connection of a stream succeeded although it had to. It is the duration of one connection, or
	// the time from the start of a failed connection to the answer of a later one. Established is the same for requests on open connections.
	// Results from before all streams had begun are left out, because neighbours are resolved then.
	New, Established Gap
	// Faults describe the first connections that went wrong.
	Faults []string
	Took   time.Duration
}

// maxFaults is how many faults are described.
const maxFaults = 20

// Counter is a running load.
type Counter struct {
	streams []*stream
	began   time.Time
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu     sync.Mutex
	faults []string
	stalls []wait
	err    error
}

// numbers gives connections their numbers.
var numbers atomic.Uint64

// stagger is the time between the beginnings of two streams, and settled how long the last stream takes to begin.
const stagger, settled = 7 * time.Millisecond, 50 * time.Millisecond

// Start starts the load. All of it has begun after 7 ms for each stream. Stop must be called.
func Start(o Options) *Counter {
	o.Timeout = cmp.Or(o.Timeout, 900*time.Millisecond)
	o.EstablishedTimeout = cmp.Or(o.EstablishedTimeout, 5*time.Second)
	o.CutTimeout = cmp.Or(o.CutTimeout, time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	c := &Counter{began: time.Now(), stop: cancel}
	for i := range o.Streams {
		c.streams = append(c.streams, newStream(c, &o.Streams[i], &o))
	}
	spread(c.streams)
	for i, s := range c.streams {
		c.done.Go(func() {
			// One after the other: all at once they would wait for each other, and for the addresses of their neighbours.
			if err := s.From.Do(func() error { return s.run(ctx, c.began.Add(time.Duration(i)*stagger)) }); err != nil {
				c.fail(fmt.Errorf("stream %v: %w", s, err))
			}
		})
	}
	var processors unix.CPUSet // on which the load may run
	if err := unix.SchedGetaffinity(0, &processors); err != nil {
		c.fail(os.NewSyscallError("sched_getaffinity", err))
	}
	for cpu := range 64 * len(processors) {
		if !processors.IsSet(cpu) {
			continue
		}
		c.done.Go(func() {
			stalls, err := stallsOf(ctx, cpu)
			if err != nil {
				c.fail(fmt.Errorf("watch processor %d: %w", cpu, err))
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.stalls = append(c.stalls, stalls...)
		})
	}
	return c
}

// Stop ends the load, once all that is under way has come to its end, and reports. It returns an error if the load itself was
// hindered, so that the report says too little.
func (c *Counter) Stop() (*Report, error) {
	c.stop()
	c.done.Wait()
	r := &Report{Faults: c.faults, Took: time.Since(c.began)}
	var fresh, established, controlFresh, controlEstablished []wait
	for _, s := range c.streams {
		if s.Control {
			r.Control.add(&s.counts)
			controlFresh = append(controlFresh, s.fresh.waits...)
			controlEstablished = append(controlEstablished, s.established.waits...)
		} else {
			r.Counts.add(&s.counts)
			fresh = append(fresh, s.fresh.waits...)
			established = append(established, s.established.waits...)
		}
	}
	begun := c.began.Add(time.Duration(len(c.streams))*stagger + settled)
	r.New = longest(after(begun, fresh), after(begun, controlFresh), c.stalls, c.began)
	r.Established = longest(after(begun, established), after(begun, controlEstablished), c.stalls, c.began)
	return r, c.err
}

func (c *Counter) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// fault describes a connection that went wrong. explain says more, unless it is nil.
func (c *Counter) fault(text string, explain func() string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.faults)
	if i == maxFaults {
		return
	}
	c.faults = append(c.faults, fmt.Sprintf("at %v: %s", time.Since(c.began).Round(time.Millisecond), text))
	if explain != nil {
		c.done.Go(func() { // the load does not wait for it
			more := explain()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.faults[i] += more
		})
	}
}

// Gap is a time without service. The machine causes a gap if connections without a proxy have the same gap. It also causes a gap in which a
// thread of the load that only sleeps gets no processor.
type Gap struct {
	// Longest is the longest gap as measured, and Control the longest one of the control. Stall is the longest time in which a sleeping thread
	// had to wait.
	Longest, Control, Stall time.Duration
	// Ours is the longest gap after subtraction of the time in which the control or a sleeping thread waited, including 10 ms before and
	// after. The margin is necessary because schedulers make one thread wait after the other. Unexplained is the longest gap of the control
	// after subtraction of stalls. Excused is the total time that can be subtracted from gaps. The load sees nothing in that time.
	Ours, Unexplained, Excused time.Duration
	// At is when Ours began, from the beginning of the load. Stream is where.
	At     time.Duration
	Stream string
	// Slow is how many waits were longer than [Slow], with nothing taken off, and ControlSlow how many of the control.
	Slow, ControlSlow int
}

// Slow is how long a wait must be to be counted as such.
const Slow = 5 * time.Millisecond

// wait is the time from the beginning of a connection, or of a request, to its answer.
type wait struct {
	stream       *stream
	since, until time.Time
}

func (w *wait) length() time.Duration { return w.until.Sub(w.since) }

// after returns waits as far as they are after a time.
func after(t time.Time, waits []wait) []wait {
	var list []wait
	for _, w := range waits {
		if w.until.After(t) {
			if w.since.Before(t) {
				w.since = t
			}
			list = append(list, w)
		}
	}
	return list
}

// moment is what counts as the same moment in two streams.
const moment = 10 * time.Millisecond

// longest finds the longest of waits, and the longest that control and stalls do not explain.
func longest(waits, control, stalls []wait, began time.Time) Gap {
	for _, list := range [][]wait{waits, control, stalls} {
		slices.SortFunc(list, longestFirst)
	}
	g := Gap{Longest: first(waits), Control: first(control), Stall: first(stalls), Slow: slow(waits), ControlSlow: slow(control)}
	_, g.Unexplained = unexplained(control, merge(stalls))
	excuses := merge(control, stalls)
	for _, w := range excuses {
		g.Excused += w.length()
	}
	var w wait
	if w, g.Ours = unexplained(waits, excuses); g.Ours > 0 {
		g.At, g.Stream = w.since.Sub(began), w.stream.String()
	}
	return g
}

// merge returns the times in which there was at least one of the waits, in order.
func merge(lists ...[]wait) (merged []wait) {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b wait) int { return a.since.Compare(b.since) })
	for _, w := range all {
		if last := len(merged) - 1; last >= 0 && !w.since.After(merged[last].until) {
			if w.until.After(merged[last].until) {
				merged[last].until = w.until
			}
			continue
		}
		merged = append(merged, w)
	}
	return merged
}

func longestFirst(a, b wait) int { return cmp.Compare(b.length(), a.length()) }

func first(waits []wait) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	return waits[0].length()
}

// unexplained returns the wait with the longest rest after subtraction of overlapping others, and that rest. The waits are sorted, the
// longest first, and the others are merged.
func unexplained(waits, others []wait) (most wait, left time.Duration) {
	for _, w := range waits {
		if w.length() <= left {
			break // no later one is longer
		}
		if rest := w.length() - during(others, w.since.Add(-moment), w.until.Add(moment)); rest > left {
			most, left = w, rest
		}
	}
	return most, left
}

// during returns how much of the time from one moment to another is in merged waits.
func during(merged []wait, from, to time.Time) (sum time.Duration) {
	i, _ := slices.BinarySearchFunc(merged, from, func(w wait, t time.Time) int { return w.until.Compare(t) })
	for _, w := range merged[i:] {
		if !w.since.Before(to) {
			break
		}
		begun, ended := w.since, w.until
		if begun.Before(from) {
			begun = from
		}
		if ended.After(to) {
			ended = to
		}
		sum += ended.Sub(begun)
	}
	return sum
}

// slow counts the waits that are slow. They are sorted, the longest first.
func slow(waits []wait) int {
	n := slices.IndexFunc(waits, func(w wait) bool { return w.length() <= Slow })
	if n < 0 {
		return len(waits)
	}
	return n
}

// record collects the waits of one kind of connection in a stream.
type record struct {
	stream *stream
	// waits are those that are long enough to be worth keeping.
	waits []wait
	// failed is when the first connection began that failed and has not been followed by one that succeeded; zero for none.
	failed time.Time
	// recent are successes that may follow a failure that has yet to be noticed.
	recent []wait
}

// worthKeeping is the least wait that is kept.
const worthKeeping = time.Millisecond

// success notes a connection that was answered now.
func (r *record) success(since, until time.Time, timeout time.Duration) {
	w := wait{r.stream, since, until}
	r.keep(w)
	if !r.failed.IsZero() && since.After(r.failed) {
		r.keep(wait{r.stream, r.failed, until})
		r.failed = time.Time{}
	}
	r.recent = append(r.recent, w)
	old := 0
	for old < len(r.recent) && until.Sub(r.recent[old].until) > 2*timeout {
		old++
	}
	if old > len(r.recent)/2 {
		r.recent = slices.Delete(r.recent, 0, old)
	}
}

// failure notes that a connection which began at a time has failed.
func (r *record) failure(since time.Time) {
	if !r.failed.IsZero() && !r.failed.After(since) {
		return // part of a gap that goes on
	}
	for _, w := range r.recent { // in the order of their ends
		if w.since.After(since) {
			r.keep(wait{r.stream, since, w.until})
			return
		}
	}
	r.failed = since
}

// end closes the gap that is open.
func (r *record) end(now time.Time) {
	if !r.failed.IsZero() {
		r.keep(wait{r.stream, r.failed, now})
	}
}

func (r *record) keep(w wait) {
	if w.length() >= worthKeeping {
		r.waits = append(r.waits, w)
	}
}
