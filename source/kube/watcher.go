package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/switchyard-net/switchyard/model"
)

// deniedRetry is the wait before the next request for an optional resource that the API server lacks or does not
// permit. Up to half of it is added. Such a refusal does not end by itself.
const deniedRetry = 5 * time.Minute

// event is a report of a watcher or an optIn.
type event struct {
	from  *watcher
	optIn *optIn // if it is from one
	what  what
	// items are those that were put or deleted, or all that there are.
	items []*item
	// version is the resource version of the list or the last item, or the version that a watch begins after.
	version string
	// selection is the selection of the list or watch.
	selection *selection
	// lists are the objects of the optIn's namespace.
	lists map[model.Kind]*itemList
}

type what uint8

const (
	put what = iota
	deleted
	// list reports that items are all that there are.
	list
	// opened reports that a watch has begun.
	opened
	// denied reports that the API server does not have the resource or does not permit it, and that the watcher waits
	// before it asks again.
	denied
	// reverted reports that the API server has another history than the known versions.
	reverted
	// due reports that the time has come to list the objects of a namespace.
	due
	// listed reports that they have been.
	listed
)

// watcher lists and watches a resource until its context ends. client-go's Reflector does the work. It resumes from the
// last version, or lists again if that version is gone, and backs off.
type watcher struct {
	listReader
	// optOut is what requests leave out, nil if the resource has no namespaces.
	optOut *optOut
	// least is a resource version that lists must not be older than, empty if any will do.
	least string
	// listed is the selection of the last list, listBegan the time of its first request, and listSize the size of its
	// pages so far.
	listed    *selection
	listBegan time.Time
	listSize  uint64
	// lasts is how long one watch lasts at least.
	lasts  time.Duration
	events chan<- event
	health *health

	stop   context.CancelFunc
	done   <-chan struct{}    // closed by stop
	giveUp context.CancelFunc // ends the present Reflector

	mu sync.Mutex // guards all below
	// present is the watch under way, nil if there is none or it is about to end.
	present *openWatch
	last    anchors
	doubt   *doubt // nil if there is none
	// resumes is set if the next watch continues one that the other side has ended.
	resumes bool
}

// run watches until ctx ends. stop ends ctx.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		attempt, cancel := context.WithCancel(ctx)
		w.giveUp = cancel
		logger := logr.FromContextOrDiscard(ctx)
		cache.NewReflectorWithOptions(w.listWatch(), w.resource.example, reflectorStore{w}, cache.ReflectorOptions{
			Logger:          &logger,
			Name:            w.resource.name(),
			MinWatchTimeout: w.lasts,
		}).RunWithContext(attempt)
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(deniedRetry, 0.5)):
		}
	}
}

// send hands an event over unless the watcher has been stopped.
func (w *watcher) send(e event) {
	e.from = w
	select {
	case <-w.done:
	case w.events <- e:
	}
}

// listWatch makes the requests of the Reflector, and observes their outcome.
//
// A first list may come from the API server's cache (version "0"), regardless of its age. Thousands of nodes that start
// at once must not all read from etcd. But it must not be older than the sink's objects, or deleted objects would
// return.
func (w *watcher) listWatch() cache.ListerWatcher {
	return listing{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" && w.least != "" {
				options.ResourceVersion = w.least
				options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
				options.Limit = 0 // a limit would take the list from etcd, at exactly this version
			}
			if options.Continue == "" { // the pages of a list are of one selection, and have its bounds together
				w.listed, w.listBegan, w.listSize = w.selection(), time.Now(), 0
			}
			page, cancel := w.withDeadline(ctx, w.listBegan)
			defer cancel()
			list := &itemList{}
			err := w.ask(&w.listed, func(fields string) (err error) {
				list, err = w.list(page, w.request(options, fields))
				return err
			})
			if err == nil {
				if w.listSize += list.size + pageCost; w.listSize > w.most() {
					err = w.tooLarge()
				}
			}
			if err != nil {
				w.failed(ctx, err)
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if err := w.resume(ctx, &options); err != nil {
				if err == errReverted {
					w.send(event{what: reverted})
					w.giveUp()
				}
				return nil, err
			}
			options.Watch = true
			var body io.ReadCloser
			began, selection := time.Now(), w.selection()
			err := w.ask(&selection, func(fields string) (err error) {
				body, err = w.stream(ctx, w.request(options, fields))
				return err
			})
			if err == nil {
				w.health.markHealthy(w.resource)
				return w.open(body, began, options.ResourceVersion, selection), nil
			}
			w.failed(ctx, err)
			if errors.Is(err, errBroken) {
				return watch.NewEmptyWatch(), nil // it has taken so long that the Reflector asks for another one, and not for a list
			}
			return nil, err
		},
	}}
}

// selection is what to ask for now.
func (w *watcher) selection() *selection {
	if w.optOut == nil {
		return &selection{fields: w.resource.fields}
	}
	return w.optOut.selection()
}

// ask makes a request with a selection, and makes it again with another one if that proves too long.
func (w *watcher) ask(s **selection, request func(fields string) error) error {
	err := request((*s).fields)
	if w.optOut == nil || (*s).fields == "" || !slices.Contains(tooLong, statusOf(err)) {
		return err
	}
	w.optOut.refuse(*s)
	*s = w.selection()
	return request((*s).fields)
}

// open reports a watch that has begun, and lets it run.
func (w *watcher) open(body io.ReadCloser, began time.Time, version string, selection *selection) watch.Interface {
	s := newOpenWatch(w, body, began, selection)
	w.mu.Lock()
	w.present, w.resumes = s, true
	w.last = w.last.without(selection) // events there are not reported
	if w.doubt != nil {
		w.doubt.later = w.doubt.later.without(selection)
	}
	w.mu.Unlock()
	w.send(event{what: opened, version: version, selection: selection})
	go s.run()
	return s
}

// shortWatch is how long a watch without an event must have lasted so that the Reflector continues where it ended. It takes a
// shorter one for a failure, and lists everything again.
const shortWatch = time.Second

// reopen ends the watch under way if it leaves a namespace out, so that it continues from where it is with the present selection. No
// list is needed for that. Without a watch under way there is nothing to do: the next one will have the present selection.
func (w *watcher) reopen(namespace string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.present; s != nil && s.selection.excludes(namespace) {
		time.AfterFunc(max(0, shortWatch-time.Since(s.began)), s.Stop)
		w.present, w.resumes = nil, false
	}
}

// listing keeps the Reflector from asking for a list as a stream of events, which takes longer: docs/adr/0007-lists.md.
type listing struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported tells the Reflector not to use WatchList.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// failed judges the error of a request.
func (w *watcher) failed(ctx context.Context, err error) {
	status := statusOf(err)
	switch {
	case ctx.Err() != nil:
		// It was not the API server that ended it.
	case status == http.StatusGone || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		// The version is gone, or not there yet. The Reflector asks for another one.
	case w.resource.without != "" && (status == http.StatusForbidden || status == http.StatusNotFound):
		if status == http.StatusForbidden {
			w.health.deny(w.resource, err)
		} else {
			w.health.markHealthy(w.resource) // an API server that is older than the resource is no problem
		}
		w.send(event{what: denied})
		w.giveUp()
	default:
		w.health.fail(w.resource, err)
	}
}

// tooLong are the answers to a URL that is too long for the API server or a proxy before it.
var tooLong = []int{http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge, http.StatusBadRequest}

// reflectorStore is the Reflector's store. It keeps nothing, and gets the objects of lists only: see [openWatch].
type reflectorStore struct{ w *watcher }

var (
	_ cache.ReflectorStore         = reflectorStore{}
	_ cache.ReflectorBookmarkStore = reflectorStore{}
)

// Add implements cache.ReflectorStore.
func (i reflectorStore) Add(obj any) error { return i.unexpected(obj) }

// Update implements cache.ReflectorStore.
func (i reflectorStore) Update(obj any) error { return i.unexpected(obj) }

// Delete implements cache.ReflectorStore.
func (i reflectorStore) Delete(obj any) error { return i.unexpected(obj) }

func (i reflectorStore) unexpected(obj any) error {
	return fmt.Errorf("%s: a %T came from a watch by the Reflector", i.w.resource.name(), obj)
}

// Bookmark implements cache.ReflectorBookmarkStore. It comes at the end of a watch.
func (i reflectorStore) Bookmark(version string) error {
	i.w.least = version
	return nil
}

// Replace implements cache.ReflectorStore.
func (i reflectorStore) Replace(objects []any, version string) error {
	items := make([]*item, 0, len(objects))
	for _, obj := range objects {
		items = append(items, obj.(*item)) // as list made them
	}
	i.w.least = version
	i.w.begin(newest(items))
	i.w.send(event{what: list, items: items, version: version, selection: i.w.listed})
	return nil
}

// Resync implements cache.ReflectorStore. The sink keeps its objects, so it does nothing.
func (i reflectorStore) Resync() error { return nil }
