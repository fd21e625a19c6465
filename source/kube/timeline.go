package kube

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/model"
)

// A resource version means something in one history only. After etcd has been restored from a backup, the API server counts on from that backup, and
// the versions that watches have come to are in the future, or belong to other changes. An API server that is asked for a watch from there says
// nothing of that: it leaves out what it takes for known already. So each watch that is resumed asks first whether the last change that is known here
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
const checkTime = 10 * time.Second

// errReverted ends a watcher whose API server has another history.
var errReverted = errors.New("the API server has gone back to an earlier state")

// resume returns why the watch of a version must not go on where one has ended: errReverted if the API server has another history than that of
// which the watcher has come to the version, or that the version is too old to be compared, as it is to be watched. What cannot be found out for other
// reasons counts as the same history.
func (w *watcher) resume(ctx context.Context, version string) error {
	w.mu.Lock()
	known, resumes := slices.Clone(w.last), w.resumes
	w.mu.Unlock()
	if !resumes {
		return nil
	}
	// Nothing is asked about namespaces that are taken from the proxy, and something must be asked for: a list of one object costs next to nothing.
	ref := model.Ref{Name: "kubernetes", Namespace: metav1.NamespaceDefault}
	var last *anchor
	selection := w.selection()
	if i := slices.IndexFunc(known, func(a *anchor) bool { return !selection.excludes(a.ref.Namespace) }); i >= 0 {
		last = known[i]
		ref = last.ref
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	at, err := w.one(ctx, ref, exactly(version))
	switch {
	case err == nil && last == nil:
		return nil
	case err == nil && !last.isLast(at):
		return errReverted
	case err == nil && last.deleted:
		// The object may have been deleted in both histories, but not by the same version.
		before, err := w.one(ctx, ref, exactly(strconv.FormatUint(versionNumber(last.version)-1, 10)))
		if err == nil && last.find(before) == nil {
			return errReverted
		}
		return nil
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		return err
	case err == nil || statusOf(err) == 0:
		return nil
	}
	// The version may be in the future, of this API server or of all of them: what etcd has now decides.
	if now, err := w.one(ctx, ref, metav1.ListOptions{}); err == nil && versionNumber(now.ResourceVersion) < versionNumber(version) {
		return errReverted
	}
	return nil
}

// exactly asks for what there was at a version.
func exactly(version string) metav1.ListOptions {
	return metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
}

// one lists one object.
func (w *watcher) one(ctx context.Context, ref model.Ref, options metav1.ListOptions) (*itemList, error) {
	r := w.listReader
	if r.resource.namespaced {
		r.resource = r.resource.in(ref.Namespace)
	}
	return r.list(ctx, r.request(options, "metadata.name="+ref.Name))
}

// begin remembers the last change of a list. The watch that begins there is of the same history.
func (w *watcher) begin(last anchors) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.resumes = last, false
}

// note remembers an event of a watch.
func (w *watcher) note(what what, i *item) {
	last := &anchor{ref: i.ref, version: i.version, deleted: what == deleted}
	if !last.deleted {
		last.object = i.object
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = w.last.note(last)
}

// startOver lists everything again. What the sink has stays there until the lists say otherwise.
func (d *delivery) startOver() {
	for _, r := range d.resources {
		if w := d.watchers[r.kind]; w != nil {
			d.held[r.kind].invalidate()
			d.watch(r)
		}
	}
	for _, namespace := range slices.Collect(maps.Keys(d.optIns)) { // what they wait for is not the same any more
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
