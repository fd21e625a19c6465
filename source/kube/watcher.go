package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// deniedRetry is how long to wait, or up to half as long again, before asking again for a resource that the API server does
// not have or does not let be seen, if that is bearable: it will not change by itself.
const deniedRetry = 5 * time.Minute

// event is what a watcher has to say.
type event struct {
	from *watcher
	what what
	// items are those that were put or deleted, or all that there are.
	items []item
	// version is the resource version of the list or the last item.
	version string
}

type what uint8

const (
	put what = iota
	deleted
	// list says that items are all that there are.
	list
	// denied says that the API server does not have the resource or does not let it be seen, and that the watcher will not
	// ask again for a while.
	denied
	// refused says that the request is too long.
	refused
)

// watcher lists and watches a resource under one selection until its context ends. The work is done by client-go's
// Reflector: it resumes from the last version, or lists again where that is no longer there; and backs off.
type watcher struct {
	resource *resource
	client   rest.Interface
	decoder  runtime.Decoder
	fields   string
	// least is a resource version that lists must not be older than, empty if any will do.
	least string
	// lasts is how long one watch lasts at least.
	lasts  time.Duration
	events chan<- event
	health *health

	stop   context.CancelFunc
	done   <-chan struct{}    // closed by stop
	giveUp context.CancelFunc // ends the present Reflector
}

// run watches until ctx ends, which is what stop does.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		attempt, cancel := context.WithCancel(ctx)
		w.giveUp = cancel
		logger := logr.FromContextOrDiscard(ctx)
		cache.NewReflectorWithOptions(w.listWatch(), w.resource.example, intake{w}, cache.ReflectorOptions{
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

// listWatch makes the requests that the Reflector asks for, and watches what becomes of them.
//
// About versions: a first list may be what the API server has in its memory ("0"), as old as that is: thousands of nodes that
// start at once must not all read from etcd. But it must not be older than what the sink has already, or objects would come
// back to life.
func (w *watcher) listWatch() cache.ListerWatcher {
	request := func(options metav1.ListOptions) *rest.Request {
		options.LabelSelector, options.FieldSelector = w.resource.labels, w.fields
		return w.client.Get().Resource(w.resource.plural).VersionedParams(&options, metav1.ParameterCodec)
	}
	return listing{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" && w.least != "" {
				options.ResourceVersion = w.least
				options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
				options.Limit = 0 // a limit would take the list from etcd, at exactly this version
			}
			list, err := w.list(ctx, request(options))
			if err != nil {
				w.failed(ctx, err)
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			events, err := request(options).Watch(ctx)
			switch _, alive := events.(*watch.StreamWatcher); {
			case err == nil && alive:
				w.health.mend(w.resource)
			case err == nil:
				// Where connections keep breaking, client-go returns a watch that has ended instead of an error.
				w.failed(ctx, errBroken)
			default:
				w.failed(ctx, err)
			}
			return events, err
		},
	}}
}

// listing keeps the Reflector from asking for a list as a stream of events, which takes longer: docs/adr/0007-lists.md.
type listing struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what the Reflector asks for that.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

var errBroken = errors.New("the connection broke or timed out before there was an answer")

// failed judges the error of a request.
func (w *watcher) failed(ctx context.Context, err error) {
	status := statusOf(err)
	switch {
	case ctx.Err() != nil:
		// It was not the API server that ended it.
	case status == http.StatusGone || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		// The version is not there any more, or not yet. The Reflector asks for another one.
	case w.resource.namespaced && w.fields != "" && slices.Contains(tooLong, status):
		w.send(event{what: refused})
	case w.resource.without != "" && (status == http.StatusForbidden || status == http.StatusNotFound):
		if status == http.StatusForbidden {
			w.health.fail(w.resource, err)
		} else {
			w.health.mend(w.resource) // an API server that is older than the resource is not in trouble
		}
		w.send(event{what: denied})
		w.giveUp()
	default:
		w.health.fail(w.resource, err)
	}
}

// tooLong are the answers to a URL that is too long for the API server or a proxy before it.
var tooLong = []int{http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge, http.StatusBadRequest}

// intake is the Reflector's store. It keeps nothing.
type intake struct{ w *watcher }

var _ cache.ReflectorStore = intake{}

// Add implements cache.ReflectorStore.
func (i intake) Add(obj any) error { return i.one(put, obj) }

// Update implements cache.ReflectorStore.
func (i intake) Update(obj any) error { return i.one(put, obj) }

// Delete implements cache.ReflectorStore.
func (i intake) Delete(obj any) error { return i.one(deleted, obj) }

func (i intake) one(what what, obj any) error {
	it, err := i.item(obj)
	if err != nil {
		return err
	}
	i.w.least = it.version
	i.w.send(event{what: what, items: []item{*it}, version: it.version})
	return nil
}

// Replace implements cache.ReflectorStore.
func (i intake) Replace(objects []any, version string) error {
	items := make([]item, 0, len(objects))
	for n, obj := range objects {
		it, err := i.item(obj)
		if err != nil {
			return err
		}
		items = append(items, *it)
		objects[n] = nil // which lets it be freed
	}
	i.w.least = version
	i.w.send(event{what: list, items: items, version: version})
	return nil
}

// Resync implements cache.ReflectorStore. What the sink got it has.
func (i intake) Resync() error { return nil }

// item strips an object, if that has not been done.
func (i intake) item(obj any) (*item, error) {
	switch obj := obj.(type) {
	case *item:
		return obj, nil
	case metav1.Object:
		it := strip(i.w.resource.kind, obj)
		return &it, nil
	}
	return nil, fmt.Errorf("%s: cannot use a %T", i.w.resource.name(), obj)
}
