package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// openWatch is a running watch. Its events go from the connection to the delivery, and bypass the Reflector. At the
// end, the Reflector gets the last version and the error of the watch, and resumes from there.
type openWatch struct {
	watcher   *watcher
	body      io.ReadCloser
	selection *selection
	began     time.Time
	to        chan watch.Event // has room for all that is sent
	stop      sync.Once
	over      chan struct{} // closed by Stop
}

func newOpenWatch(w *watcher, body io.ReadCloser, began time.Time, s *selection) *openWatch {
	return &openWatch{watcher: w, body: body, selection: s, began: began, to: make(chan watch.Event, 2), over: make(chan struct{})}
}

// ResultChan implements watch.Interface.
func (s *openWatch) ResultChan() <-chan watch.Event { return s.to }

// Stop implements watch.Interface. The watch ends without an error then.
func (s *openWatch) Stop() {
	s.stop.Do(func() {
		close(s.over)
		_ = s.body.Close()
	})
}

// run delivers the events. If it is stopped, undelivered events come again with the next watch.
func (s *openWatch) run() {
	defer close(s.to)
	defer s.Stop()
	version, failure := s.deliver()
	if version != "" {
		s.to <- watch.Event{Type: watch.Bookmark, Object: s.watcher.resource.bookmark(version)}
	}
	if failure != nil {
		s.to <- watch.Event{Type: watch.Error, Object: failure}
	}
}

// deliver returns the version of the last event, empty if there was none, and the error for the Reflector.
func (s *openWatch) deliver() (version string, failure *metav1.Status) {
	for next := s.watcher.eventReader(s.body); ; {
		kind, i, err := next()
		select {
		case <-s.over:
			return version, nil
		default:
		}
		if err != nil {
			return version, failureOf(err)
		}
		version = i.version
		if what, ok := changes[kind]; ok {
			s.watcher.note(what, i)
			s.watcher.send(event{what: what, items: []*item{i}, version: version})
		}
	}
}

// changes are the types of events that are about an object, which a bookmark is not.
var changes = map[watch.EventType]what{watch.Added: put, watch.Modified: put, watch.Deleted: deleted}

// failureOf returns the Reflector's error for the error that a watch ended with: nil if the Reflector may continue with
// another watch.
func failureOf(err error) *metav1.Status {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok { // of the API server
		return &status.ErrStatus
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isBroken(err) {
		return nil
	}
	return apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding").AsObject(err).(*metav1.Status)
}

// isBroken reports whether an error is of the connection, so that the same request may succeed over another one.
func isBroken(err error) bool { return net.IsProbableEOF(err) || net.IsTimeout(err) }

const (
	// brokenRetries is how often a watch is requested again after a broken connection, and brokenPause is the wait
	// before each request. The values are client-go's. The Reflector would make a list instead, which costs more.
	brokenRetries = 10
	brokenPause   = time.Second
)

// stream requests the events of a watch.
func (w *watcher) stream(ctx context.Context, request *rest.Request) (io.ReadCloser, error) {
	for attempt := 0; ; attempt++ {
		body, err := request.Throttle(nil).Stream(ctx) // watches are not limited
		switch {
		case err == nil || !isBroken(err):
			return body, err
		case attempt == brokenRetries:
			return nil, errBroken
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(brokenPause):
		}
	}
}

var errBroken = errors.New("the connection broke or timed out before there was an answer")
