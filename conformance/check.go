//go:build linux

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// Outcome is the outcome of a story or history.
type Outcome uint8

// The outcomes.
const (
	Passed Outcome = iota
	Failed
	// Skipped: this machine cannot show it.
	Skipped
)

// Result is what came of a story, of a history, or of the limits that the dataplane claims.
type Result struct {
	// Name is as in [Names], or limits.
	Name    string
	Outcome Outcome
	Took    time.Duration
	// Log says why it failed, and what the packets did, or why it was skipped. It may have several lines.
	Log string
}

// CheckOptions say what [Check] does. The zero value checks everything.
type CheckOptions struct {
	// Select returns whether to run what has a name of [Names]. Default: all of it.
	Select func(name string) bool
	// AtOnce is how many are run at the same time. Default: one for each processor.
	AtOnce int
	// OnResult is called with each result, one at a time. It may be nil.
	OnResult func(Result)
}

// item is a story or a history.
type item struct {
	name string
	run  func(ctx context.Context, d Dataplane) (log string, outcome Outcome)
}

// Names are the names of a dataplane's stories, such as stories/hairpin, and histories, such as random/seed-1. Run names its subtests like
// this. RunStories and RunHistories leave out the first part.
func Names(d Dataplane) []string {
	var names []string
	for _, i := range items(d, "") {
		names = append(names, i.name)
	}
	return names
}

// items are all that there is to check. The stories are files in dir.
func items(d Dataplane, dir string) (list []item) {
	for _, name := range storiesOf(d) {
		file := filepath.Join(dir, name)
		list = append(list, item{"stories/" + strings.TrimSuffix(name, ".txtar"), func(ctx context.Context, d Dataplane) (string, Outcome) {
			params := storyParams(ctx, "", d)
			params.Files = []string{file}
			t := &recorder{}
			t.Run("", func(t testscript.T) { testscript.RunT(t, params) })
			return t.log.String(), t.outcome
		}})
	}
	for seed := cmp.Or(d.FirstSeed, 1); seed < cmp.Or(d.FirstSeed, 1)+uint64(cmp.Or(d.Seeds, defaultSeeds)); seed++ {
		list = append(list, item{fmt.Sprintf("random/seed-%d", seed), func(ctx context.Context, d Dataplane) (string, Outcome) {
			if err := tryHistory(ctx, d, seed, nil); err != nil {
				return err.Error(), Failed
			}
			return "", Passed
		}})
	}
	return list
}

// Check runs the suite as [Run] does, without package testing, for programs. It needs the right to make network namespaces. It returns an
// error if it cannot run, or if ctx ended before everything had run. Failures of the dataplane are in the results. Stories that run when
// ctx ends are stopped at once, and have no result.
func Check(ctx context.Context, d Dataplane, o CheckOptions) error {
	dir, err := os.MkdirTemp("", "switchyard-stories-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unpack(dir, d); err != nil {
		return err
	}
	d = d.withClaims()
	var mu sync.Mutex
	report := func(r Result) {
		mu.Lock()
		defer mu.Unlock()
		if o.OnResult != nil {
			o.OnResult(r)
		}
	}
	todo := make(chan item)
	var workers sync.WaitGroup
	for range cmp.Or(o.AtOnce, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := range todo {
				began := time.Now()
				log, outcome := i.run(ctx, d)
				if outcome == Failed && ctx.Err() != nil {
					continue
				}
				report(Result{Name: i.name, Outcome: outcome, Took: time.Since(began), Log: log})
			}
		})
	}
	for _, i := range items(d, dir) {
		if o.Select != nil && !o.Select(i.name) {
			continue
		}
		select {
		case todo <- i:
		case <-ctx.Done():
		}
	}
	close(todo)
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return err // an unfinished run has not shown all limits
	}
	for _, message := range d.unshown() {
		report(Result{Name: "limits", Outcome: Failed, Log: message})
	}
	return nil
}

// recorder is a [testscript.T] that notes what came of a story.
type recorder struct {
	mu      sync.Mutex
	outcome Outcome
	log     strings.Builder
}

func (*recorder) Parallel()     {}
func (*recorder) Verbose() bool { return false }

// Log implements [testscript.T].
func (r *recorder) Log(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.log, args...)
}

// Skip implements [testscript.T].
func (r *recorder) Skip(args ...any) {
	r.Log(args...)
	r.end(Skipped)
}

// Fatal implements [testscript.T].
func (r *recorder) Fatal(args ...any) {
	r.Log(args...)
	r.end(Failed)
}

// FailNow implements [testscript.T].
func (r *recorder) FailNow() { r.end(Failed) }

func (r *recorder) end(outcome Outcome) {
	r.mu.Lock()
	r.outcome = outcome
	r.mu.Unlock()
	runtime.Goexit()
}

// Run implements [testscript.T]: a story is one test, which is all of it.
func (r *recorder) Run(_ string, f func(testscript.T)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
}

// storiesOf returns the names of the files of a dataplane's stories.
func storiesOf(d Dataplane) (names []string) {
	entries, err := stories.ReadDir("stories")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, e := range entries {
		if d.Edge || !strings.HasPrefix(e.Name(), "edge_") {
			names = append(names, e.Name())
		}
	}
	return names
}

// unpack writes the stories of a dataplane to files, since testscript reads only those.
func unpack(dir string, d Dataplane) error {
	var errs []error
	for _, name := range storiesOf(d) {
		data, err := stories.ReadFile("stories/" + name)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return errors.Join(errs...)
}
