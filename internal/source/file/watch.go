package file

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// watcher reports when files at a path may have changed.
type watcher struct {
	path string
	// name is the absolute form of path and parent the directory that it is in, by which fsnotify reports on it.
	name, parent string
	log          *slog.Logger
	// notify is nil if the system grants no watcher. The files are then only polled.
	notify  *fsnotify.Watcher
	changed chan struct{}
	done    chan struct{}
	// watched are the directories that are watched, as they were then.
	watched map[string]fs.FileInfo
	// warned are the directories that could not be watched, which is logged once.
	warned map[string]bool
	// blind is set while something cannot be watched.
	blind bool
}

// newWatcher returns a watcher of path. The caller must close it.
func newWatcher(path string, log *slog.Logger) *watcher {
	name, err := filepath.Abs(path)
	if err != nil {
		name = filepath.Clean(path) // there is no working directory; all else works
	}
	w := &watcher{
		path: path, name: name, parent: filepath.Dir(name), log: log,
		watched: map[string]fs.FileInfo{}, warned: map[string]bool{},
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("cannot watch files, polling instead; consider raising fs.inotify.max_user_instances", "interval", retry, "error", err)
		close(w.done)
		return w
	}
	w.notify = notify
	go w.pump()
	return w
}

// pump turns whatever fsnotify reports into one signal, until the watcher is closed.
func (w *watcher) pump() {
	defer close(w.done)
	errs := w.notify.Errors
	for {
		select {
		case event, ok := <-w.notify.Events:
			if !ok {
				return
			}
			if !w.concerns(event) {
				continue
			}
		case _, ok := <-errs:
			// The queue of events overflowed, or a similar error occurred: there may be any change.
			if !ok {
				errs = nil
				continue
			}
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// concerns reports whether an event may change the content of the path. In the parent, an event counts for the path
// itself: the directory may return, or another file may replace the file. The link ..data also counts, because kubelet
// swaps all files of a ConfigMap by it. Below the path every event counts, because any name may be the target of a
// link.
func (w *watcher) concerns(event fsnotify.Event) bool {
	if filepath.Dir(event.Name) != w.parent {
		return true
	}
	return event.Name == w.name || filepath.Base(event.Name) == "..data"
}

// events returns a channel that has a value after something has changed.
func (w *watcher) events() <-chan struct{} { return w.changed }

// awaitQuiet waits until nothing has changed for a while, though not for ever. It reports false if ctx ends first.
func (w *watcher) awaitQuiet(ctx context.Context) bool {
	limit := time.NewTimer(longest)
	defer limit.Stop()
	calm := time.NewTimer(quiet)
	defer calm.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return true
		case <-calm.C:
			return true
		case <-w.changed:
			calm.Reset(quiet)
		}
	}
}

// interval is when to look again without an event.
func (w *watcher) interval() time.Duration {
	if w.blind || w.notify == nil {
		return retry
	}
	return resync
}

// maxListings bounds how often open lists the files while new directories keep coming.
const maxListings = 10

// open lists the files, with every directory that they are in watched already. The caller must close the tree.
func (w *watcher) open() (*manifest.Tree, error) {
	for n := 1; ; n++ {
		tree, err := manifest.OpenTree(w.path)
		if err != nil {
			w.watch([]string{w.parent})
			w.blind = true
			return nil, err
		}
		// Files may have come into a directory between listing and watching it: list again if one was not watched before.
		if fresh := w.watch(append(tree.Dirs, w.parent)); !fresh || n == maxListings {
			w.blind = w.blind || len(tree.Unreadable) > 0
			return tree, nil
		}
		tree.Close()
	}
}

// watch makes dirs the directories that are watched, and sets blind if one cannot be. It reports whether one is watched
// that was not before.
func (w *watcher) watch(dirs []string) (fresh bool) {
	if w.notify == nil {
		return false
	}
	w.blind = false
	for dir := range w.watched {
		if !slices.Contains(dirs, dir) {
			w.unwatch(dir)
		}
	}
	// A directory that was removed is no longer watched, even if another directory now has its name and inode.
	alive := w.notify.WatchList()
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			w.blind = true
			continue
		}
		if old := w.watched[dir]; old != nil && os.SameFile(old, info) && slices.Contains(alive, dir) {
			continue
		}
		w.unwatch(dir)
		if err := w.notify.Add(dir); err != nil {
			w.blind = true
			w.warn(dir, err)
			continue
		}
		w.watched[dir] = info
		fresh = true
	}
	return fresh
}

// warn logs once that dir cannot be watched.
func (w *watcher) warn(dir string, err error) {
	if !w.warned[dir] {
		w.warned[dir] = true
		w.log.Warn("cannot watch directory, polling instead; consider raising fs.inotify.max_user_watches",
			"directory", dir, "interval", retry, "error", err)
	}
}

func (w *watcher) unwatch(dir string) {
	if w.watched[dir] != nil {
		// An error means that it is no longer watched, because the directory is gone.
		_ = w.notify.Remove(dir)
		delete(w.watched, dir)
	}
}

func (w *watcher) close() {
	if w.notify != nil {
		w.notify.Close()
	}
	<-w.done
}
