package kube

import (
	"iter"
	"strconv"

	"github.com/switchyard-net/switchyard/model"
)

// held knows which objects of one kind the sink has, by namespace and name, and in which version. Names are shared with the
// objects, so that an object costs some 40 bytes here.
type held struct {
	kind     model.Kind
	versions map[string]map[string]uint64
	// latest is the resource version that lists and events of all namespaces have come to.
	latest string
	// ahead are the namespaces that have been listed by themselves, with the versions of those lists, until latest has come as far.
	// farthest is the highest of them.
	ahead    map[string]uint64
	farthest uint64
}

func newHeld(kind model.Kind) *held {
	return &held{kind: kind, versions: make(map[string]map[string]uint64), ahead: make(map[string]uint64)}
}

// least returns the version that a list of a namespace must not be older than.
func (h *held) least(namespace string) string {
	if ahead := h.ahead[namespace]; ahead > versionNumber(h.latest) {
		return strconv.FormatUint(ahead, 10)
	}
	return h.latest
}

// past reports whether an event is included already in what its namespace has been listed with. Events come in the order of their
// versions.
func (h *held) past(i *item) bool {
	if h.farthest == 0 {
		return false
	}
	version := versionNumber(i.version)
	if version > h.farthest {
		h.caughtUp()
	}
	return version != 0 && version <= h.ahead[i.ref.Namespace]
}

func (h *held) caughtUp() {
	clear(h.ahead)
	h.farthest = 0
}

// put notes an object and reports whether it is news.
func (h *held) put(i *item) bool {
	known, ok := h.versions[i.ref.Namespace][i.ref.Name]
	return h.note(i, known, ok)
}

// note notes an object that was known in another version, or not, and reports whether it is news.
func (h *held) note(i *item, known uint64, ok bool) bool {
	ns := h.versions[i.ref.Namespace]
	if ns == nil {
		ns = make(map[string]uint64)
		h.versions[i.ref.Namespace] = ns
	}
	version := versionNumber(i.version)
	ns[i.ref.Name] = version
	// A version that is no number cannot be compared, so the object passes for news.
	return !ok || known != version || version == 0
}

// remove forgets an object and reports whether it was there.
func (h *held) remove(ref model.Ref) bool {
	ns := h.versions[ref.Namespace]
	if _, ok := ns[ref.Name]; !ok {
		return false
	}
	delete(ns, ref.Name)
	if len(ns) == 0 {
		delete(h.versions, ref.Namespace)
	}
	return true
}

// removeNamespace forgets all objects of a namespace and returns them.
func (h *held) removeNamespace(name string) []model.Ref {
	refs := h.refs(name, h.versions[name], nil)
	delete(h.versions, name)
	return refs
}

// replace replaces all objects by items, a list of a version, except objects in namespaces that are to be kept or have
// been listed later. It returns the new or changed items, and the objects that no longer exist.
func (h *held) replace(items iter.Seq[*item], version string, keep func(namespace string) bool) (news []*item, gone []model.Ref) {
	number := versionNumber(version)
	if number >= h.farthest {
		h.caughtUp()
	}
	kept := func(namespace string) bool { return keep(namespace) || h.ahead[namespace] > number }
	before := h.versions
	h.versions = make(map[string]map[string]uint64, len(before))
	for namespace, names := range before {
		if kept(namespace) {
			h.versions[namespace] = names
			delete(before, namespace)
		}
	}
	for i := range items {
		if !kept(i.ref.Namespace) {
			news = h.relisted(i, before, news)
		}
	}
	for namespace, names := range before {
		gone = h.refs(namespace, names, gone)
	}
	return news, gone
}

// replaceNamespace does the same for the objects of one namespace.
func (h *held) replaceNamespace(name string, items iter.Seq[*item], version string) (news []*item, gone []model.Ref) {
	before := map[string]map[string]uint64{name: h.versions[name]}
	delete(h.versions, name)
	for i := range items {
		news = h.relisted(i, before, news)
	}
	if number := versionNumber(version); number > 0 {
		h.ahead[name] = number
		h.farthest = max(h.farthest, number)
	}
	return news, h.refs(name, before[name], nil)
}

// relisted moves an object from before to the current objects, and appends it to news if it has changed.
func (h *held) relisted(i *item, before map[string]map[string]uint64, news []*item) []*item {
	known, ok := before[i.ref.Namespace][i.ref.Name]
	delete(before[i.ref.Namespace], i.ref.Name)
	if h.note(i, known, ok) {
		news = append(news, i)
	}
	return news
}

// refs appends the names of a namespace's objects to refs.
func (h *held) refs(namespace string, names map[string]uint64, refs []model.Ref) []model.Ref {
	for name := range names {
		refs = append(refs, model.Ref{Kind: h.kind, Namespace: namespace, Name: name})
	}
	return refs
}

// invalidate makes every object pass for news when it is listed next: another cluster may count versions otherwise.
func (h *held) invalidate() {
	h.caughtUp()
	for _, names := range h.versions {
		for name := range names {
			names[name] = 0
		}
	}
}

// len is the number of objects.
func (h *held) len() int {
	n := 0
	for _, ns := range h.versions {
		n += len(ns)
	}
	return n
}
