//go:build linux

package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// timedTable is a connection tracking table that takes its time to be walked through, and remembers when it was.
type timedTable struct {
	took time.Duration
	// walkErr and deleteErr are what walks and deletions end with, if they are set. No deletion is done then.
	walkErr, deleteErr error

	mu    sync.Mutex
	flows []Flow
	// began and ended are the times of walks, cut when the flows to endpoints were deleted.
	began, ended []time.Time
	cut          map[netip.AddrPort]time.Time
}

// walk calls fn at the end of a walk.
func (t *timedTable) walk(fn func()) error {
	began := time.Now()
	time.Sleep(t.took)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began, t.ended = append(t.began, began), append(t.ended, time.Now())
	if t.walkErr == nil {
		fn()
	}
	return t.walkErr
}

func (t *timedTable) Flows(f Filter, each func([]Flow) error) error {
	t.mu.Lock()
	flows := slices.DeleteFunc(slices.Clone(t.flows), func(flow Flow) bool { return !f.Match(flow) })
	t.mu.Unlock()
	if err := t.walk(func() {}); err != nil {
		return err
	}
	for some := range slices.Chunk(flows, 64) {
		if err := each(some); err != nil {
			return err
		}
	}
	return nil
}

func (t *timedTable) Delete(flows ...Flow) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deleteErr != nil {
		return 0, t.deleteErr
	}
	return t.remove(func(f Flow) bool { return slices.Contains(flows, f) }), nil
}

func (t *timedTable) DeleteAll(f Filter) (deleted int, err error) {
	err = t.walk(func() {
		if t.deleteErr == nil {
			deleted = t.remove(f.Match)
		}
	})
	return deleted, cmp.Or(err, t.deleteErr)
}

// remove removes the flows that match. t is locked.
func (t *timedTable) remove(match func(Flow) bool) int {
	before := len(t.flows)
	t.flows = slices.DeleteFunc(t.flows, func(f Flow) bool {
		gone := match(f)
		if gone {
			t.cut[f.Reply.Src] = time.Now()
		}
		return gone
	})
	return before - len(t.flows)
}

// clockOf is a clock for all threads.
func clockOf(processorTime func() time.Duration) func() func() time.Duration {
	return func() func() time.Duration { return processorTime }
}

// TestLooksArePaced commits changes all the time. Each makes one flow stale.
func TestLooksArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const commits, pace = 200, 50 * time.Millisecond
		table := &timedTable{took: 10 * time.Millisecond, cut: map[netip.AddrPort]time.Time{}}
		c := NewCutter(table, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
		c.Start()
		defer c.Close()
		committed := map[netip.AddrPort]time.Time{}
		first := time.Now()
		version := func(i int) *state.Service {
			return recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv4, state.UDP, 1, recordtest.Endpoints(state.IPv4, i, 1)))
		}
		for i := range commits {
			old, now := version(i), version(i+1)
			client, stale := recordtest.Addr("10.244.9.9"), old.Ports[0].Internal.Inside.Endpoints[0].Addr
			src := netip.AddrPortFrom(client, uint16(1024+i))
			table.mu.Lock()
			table.flows = append(table.flows, Flow{
				Family: state.IPv4, Protocol: state.UDP,
				Orig:  Tuple{Src: src, Dst: netip.AddrPortFrom(old.Ports[0].Frontends[0].Addr, 80)},
				Reply: Tuple{Src: stale, Dst: src},
			})
			table.mu.Unlock()
			c.Begin()
			committed[stale] = time.Now()
			c.Committed(nil, Note{Old: old, New: now})
			time.Sleep(pace)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !table.began[0].Equal(first) {
			t.Errorf("the first look came %v after the first commit, want at once", table.began[0].Sub(first))
		}
		walks := 1
		for i := range table.began[1:] {
			pause := table.began[i+1].Sub(table.ended[i])
			if walks++; pause > 0 {
				walks = 1
			}
			if walks > 10 || pause > 0 && pause < 250*time.Millisecond {
				t.Errorf("walk %d began %v after the end of the one before, and is the %d. of a look; want 250ms between looks", i+1, pause, walks)
			}
		}
		for endpoint, at := range committed {
			if cut, ok := table.cut[endpoint]; !ok || cut.Sub(at) > time.Second {
				t.Errorf("the flow to %v: cut %v (%v after the commit), want within a second", endpoint, ok, cut.Sub(at))
			}
		}
		looks := len(table.began)
		time.Sleep(time.Hour)
		if len(table.began) != looks {
			t.Errorf("%d more looks in an hour without commits", len(table.began)-looks)
		}
		c.Begin()
		again := time.Now()
		c.Committed(nil, Note{Old: version(0), New: version(1)})
		synctest.Wait()
		time.Sleep(table.took)
		synctest.Wait()
		if last := table.began[len(table.began)-1]; !last.Equal(again) {
			t.Errorf("the look after an hour of peace came %v after the commit, want at once", last.Sub(again))
		}
		// A commit in the pause after a look is not left to the next process.
		stale := version(1).Ports[0].Internal.Inside.Endpoints[0].Addr
		src := netip.AddrPortFrom(recordtest.Addr("10.244.9.9"), 999)
		table.mu.Lock()
		table.flows = append(table.flows, Flow{
			Family: state.IPv4, Protocol: state.UDP,
			Orig:  Tuple{Src: src, Dst: netip.AddrPortFrom(version(1).Ports[0].Frontends[0].Addr, 80)},
			Reply: Tuple{Src: stale, Dst: src},
		})
		delete(table.cut, stale)
		table.mu.Unlock()
		c.Begin()
		c.Committed(nil, Note{Old: version(1), New: version(2)})
		c.Close()
		if _, cut := table.cut[stale]; !cut {
			t.Error("a stale flow is left when the process ends")
		}
	})
}

// TestLooksTakeAShare: three quarters of a processor are left to others, however long it takes to look; the time in which a look waits for
// a processor does not count.
func TestLooksTakeAShare(t *testing.T) {
	// Looks that take a second begin after 0, 1.25, 4, 8, 12 ... seconds: the second one before the first is repaid, and so on.
	early := []time.Duration{250 * time.Millisecond, 1750 * time.Millisecond}
	for name, tt := range map[string]struct {
		works time.Duration
		first []time.Duration
		pause time.Duration
	}{
		"working": {time.Second, early, 3 * time.Second},
		"waiting": {0, nil, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &timedTable{took: time.Second, cut: map[netip.AddrPort]time.Time{}}
				c := NewCutter(table, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
				var worked time.Duration
				c.clock = clockOf(func() time.Duration {
					worked += tt.works // once before and once after a look
					return worked
				})
				c.Start()
				for i := range 100 {
					c.Begin()
					c.Committed(nil, Note{
						Old: recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv6, state.UDP, 1, recordtest.Endpoints(state.IPv6, i, 1))),
						New: recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv6, state.UDP, 1, recordtest.Endpoints(state.IPv6, i+1, 1))),
					})
					time.Sleep(100 * time.Millisecond)
				}
				c.Close()
				if len(table.began) < 3 {
					t.Fatalf("%d looks", len(table.began))
				}
				for i, began := range table.began[1 : len(table.began)-1] { // the last one is at the end
					// Changes are committed every 100 ms, so the next look begins with the end of the pause.
					want := tt.pause
					if i < len(tt.first) {
						want = tt.first[i]
					}
					if pause := began.Sub(table.ended[i]); pause != want {
						t.Errorf("look %d began %v after the end of the one before, want %v", i+2, pause, want)
					}
				}
			})
		})
	}
}

// crowdedTable is a connection tracking table that somebody has filled with flows to one frontend. Walking through it takes long,
// and so does the deletion of all that is in it.
type crowdedTable struct {
	flows  int // each to an endpoint that is gone
	old    bool
	looked []time.Duration
}

const (
	crowdedWalk   = 100 * time.Millisecond
	crowdedDelete = 10 * time.Microsecond
)

func (t *crowdedTable) Flows(_ Filter, each func([]Flow) error) error {
	began := time.Now()
	defer func() { t.looked = append(t.looked, time.Since(began)) }()
	flow := Flow{Family: state.IPv4, Protocol: state.UDP, Orig: Tuple{Dst: crowded(0).addr()}, Reply: Tuple{Src: gonePod}}
	for range t.flows / 64 {
		time.Sleep(crowdedWalk / time.Duration(t.flows/64))
		if err := each(slices.Repeat([]Flow{flow}, 64)); err != nil {
			return err
		}
	}
	return nil
}

func (t *crowdedTable) Delete(flows ...Flow) (int, error) {
	time.Sleep(time.Duration(len(flows)) * crowdedDelete)
	return len(flows), nil
}

func (t *crowdedTable) DeleteAll(f Filter) (int, error) {
	if t.old {
		return 0, errors.ErrUnsupported
	}
	time.Sleep(crowdedWalk)
	t.looked = append(t.looked, crowdedWalk)
	return t.flows, nil
}

// crowded is the service that so many endpoints serve.
type crowded int

var gonePod = netip.AddrPortFrom(recordtest.Addr("10.244.0.1"), 80)

func (n crowded) service() *state.Service {
	return recordtest.Service("crowded", recordtest.ClusterIPPort(state.IPv4, state.UDP, 1, recordtest.Endpoints(state.IPv4, 1, int(n))))
}

func (n crowded) addr() netip.AddrPort {
	f := n.service().Ports[0].Frontends[0]
	return netip.AddrPortFrom(f.Addr, f.Port)
}

// TestNobodyWaitsForACrowdedTable fills the table with 262,144 flows, and lets the service change to which they go. Commits must not
// wait for more than a few deletions; those that bring an endpoint back while flows to it are being deleted, for 5 ms at most once the reserve is used up.
// Looking must not take more than a quarter of the time.
func TestNobodyWaitsForACrowdedTable(t *testing.T) {
	for name, old := range map[string]bool{"deleted by a filter": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &crowdedTable{flows: 262144, old: old}
				c := NewCutter(table, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
				opened := time.Now()
				c.clock = clockOf(func() time.Duration { return time.Since(opened) }) // the table works all the time
				c.Start()
				defer c.Close()
				other := recordtest.Service("other", recordtest.ClusterIPPort(state.IPv4, state.UDP, 2, recordtest.Endpoints(state.IPv4, 2, 1)))
				began, n := time.Now(), 0
				var reserve time.Duration // what was taken of it
				commit := func(atMost time.Duration, note Note) {
					asked := time.Now()
					c.Begin(note)
					if over := time.Since(asked) - atMost; over > 0 {
						reserve += over
					}
					if most := removalReserve + time.Since(began)/reserveShare; reserve > most {
						t.Errorf("up to commit %d, waits were %v longer than they may be each, want %v at most", n, reserve, most)
					}
					c.Committed(nil, note)
					n++
				}
				now := crowded(2)
				for time.Since(began) < 30*time.Second {
					commit(time.Millisecond, Note{Old: other, New: other})
					if n%10 == 0 {
						next := 3 - now
						commit(6*time.Millisecond, Note{Old: now.service(), New: next.service()})
						now = next
					}
					time.Sleep(7 * time.Millisecond)
				}
				var looked time.Duration
				for _, d := range table.looked {
					looked += d
				}
				last := table.looked[len(table.looked)-1] // may be to be repaid still, and the one before
				if looked > 30*time.Second/4+2*last || looked < 500*time.Millisecond {
					t.Errorf("%d looks in 30s took %v, want a quarter of that and two looks at most", len(table.looked), looked)
				}
			})
		})
	}
}

// TestCommitWaitsForItsFlows: a flow that begins after a commit must not be deleted as one of those before it, where that costs
// nobody much.
func TestCommitWaitsForItsFlows(t *testing.T) {
	for name, tt := range map[string]struct {
		walk time.Duration // how long a removal takes
		slow time.Duration // how many times as long as it works
		want time.Duration // from its second millisecond on
	}{
		"a small table":                {3 * time.Millisecond, 1, 2 * time.Millisecond},
		"a large table":                {60 * time.Millisecond, 1, 59 * time.Millisecond},
		"an enormous table":            {time.Second, 1, removalWait + removalReserve},
		"a small table on a busy node": {200 * time.Millisecond, 50, 199 * time.Millisecond},
		"a large table on a busy node": {10 * time.Second, 10, 10 * (removalWait + removalReserve)},
		"a removal that gets nowhere":  {time.Hour, 1 << 40, removalPatience},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := NewCutter(&timedTable{took: tt.walk}, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
			began := time.Now()
			c.clock = clockOf(func() time.Duration {
				return time.Since(began) / tt.slow
			})
			c.Start()
			defer c.Close()
			full, empty := crowded(1).service(), crowded(0).service()
			other := recordtest.Service("other", recordtest.ClusterIPPort(state.IPv4, state.UDP, 2, recordtest.Endpoints(state.IPv4, 2, 1)))
			commit := func(note Note) time.Duration {
				asked := time.Now()
				c.Begin(note)
				defer c.Committed(nil, note)
				return time.Since(asked)
			}
			commit(Note{Old: full, New: empty})
			time.Sleep(time.Millisecond)
			if waited := commit(Note{Old: other, New: nil}) + commit(Note{Old: nil, New: other}); waited > 0 {
				t.Errorf("commits that do not concern the flows that are being deleted waited for %v", waited)
			}
			if waited := commit(Note{Old: empty, New: full}); waited != tt.want {
				t.Errorf("%s: the commit that concerns the flows that are being deleted waited for %v, want %v", name, waited, tt.want)
			}
		})
	}
}

// TestThreadClock: it counts the work of one thread, and any other may ask.
func TestThreadClock(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	clocks := make(chan func() time.Duration)
	var ended atomic.Bool
	var worker sync.WaitGroup
	worker.Go(func() {
		runtime.LockOSThread()
		clocks <- threadClock()
		for !ended.Load() {
		}
	})
	defer worker.Wait()
	defer ended.Store(true)
	mine, its := threadClock(), <-clocks
	before := mine()
	await.Until(t, "a thread that works all the time has taken 50ms", func() bool { return its() >= 50*time.Millisecond })
	if took := mine() - before; took >= its() {
		t.Errorf("the thread that waits has taken %v, the one that works %v", took, its())
	}
}

// TestListingGoesByTheLatestChanges: what is committed while flows are listed counts for those that come after it in the list. Otherwise they
// would last for a pause and another listing more.
func TestListingGoesByTheLatestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &timedTable{took: time.Second, cut: map[netip.AddrPort]time.Time{}}
		service := func(name string, port, endpoints int) *state.Service {
			return recordtest.Service(name, recordtest.ClusterIPPort(state.IPv6, state.UDP, port, recordtest.Endpoints(state.IPv6, 1, endpoints)))
		}
		first, second, empty := service("first", 1, 1), service("second", 2, 1), service("second", 2, 0)
		stale := second.Ports[0].Internal.Inside.Endpoints[0].Addr
		client := netip.MustParseAddrPort("[fd00:10:244::99]:4000")
		table.flows = []Flow{{
			Family: state.IPv6, Protocol: state.UDP,
			Orig:  Tuple{Src: client, Dst: netip.AddrPortFrom(second.Ports[0].Frontends[0].Addr, second.Ports[0].Frontends[0].Port)},
			Reply: Tuple{Src: stale, Dst: client},
		}}
		c := NewCutter(table, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
		c.Start()
		defer c.Close()
		commit := func(old, now *state.Service) {
			c.Begin()
			c.Committed(nil, Note{Old: old, New: now})
		}
		commit(first, service("first", 1, 0))
		commit(service("third", 3, 1), service("third", 3, 0)) // with two frontends, all flows are listed
		time.Sleep(table.took / 2)
		commit(second, empty)
		time.Sleep(time.Minute)
		c.Close()
		if at, cut := table.cut[stale]; !cut || !at.Equal(table.ended[0]) {
			t.Errorf("the flow was cut: %v, %v after the end of the listing that was under way, want with it", cut, at.Sub(table.ended[0]))
		}
	})
}

// TestReturnedEndpointKeepsItsFlows: two endpoints are gone, and one of them is back while the flows to the other are being deleted. In
// a table through which a walk takes long, the commit does not wait for the end of it.
func TestReturnedEndpointKeepsItsFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &timedTable{took: time.Second, cut: map[netip.AddrPort]time.Time{}}
		c := NewCutter(table, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
		c.Start()
		defer c.Close()
		service := func(endpoints ...state.Endpoint) *state.Service {
			return recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv4, state.UDP, 1, endpoints))
		}
		all := recordtest.Endpoints(state.IPv4, 1, 3)
		begin := func(e state.Endpoint) {
			client := netip.AddrPortFrom(recordtest.Addr("10.244.9.9"), uint16(e.Addr.Addr().As4()[3]))
			table.mu.Lock()
			defer table.mu.Unlock()
			table.flows = append(table.flows, Flow{
				Family: state.IPv4, Protocol: state.UDP,
				Orig:  Tuple{Src: client, Dst: netip.AddrPortFrom(service().Ports[0].Frontends[0].Addr, 80)},
				Reply: Tuple{Src: e.Addr, Dst: client},
			})
		}
		commit := func(old, now *state.Service) {
			n := Note{Old: old, New: now}
			c.Begin(n)
			c.Committed(nil, n)
		}
		begin(all[1])
		commit(service(all...), service(all[0]))
		time.Sleep(time.Millisecond)
		commit(service(all[0]), service(all[0], all[2]))
		begin(all[2])
		time.Sleep(time.Minute)
		c.Close()
		if _, cut := table.cut[all[1].Addr]; !cut {
			t.Error("the flow to an endpoint that is gone is left")
		}
		if at, cut := table.cut[all[2].Addr]; cut {
			t.Errorf("the flow to an endpoint that is back was deleted, %v after the walk for the other one", at.Sub(table.ended[0]))
		}
	})
}

// TestFailuresAreTriedAgain lets the kernel's table fail for some time: every second the flows of changed services
// and of a gap are looked at again, and the log says so once.
func TestFailuresAreTriedAgain(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOBUFS, syscall.EINTR, syscall.EPERM, syscall.EMSGSIZE} {
		for _, op := range []string{"walk", "delete"} {
			t.Run(op+" "+unix.ErrnoName(errno), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { failForAWhile(t, op, fmt.Errorf("%s: %w", op, errno)) })
			})
		}
	}
}

func failForAWhile(t *testing.T, op string, failure error) {
	const outage = 10 * time.Second
	udp := recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv4, state.UDP, 1, recordtest.Endpoints(state.IPv4, 1, 1)))
	tcp := recordtest.Service("web", recordtest.ClusterIPPort(state.IPv6, state.TCP, 1, recordtest.Endpoints(state.IPv6, 1, 1)))
	none := recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv4, state.UDP, 1, nil))
	to := func(s *state.Service, client string, from netip.AddrPort) Flow {
		p := &s.Ports[0]
		src, dst := netip.MustParseAddrPort(client), netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port)
		if !from.IsValid() {
			from = dst
		}
		return Flow{
			Family: p.Family, Protocol: p.Protocol, Unconnected: p.Protocol == state.TCP,
			Orig: Tuple{Src: src, Dst: dst}, Reply: Tuple{Src: from, Dst: src},
		}
	}
	table := &timedTable{took: 10 * time.Millisecond, cut: map[netip.AddrPort]time.Time{}, flows: []Flow{
		to(udp, "10.244.9.9:1024", udp.Ports[0].Internal.Inside.Endpoints[0].Addr),
		to(tcp, "[fd00:244::9]:1024", netip.AddrPort{}),
	}}
	if op == "walk" {
		table.walkErr = failure
	} else {
		table.deleteErr = failure
	}
	var log strings.Builder
	c := NewCutter(table, CutterOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	c.Start()
	defer c.Close()
	c.Begin()
	c.Committed(nil, Note{All: []*state.Service{udp, tcp}, Gap: true})
	time.Sleep(outage / 2)
	c.Begin()
	c.Committed(nil, Note{Old: udp, New: none})
	time.Sleep(outage / 2)
	synctest.Wait()
	if len(table.flows) != 2 {
		t.Fatalf("%d flows are left while nothing works, want 2", len(table.flows))
	}
	least := 2 * 9
	if op == "delete" {
		least = 9 + 5 // there is nothing to delete of IPv4 in the first half
	}
	if n := len(table.began); n < least || n > least+2*3 {
		t.Errorf("%d walks in %v, want one in a second for each family that has something left", n, outage)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), failure.Error()) {
		t.Errorf("%d warnings, want one with %q:\n%s", n, failure, log.String())
	}
	table.mu.Lock()
	table.walkErr, table.deleteErr = nil, nil
	table.mu.Unlock()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if len(table.flows) != 0 {
		t.Errorf("left: %v", table.flows)
	}
	looks := len(table.began)
	time.Sleep(time.Hour)
	if len(table.began) != looks {
		t.Errorf("%d more looks after all was done", len(table.began)-looks)
	}
}

// TestSuspend: while another dataplane begins flows, none are deleted, whatever there was to look for; with the next commit, or without a Suspend, they are.
func TestSuspend(t *testing.T) {
	version := func(n int) *state.Service {
		return recordtest.Service("dns", recordtest.ClusterIPPort(state.IPv6, state.UDP, 1, recordtest.Endpoints(state.IPv6, n, 1)))
	}
	for _, tt := range []struct {
		name            string
		suspend, commit bool
		left            int
	}{{"suspended", true, false, 1}, {"goes on", true, true, 0}, {"not suspended", false, false, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &timedTable{took: 10 * time.Millisecond, cut: map[netip.AddrPort]time.Time{}}
				c := NewCutter(table, CutterOptions{Logger: slog.New(slog.DiscardHandler)})
				c.Start()
				commit := func(n Note) {
					c.Begin(n)
					c.Committed(nil, n)
				}
				commit(Note{All: []*state.Service{version(1)}})
				commit(Note{Old: version(1), New: version(2)})
				if tt.suspend {
					c.Suspend()
				}
				client := netip.MustParseAddrPort("[fd00:244::9]:1024")
				f := version(2).Ports[0].Frontends[0]
				table.mu.Lock()
				table.flows = append(table.flows, Flow{ // to an endpoint of the other dataplane
					Family: state.IPv6, Protocol: state.UDP, Orig: Tuple{Src: client, Dst: netip.AddrPortFrom(f.Addr, f.Port)},
					Reply: Tuple{Src: netip.MustParseAddrPort("[fd00:244::77]:8080"), Dst: client},
				})
				table.mu.Unlock()
				time.Sleep(time.Minute)
				if tt.commit {
					commit(Note{Old: version(2), New: version(2)})
					time.Sleep(time.Minute)
				}
				c.Close()
				if len(table.flows) != tt.left {
					t.Errorf("%d flows are left, want %d", len(table.flows), tt.left)
				}
			})
		})
	}
}
