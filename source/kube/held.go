package kube

import (
	"iter"

	"github.com/switchyard-net/switchyard/model"
)

// held knows which objects of one kind the sink has, by namespace and name, and in which version. Names are shared with the
// objects, so that an object costs some 40 bytes here.
type held struct {
	kind     model.Kind
	versions map[string]map[string]uint64
	// latest is the resource version of the last list or event.
	latest string
}

func newHeld(kind model.Kind) *held {
	return &held{kind: kind, versions: make(map[string]map[string]uint64)}
}

// put notes an object and says whether it is news.
func (h *held) put(i *item) bool {
	known, ok := h.versions[i.ref.Namespace][i.ref.Name]
	return h.note(i, known, ok)
}

// note notes an object that was known in another version, or not, and says whether it is news.
func (h *held) note(i *item, known uint64, ok bool) bool {
	ns := h.versions[i.ref.Namespace]
	if ns == nil {
		ns = make(map[string]uint64)
		h.versions[i.ref.Namespace] = ns
	}
	version := versionNumber(i.version)
	ns[i.ref.Name] = version
	// A version that is no number tells nothing, so the object passes for news.
	return !ok || known != version || version == 0
}

// remove forgets an object and says whether it was there.
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
	var refs []model.Ref
	for object := range h.versions[name] {
		refs = append(refs, model.Ref{Kind: h.kind, Namespace: name, Name: object})
	}
	delete(h.versions, name)
	return refs
}

// replace takes items for all objects that there are. It returns those that are news, and what is no longer there.
func (h *held) replace(items iter.Seq[*item]) (news []*item, gone []model.Ref) {
	before := h.versions
	h.versions = make(map[string]map[string]uint64, len(before))
	for i := range items {
		known, ok := before[i.ref.Namespace][i.ref.Name]
		delete(before[i.ref.Namespace], i.ref.Name)
		if h.note(i, known, ok) {
			news = append(news, i)
		}
	}
	for namespace, names := range before {
		for name := range names {
			gone = append(gone, model.Ref{Kind: h.kind, Namespace: namespace, Name: name})
		}
	}
	return news, gone
}

// distrust makes every object pass for news when it is listed next: another cluster may count versions otherwise.
func (h *held) distrust() {
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
