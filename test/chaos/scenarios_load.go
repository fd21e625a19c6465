//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// slowSource begins new lives of the source, with and without a new process.
func slowSource(ctx context.Context, s *stage) (string, error) {
	f := s.subject.(*switchyard).feed.(*storeFeed)
	n := s.scaled(10)
	for i := range n {
		renew := []func() error{f.close, f.begin}
		if i%2 == 0 {
			renew = []func() error{s.subject.Kill, f.close, f.begin, s.subject.Start}
		}
		if err := inTurn(renew...); err != nil {
			return "", err
		}
		f.slowly = 5 * time.Millisecond
		clear(s.sent) // the new store knows nothing
		s.shuffle()
		if err := s.sendState(); err != nil {
			return "", err
		}
		if err := pause(ctx, time.Second); err != nil {
			return "", err
		}
		f.slowly = 0
		f.complete()
		// A while with a single state shows that the last update has its effect.
		if err := inTurn(func() error { return s.settle(ctx) }, func() error { return pause(ctx, 2*time.Second) }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d slow sources, %d new processes", n, (n+1)/2), nil
}

// churn changes one endpoint of another service after the other.
func churn(ctx context.Context, s *stage) (string, error) {
	const perSecond, tick = 10_000, time.Millisecond
	f := s.subject.(*switchyard).feed.(*storeFeed)
	long := max(time.Duration(float64(time.Minute)*s.Scale), 2*time.Second)
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	type outcome struct {
		changes int
		err     error
	}
	made := make(chan outcome)
	go func() {
		// Where the proxy runs before all others, so does what changes the cluster.
		as := asOthers
		if s.kind.relays {
			as = func(fn func() error) error { return fn() }
		}
		o := outcome{}
		o.err = as(func() error {
			for began := time.Now(); ctx.Err() == nil; time.Sleep(tick) {
				for due := int(time.Since(began).Seconds() * perSecond); o.changes < due; o.changes++ {
					slice, _, err := kubeconv.Object(backgroundSlice(o.changes%s.background, o.changes/s.background))
					if err != nil {
						return err
					}
					f.sink.Update([]model.Object{slice}, nil)
				}
			}
			return nil
		})
		made <- o
	}()
	own, longest := 0, time.Duration(0)
	for ctx.Err() == nil {
		// The others change all the time, and are not sent here.
		s.shuffle()
		s.generation--
		began := time.Now()
		if err := s.change(context.WithoutCancel(ctx)); err != nil {
			cancel()
			return "", errors.Join(err, (<-made).err)
		}
		own++
		longest = max(longest, time.Since(began))
		_ = pause(ctx, 300*time.Millisecond)
	}
	o := <-made
	if enough := int(0.9 * perSecond * long.Seconds()); o.err == nil && o.changes < enough {
		o.err = fmt.Errorf("%d changes in %v, which are not %d: the machine is too slow for the scenario", o.changes, long, enough)
	}
	return fmt.Sprintf("%d changes in %v, from which the store makes some thousands of states. In addition %d of the services under load, "+
		"which took %v at most to arrive", o.changes, long, own, longest.Round(time.Millisecond)), o.err
}

// netlinkErrors: what fails is retried.
func netlinkErrors(ctx context.Context, s *stage) (string, error) {
	n, failures, changes := s.scaled(100), 0, 0
	// Some modes have little to write for a change, and what fails is random: with few changes, it may be that nothing does at first.
	for ; changes < n || failures == 0 && changes < 10*n; changes++ {
		s.shuffle()
		if changes%10 == 9 {
			if err := inTurn(s.subject.Kill, s.subject.Start); err != nil {
				return "", err
			}
		}
		err := s.change(ctx)
		if err == nil {
			failures, err = s.countLogged("injected")
		}
		if err != nil {
			return "", err
		}
	}
	if failures == 0 {
		return "", errors.New("nothing failed")
	}
	return fmt.Sprintf("%d changes and %d restarts, in which %d failures were reported", changes, changes/10, failures), nil
}

// clockJumps: the new starts are there because a process may keep what time it was.
func clockJumps(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(20)
	for range n {
		for range 3 {
			s.shuffle()
			if err := s.change(ctx); err != nil {
				return "", err
			}
			if err := pause(ctx, 300*time.Millisecond); err != nil {
				return "", err
			}
		}
		if _, err := startTime(ctx, s, 0); err != nil {
			return "", err
		}
	}
	log, err := os.ReadFile(s.subject.(*switchyard).log)
	years := map[string]bool{}
	for _, year := range regexp.MustCompile(theYearIs+` \d+`).FindAll(log, -1) {
		years[string(year)] = true
	}
	if err == nil && n >= 20 && len(years) < 2 {
		err = fmt.Errorf("the clock has not jumped: %v", years)
	}
	return fmt.Sprintf("%d changes and %d restarts, in %d different years", 4*n, n, len(years)), err
}
