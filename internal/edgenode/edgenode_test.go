package edgenode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/edgenode"
	"github.com/switchyard-net/switchyard/model"
)

// cluster is a source that tells a cluster, or fails. It takes its time.
type cluster struct {
	mu    sync.Mutex
	port  uint16
	err   error
	took  time.Duration
	tries []string // the ports of the attempts
}

func (c *cluster) AnnounceEdge(ctx context.Context, port uint16) error { return c.try(ctx, port) }
func (c *cluster) WithdrawEdge(ctx context.Context) error              { return c.try(ctx, 0) }

func (c *cluster) try(ctx context.Context, port uint16) error {
	var took time.Duration
	c.do(func() { c.tries, took = append(c.tries, fmt.Sprint(port)), c.took })
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.port = port
	}
	return c.err
}

// do changes or reads the cluster.
func (c *cluster) do(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// taken returns the attempts since it was last called.
func (c *cluster) taken() (tries []string) {
	c.do(func() { tries, c.tries = c.tries, nil })
	return tries
}

// run calls test with an announcer that runs, in a world of its own clock.
func run(t *testing.T, test func(t *testing.T, c *cluster, a *edgenode.Announcer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{took: 10 * time.Millisecond}
		a := edgenode.New(edgenode.Options{Source: func() model.WithEdge { return c }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		test(t, c, a)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (c *cluster) expect(t *testing.T, port uint16, tries ...string) {
	t.Helper()
	synctest.Wait()
	var has uint16
	c.do(func() { has = c.port })
	if got := c.taken(); has != port || !slices.Equal(got, tries) {
		t.Errorf("the cluster has port %d after attempts for %v, want %d after %v", has, got, port, tries)
	}
}

// TestAnnouncer tells of each change once, and at once.
func TestAnnouncer(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, a *edgenode.Announcer) {
		time.Sleep(time.Hour)
		c.expect(t, 0)
		if err := a.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		a.Announce(7635)
		if err := a.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		a.Announce(7635)
		a.Saw(7635)
		time.Sleep(time.Hour)
		c.expect(t, 7635, "7635")
		a.Announce(9)
		a.Withdraw()
		began := time.Now()
		if err := a.Wait(t.Context()); err != nil || time.Since(began) > 30*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		tries := c.taken()
		if got := tries[len(tries)-1]; got != "0" {
			t.Errorf("the last attempt was for %s", got)
		}
		c.expect(t, 0)
		for _, port := range []uint16{8, 0, 9} { // one right after the other
			began := time.Now()
			a.Announce(port)
			if err := a.Wait(t.Context()); err != nil || time.Since(began) > 30*time.Millisecond {
				t.Errorf("port %d: %v after %v", port, err, time.Since(began))
			}
		}
		c.expect(t, 9, "8", "0", "9")
	})
}

// TestLastWordCounts: what is asked for during an attempt is told after it, and its result is not taken for the new one's.
func TestLastWordCounts(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, a *edgenode.Announcer) {
		c.do(func() { c.took = time.Minute })
		a.Announce(7635)
		time.Sleep(time.Second)
		a.Withdraw()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if err := a.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waited for what cannot be known yet: %v", err)
		}
		if err := a.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		c.expect(t, 0, "7635", "0")
	})
}

// TestHold: a node that is held takes no packets, although something else is asked for. Then the last word counts.
func TestHold(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, a *edgenode.Announcer) {
		told := func() {
			t.Helper()
			if err := a.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		a.Hold()
		told()
		a.Release()
		told()
		a.Hold()
		a.Announce(9)
		told()
		c.expect(t, 0)
		a.Release()
		told()
		c.expect(t, 9, "9")
		a.Hold()
		told()
		a.Announce(7635)
		told()
		if a.Announced() {
			t.Error("a node that is held is announced")
		}
		c.expect(t, 0, "0")
		a.Release()
		told()
		c.expect(t, 7635, "7635")
		a.Hold()
		a.Hold()
		a.Withdraw()
		a.Announce(9)
		a.Release()
		told()
		c.expect(t, 0, "0")
		a.Withdraw()
		a.Release()
		told()
		c.expect(t, 0)
	})
}

// TestFailures are tried again, ever more seldom, and seen by those who wait.
func TestFailures(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, a *edgenode.Announcer) {
		c.do(func() { c.err = errors.New("no rule") })
		a.Announce(7635)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Wait(ctx); err == nil || !strings.Contains(err.Error(), "no rule") || a.Problem() == nil {
			t.Errorf("Wait returned %v, the problem is %v", err, a.Problem())
		}
		if n := len(c.taken()); n < 5 || n > 7 {
			t.Errorf("%d attempts in the first minute", n)
		}
		time.Sleep(time.Hour)
		if n := len(c.taken()); n < 35 || n > 62 {
			t.Errorf("%d attempts in an hour", n)
		}
		c.do(func() { c.err = nil })
		time.Sleep(2 * time.Minute)
		c.expect(t, 7635, "7635")
		if err := a.Problem(); err != nil {
			t.Errorf("the problem is %v", err)
		}
		c.do(func() { c.err = errors.New("no rule") })
		a.Withdraw()
		time.Sleep(time.Second / 2)
		c.expect(t, 7635, "0")
	})
}

// TestSomebodyElseWrites: the annotation is set right, but nobody can make this node write all the time. A Node that is registered again has
// lost it, too.
func TestSomebodyElseWrites(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, a *edgenode.Announcer) {
		a.Announce(7635)
		time.Sleep(time.Hour)
		c.expect(t, 7635, "7635")
		c.do(func() { c.port = 0 })
		a.Saw(0)
		time.Sleep(time.Second)
		c.expect(t, 7635, "7635")
		for range 36_000 {
			a.Saw(0)
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(c.taken()); n < 35 || n > 70 {
			t.Errorf("%d attempts in an hour of changes", n)
		}
		time.Sleep(5 * time.Minute)
		c.taken()
		for range 2 { // the changes of that hour count no longer
			c.do(func() { c.port = 0 })
			a.Saw(0)
			time.Sleep(3 * time.Second)
			c.expect(t, 7635, "7635")
		}
	})
}

// TestNoSource: a process that follows a relay or a file cannot annotate Nodes. It says so, and notices when that ends.
func TestNoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{}
		var there atomic.Bool
		a := edgenode.New(edgenode.Options{Source: func() model.WithEdge {
			if there.Load() {
				return c
			}
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = a.Run(ctx) }()
		a.Announce(7635)
		time.Sleep(10 * time.Second)
		if err := a.Problem(); err == nil || !strings.Contains(err.Error(), "let it watch an API server") {
			t.Errorf("the problem is %v", err)
		}
		there.Store(true)
		time.Sleep(time.Minute)
		c.expect(t, 7635, "7635")
		cancel()
		synctest.Wait()
	})
}
