package kube

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/switchyard-net/switchyard/model"
)

// A resource version is valid in one history only. After a restore of etcd, the API server counts on from the backup.
// The versions of existing watches are then in the future, or belong to other changes. The API server does not report
// this: it omits the changes that it considers known. So each resumed watch first checks whether the last known change
// is in the API server's history.

// anchor is the last change of a resource that is known.
type anchor struct {
	ref     model.Ref
	version string
	deleted bool
	// object is what there is since then; nil if it was deleted, or is not known.
	object model.Object
}

// maxAnchors is how many anchors are kept of a resource, each of another namespace: nothing is asked about namespaces that are taken from the proxy.
const maxAnchors = 4

// anchors are the last changes of a resource that are known, the newest first.
type anchors []*anchor

// note adds a change.
func (l anchors) note(a *anchor) anchors {
	l = slices.DeleteFunc(l, func(b *anchor) bool { return b.ref.Namespace == a.ref.Namespace })
	return slices.Insert(l[:min(len(l), maxAnchors-1)], 0, a)
}

// without leaves out the namespaces that a selection excludes.
func (l anchors) without(s *selection) anchors {
	return slices.DeleteFunc(l, func(a *anchor) bool { return s.excludes(a.ref.Namespace) })
}

// newest returns the anchors of a list.
func newest(items []*item) anchors {
	var last *item
	for _, i := range items {
		if last == nil || versionNumber(i.version) > versionNumber(last.version) {
			last = i
		}
	}
	if last == nil {
		return nil
	}
	return anchors{{ref: last.ref, version: last.version, object: last.object}}
}

// find returns the anchor's object in a list, nil if it is not there.
func (a *anchor) find(list *itemList) *item {
	for i := range itemsOf(list) {
		if i.ref == a.ref {
			return i
		}
	}
	return nil
}

// isLast reports whether nothing has happened to the object since, by a list of a later time.
func (a *anchor) isLast(list *itemList) bool {
	i := a.find(list)
	if i == nil || a.deleted {
		return i == nil && a.deleted
	}
	return i.version == a.version && (a.object == nil || i.object == nil || reflect.DeepEqual(a.object, i.object))
}

// checkTime is how long it may take to compare histories, before the watch goes on without. API servers wait 3 s for a version to come.
const checkTime = 4 * time.Second

// refusedTime is how long a watch is put off while the API server refuses to compare histories. It goes on at the next attempt after that: the API
// server may never answer.
const refusedTime = 30 * time.Second

// doubtTime limits a watch that continues in doubt, plus up to half of it. API servers forget versions older than 5
// minutes.
const doubtTime = 2 * time.Minute

// errReverted ends a watcher whose API server has another history.
var errReverted = errors.New("the API server has gone back to an earlier state")

// doubt is a comparison of histories without an outcome yet. Each watch that is resumed tries it again.
type doubt struct {
	version string // to compare at: the known anchors are the last changes before it
	began   time.Time
	later   anchors // of watches since then, perhaps in another history
}

// resume returns why a watch must not continue at a version. It returns errReverted if the API server has another
// history than the watcher's version. It also returns an error if the version is too old to be compared and the last
// change is not the current one.
//
// While the API server refuses to compare or cannot be reached, the error is "too many requests". The Reflector then
// asks for the watch again, not for a list. A watch that continues in doubt gets a shorter lifetime.
func (w *watcher) resume(ctx context.Context, options *metav1.ListOptions) error {
	version := options.ResourceVersion
	w.mu.Lock()
	resumes, doubt, at := w.resumes, w.doubt, version
	w.mu.Unlock()
	if !resumes {
		return nil
	}
	if doubt != nil {
		at = doubt.version
	}
	short, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	err := w.compare(short, at)
	if err == nil {
		w.trust()
		if at != version {
			at = version
			err = w.compare(short, at)
		}
	}
	if err == nil || err == errReverted || isExpired(err) {
		return err
	}
	if net.IsProbableEOF(err) || net.IsConnectionRefused(err) { // the API server may be another one when it is back
		w.failed(ctx, err)
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	began := w.doubtAt(at)
	if status := statusOf(err); (status == http.StatusTooManyRequests || status >= http.StatusInternalServerError) && time.Since(began) < refusedTime {
		w.failed(ctx, err)
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	seconds := min(*options.TimeoutSeconds, int64(wait.Jitter(doubtTime, 0.5)/time.Second))
	options.TimeoutSeconds = &seconds
	return nil
}

// compare returns errReverted if the known changes are not the last ones before a version in the API server's history. It returns an error of
// [isExpired] if the version is gone and something has changed since. Other errors say that nothing is known.
func (w *watcher) compare(ctx context.Context, version string) error {
	w.mu.Lock()
	known := slices.Clone(w.last)
	w.mu.Unlock()
	// The request must name an object outside the disabled namespaces. A list of one object is cheap.
	ref := model.Ref{Name: "kubernetes", Namespace: metav1.NamespaceDefault}
	var last *anchor
	selection := w.selection()
	if i := slices.IndexFunc(known, func(a *anchor) bool { return !selection.excludes(a.ref.Namespace) }); i >= 0 {
		last = known[i]
		ref = last.ref
	}
	at, err := w.one(ctx, ref, exactly(version))
	switch {
	case err == nil && last == nil:
		return nil
	case err == nil && !last.isLast(at):
		return errReverted
	case err == nil && last.deleted:
		// The object may have been deleted in both histories, but not by the same version.
		before, err := w.one(ctx, ref, exactly(strconv.FormatUint(versionNumber(last.version)-1, 10)))
		switch {
		case err == nil && last.find(before) == nil:
			return errReverted
		case isExpired(err):
			return nil
		}
		return err
	case err == nil || !isExpired(err) && !mayBeFuture(err):
		return err
	}
	// The current state of etcd decides. A version in the future may be so for this API server only.
	now, failure := w.one(ctx, ref, metav1.ListOptions{})
	switch {
	case failure != nil:
		return failure
	case versionNumber(now.ResourceVersion) < versionNumber(version):
		return errReverted
	case isExpired(err) && (last == nil || !last.deleted && last.isLast(now)):
		return nil // etcd has forgotten the version, and the API server may still watch from there
	}
	return err
}

// isExpired reports whether an error says that a version is no longer in etcd.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// mayBeFuture reports whether an error says that a version is not there yet. Older API servers pass on the message of
// etcd.
func mayBeFuture(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) || strings.Contains(err.Error(), "future revision")
}

// doubtAt remembers that there was no outcome at a version, and returns since when there has been none.
func (w *watcher) doubtAt(version string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt == nil {
		w.doubt = &doubt{version: version, began: time.Now()}
	}
	return w.doubt.began
}

// trust ends a doubt: the events since then belong to the same history.
func (w *watcher) trust() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt == nil {
		return
	}
	for _, a := range slices.Backward(w.doubt.later) {
		w.last = w.last.note(a)
	}
	w.doubt = nil
}

// exactly asks for what there was at a version.
func exactly(version string) metav1.ListOptions {
	return metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
}

// one lists one object. It neither waits for the client's limit nor until a server that refuses is ready again: there is no watch in that time.
func (w *watcher) one(ctx context.Context, ref model.Ref, options metav1.ListOptions) (*itemList, error) {
	r := w.listReader
	if r.resource.namespaced {
		r.resource = r.resource.in(ref.Namespace)
	}
	return r.list(ctx, r.request(options, "metadata.name="+ref.Name).Throttle(nil).MaxRetries(0))
}

// begin remembers the last change of a list. The watch that begins there is of the same history.
func (w *watcher) begin(last anchors) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.doubt, w.resumes = last, nil, false
}

// note remembers an event of a watch.
func (w *watcher) note(what what, i *item) {
	last := &anchor{ref: i.ref, version: i.version, deleted: what == deleted}
	if !last.deleted {
		last.object = i.object
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt != nil {
		w.doubt.later = w.doubt.later.note(last)
	} else {
		w.last = w.last.note(last)
	}
}

// startOver lists everything again. The sink keeps its objects until the lists replace them.
func (d *delivery) startOver() {
	for _, r := range d.resources {
		if w := d.watchers[r.kind]; w != nil {
			d.held[r.kind].invalidate()
			d.watch(r)
		}
	}
	for _, namespace := range slices.Collect(maps.Keys(d.optIns)) { // they waited for watches that have changed
		d.beginOptIn(namespace)
	}
}

// revert goes over to the history that the API server has now. The first lists may be as old as they are: they are not compared with the versions
// of the other history.
func (d *delivery) revert() {
	d.source.log.Warn("the API server has gone back to an earlier state, as after a restore of etcd; listing everything again")
	for _, h := range d.held {
		h.latest = ""
	}
	d.startOver()
}
