// Package file is the source of cluster objects that reads them from ordinary manifests, a file or a directory, and
// follows every change of it. It delivers Services, EndpointSlices, Nodes, Namespaces and ServiceCIDRs.
//
// The objects of a file come from its last valid content. A broken edit changes nothing: it is logged, and is reported
// by [Source.Problems] until it is fixed. If a broken file has had no valid content so far, its valid objects count.
// The objects of a deleted file are withdrawn. They are kept if the whole path vanishes, or if a file or directory
// cannot be read. They are also kept if a named pipe or a directory has replaced the file. The source never waits for a
// file.
//
// A file that has lost objects while it was written in place may be half written. It keeps its objects until it has
// been unchanged for [Options.Grace], and is a problem during that time. Two changes count at once: the replacement of
// a file by a rename, as editors and kubelet do it, and the deletion of a file. "In place" means that the same file, by
// device and inode, has another text. Objects count as lost if the previous text had them. The end of the last line
// counts as lost if the previous text had one. A truncated text may still have a part of its last object, and all
// others.
package file

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/model"
)

const (
	// quiet is how long the files must be unchanged before they are read: an editor, a checkout or kubelet makes one
	// change in several steps. longest is the longest delay of a read.
	quiet   = 50 * time.Millisecond
	longest = 500 * time.Millisecond
	// resync is how often the files are compared although nobody reported a change. It finds what inotify does not see:
	// network file systems, and a path whose directories further up are links that were changed.
	resync = 30 * time.Second
	// retry is the same while something cannot be watched, such as a path that has vanished.
	retry = time.Second
	// defaultGrace is the default of Options.Grace.
	defaultGrace = 10 * time.Second
)

// Options specifies what to read.
type Options struct {
	// Path is a manifest or a directory. Required. In a directory, all *.yaml, *.yml and *.json files in it and below count, except
	// hidden ones.
	Path string
	// Whole keeps the set of objects incomplete until all files have been read without a fault. It is for a process
	// that replaces one that knew more: an object in a file that is broken now must not look deleted.
	Whole bool
	// Grace is how long a file that has lost objects while it was written in place must be left alone before they are withdrawn. Default:
	// 10 seconds. Negative: they are withdrawn at once.
	Grace time.Duration
	// Logger gets what happens to the files. Nil discards it.
	Logger *slog.Logger
}

// Source implements [model.Source].
type Source struct {
	path  string
	whole bool
	grace time.Duration
	log   *slog.Logger

	mu       sync.Mutex
	problems []error
}

var _ model.Source = (*Source)(nil)

// New returns a source for the path. It returns an error that reports what to do if there is nothing there to read.
func New(o Options) (*Source, error) {
	if o.Path == "" {
		return nil, errors.New("no path: name a manifest or a directory of manifests")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	tree, err := manifest.OpenTree(o.Path)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	if len(tree.Files) == 0 && len(tree.Unreadable) == 0 {
		return nil, &manifest.Error{File: o.Path, Err: manifest.ErrNoManifest}
	}
	errs := tree.Errs()
	for _, file := range tree.Files {
		if _, _, err := tree.Read(file); err == nil {
			return &Source{path: o.Path, whole: o.Whole, grace: cmp.Or(o.Grace, defaultGrace), log: o.Logger}, nil
		} else {
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(errs...)
}

// Problems returns the current faults of the files, sorted by file. Each error names the file, and the line, object and
// field if it is about one. It may be called at any time, from any goroutine.
func (s *Source) Problems() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// Run delivers the objects of all files, then every change, until ctx ends.
func (s *Source) Run(ctx context.Context, sink model.Sink) error {
	w := newWatcher(s.path, s.log)
	defer w.close()
	state := newState(s.log, s.grace)
	complete, reported := false, ""
	read := func() {
		// A path that vanished before it was first read has had no content, which is not the same as having no objects.
		there := s.read(w, state, sink)
		switch broken := state.broken(); {
		case complete || !there:
		case s.whole && broken != "":
			if broken != reported {
				reported = broken
				s.log.Error("waiting until this file is fixed; keeping the state from before this start", "file", broken)
			}
		default:
			complete = true
			sink.Complete()
		}
	}
	read()
	next := func() time.Duration {
		if state.due.IsZero() {
			return w.interval()
		}
		return min(w.interval(), max(0, time.Until(state.due)))
	}
	poll := time.NewTimer(next())
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		case <-w.events():
			if !w.awaitQuiet(ctx) {
				return nil
			}
		}
		read()
		poll.Reset(next())
	}
}

// read updates the state from the files and delivers the changes. It reports whether the path exists.
func (s *Source) read(w *watcher, state *state, sink model.Sink) bool {
	// The files are watched before they are read, so that no change falls between.
	tree, err := w.open()
	if err != nil {
		state.pathGone(err)
	} else {
		state.update(tree, time.Now())
		tree.Close()
	}
	s.report(state.problems())
	state.hintEndpoints()
	if set, deleted := state.changes(); len(set)+len(deleted) > 0 {
		sink.Update(set, deleted)
	}
	return err == nil
}

// report makes problems the current ones, and logs those that are new and the files that are fixed.
func (s *Source) report(problems []error) {
	s.mu.Lock()
	before := s.problems
	s.problems = problems
	s.mu.Unlock()

	known := map[string]bool{}
	for _, p := range before {
		known[p.Error()] = true
	}
	broken := map[string]bool{}
	for _, p := range problems {
		broken[fileOf(p)] = true
		if !known[p.Error()] {
			s.log.Error("invalid manifest", "error", p)
		}
	}
	for _, p := range before {
		if file := fileOf(p); !broken[file] {
			broken[file] = true // logged once
			s.log.Info("manifest is valid again", "file", file)
		}
	}
}

// lineOf returns the line that a problem is about, 0 if none.
func lineOf(problem error) int {
	if e, ok := errors.AsType[*manifest.Error](problem); ok {
		return e.Line
	}
	return 0
}

// fileOf returns the file that a problem is about.
func fileOf(problem error) string {
	if e, ok := errors.AsType[*manifest.Error](problem); ok {
		return e.File
	}
	return ""
}
