package nftables

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// brokenSocket answers nothing while it is broken.
type brokenSocket struct {
	broken bool
	asked  int
}

func (s *brokenSocket) Generation() (uint32, error) {
	s.asked++
	if s.broken {
		return 0, errors.New("no answer")
	}
	return 7, nil
}

func (s *brokenSocket) HasTable(nft.Table) (bool, error) { return true, nil }
func (s *brokenSocket) Close() error                     { return nil }

// TestGuardWithoutGeneration has a guard whose socket fails for ten minutes.
func TestGuardWithoutGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		socket := &brokenSocket{broken: true}
		g := &guard{
			disturbed: make(chan struct{}, 1), stop: make(chan struct{}), conn: socket, armed: true, generation: 7,
			log: slog.New(slog.NewTextHandler(&log, nil)),
		}
		g.done.Go(func() { g.watch(nil) })
		alerts := 0
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
			select {
			case <-g.disturbed:
				alerts++
				if a := g.take(); a != foreignChange {
					t.Fatalf("a Verify has to look for %v, want a foreign change, as nothing is known", a)
				}
			case <-time.After(guardPatience):
			}
		}
		g.mu.Lock()
		if socket.asked > 30 || alerts < 10 || alerts > 30 {
			t.Errorf("in ten minutes the socket was asked %d times, with %d alerts", socket.asked, alerts)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "no answer") {
			t.Errorf("the failure was reported %d times, want once:\n%s", n, log.String())
		}
		socket.broken, socket.asked = false, 0
		g.mu.Unlock()
		time.Sleep(guardPatience + time.Second)
		g.take()
		time.Sleep(time.Second)
		if err := g.close(); err != nil {
			t.Error(err)
		}
		if len(g.disturbed) > 0 || g.pending != quiet || socket.asked < 40 {
			t.Errorf("after the failure: %d alerts, %v to look for, asked %d times", len(g.disturbed), g.pending, socket.asked)
		}
	})
}

// countedSocket knows the number of commits.
type countedSocket struct{ generation uint32 }

func (s *countedSocket) Generation() (uint32, error)      { return s.generation, nil }
func (s *countedSocket) HasTable(nft.Table) (bool, error) { return true, nil }
func (s *countedSocket) Close() error                     { return nil }

// TestCommitsOfAnotherPart: what another part of the process commits is no reason to compare the tables, what others commit is.
func TestCommitsOfAnotherPart(t *testing.T) {
	socket := &countedSocket{generation: 7}
	b := &Backend{guard: &guard{disturbed: make(chan struct{}, 1), conn: socket, armed: true, generation: 7, log: slog.New(slog.DiscardHandler)}}
	if err := b.Commit(func() error { socket.generation++; return nil }); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	if err := b.Commit(func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a commit that fails returns %v", err)
	}
	if b.guard.look(time.Now()) != quiet {
		t.Error("disturbed by a commit of this process")
	}
	socket.generation++
	if b.guard.look(time.Now()) == quiet {
		t.Error("not disturbed by a commit of somebody else")
	}
}

// TestVerifyDisturbsNobody: what a Verify finds by itself, or was called for, is looked for then. It asks for no other one, also of somebody who
// receives all the time.
func TestVerifyDisturbsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		socket := &countedSocket{generation: 7}
		g := &guard{
			disturbed: make(chan struct{}, 1), stop: make(chan struct{}), conn: socket, armed: true, generation: 7, log: slog.New(slog.DiscardHandler),
		}
		disturbances := 0
		go func() {
			for range g.disturbed {
				disturbances++
			}
		}()
		check := func(when string, want int) {
			t.Helper()
			if synctest.Wait(); disturbances != want {
				t.Errorf("%s: %d disturbances, want %d", when, disturbances, want)
			}
		}
		synctest.Wait()
		socket.generation++
		if a := g.take(); a != foreignChange {
			t.Errorf("a Verify has to look for %v, want a foreign change", a)
		}
		check("found by a Verify", 0)
		g.done.Go(func() { g.watch(nil) })
		synctest.Wait()
		g.mu.Lock()
		socket.generation++
		g.mu.Unlock()
		time.Sleep(guardPeriod + time.Millisecond)
		check("found by the guard", 1)
		if a := g.take(); a != foreignChange {
			t.Errorf("a Verify has to look for %v, want a foreign change", a)
		}
		check("and looked for", 1)
		if a := g.take(); a != quiet {
			t.Errorf("the next Verify has to look for %v, want nothing", a)
		}
		if err := g.close(); err != nil {
			t.Error(err)
		}
		close(g.disturbed)
	})
}
