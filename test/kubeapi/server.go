// Package kubeapi is a small API server for tests. It lists and watches objects that change, so that tests can control the API server of
// programs under test. It takes merge patches, so that programs can annotate their Nodes.
package kubeapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is an object of the Kubernetes API: a Namespace, Node, Service, EndpointSlice or ServiceCIDR, with its kind filled in.
type Object interface {
	runtime.Object
	metav1.Object
}

// resources are the resources of the API server, with the version and kind of their objects.
var resources = map[string][2]string{
	"namespaces": {"v1", "Namespace"}, "nodes": {"v1", "Node"}, "services": {"v1", "Service"},
	"servicecidrs":   {"networking.k8s.io/v1", "ServiceCIDR"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
}

// Server serves its objects over HTTP. Its methods may be called from several goroutines.
type Server struct {
	mu      sync.Mutex
	version int
	// oldest is the version before which the server has forgotten what changed.
	oldest  int
	objects map[string][]*stored // by resource
	history []change             // since oldest, in the order of versions
	epoch   int                  // how often the server was restored
	changed chan struct{}        // closed and replaced when something above changes
}

// New returns a server without objects.
func New() *Server {
	return &Server{version: 1, objects: map[string][]*stored{}, changed: make(chan struct{})}
}

// stored is an object as it was stored last.
type stored struct {
	namespace, name string
	version         int
	text            []byte
}

// change is a step of the history. before or now is nil if the object was not there.
type change struct {
	version     int
	resource    string
	before, now *stored
}

// maxHistory is how many changes are remembered.
const maxHistory = 100_000

// Put adds objects or replaces them, in this order. It keeps copies.
func (s *Server) Put(changed []Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range changed {
		resource := ""
		for name, kind := range resources {
			if kind[1] == o.GetObjectKind().GroupVersionKind().Kind {
				resource = name
			}
		}
		o := o.DeepCopyObject().(Object)
		o.SetResourceVersion(strconv.Itoa(s.version + 1))
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		s.change(resource, o.GetNamespace(), o.GetName(), text)
	}
	s.wake()
	return nil
}

// Remove removes objects, by resource and name, in all namespaces.
func (s *Server) Remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range slices.Clone(s.objects[resource]) {
		if o.name == name {
			s.change(resource, o.namespace, name, nil)
		}
	}
	s.wake()
}

// errConflict reports that an object has another version than a patch is for.
var errConflict = errors.New("the object has been modified")

// Patch changes an object without a namespace by a JSON merge patch (RFC 7396), and returns its new text. A patch with a resourceVersion is for that version
// only. An object that is not there is fs.ErrNotExist.
func (s *Server) Patch(resource, name string, patch []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.objects[resource], func(o *stored) bool { return o.namespace == "" && o.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%s %s: %w", resource, name, fs.ErrNotExist)
	}
	var object, changes map[string]any
	if err := errors.Join(json.Unmarshal(s.objects[resource][i].text, &object), json.Unmarshal(patch, &changes)); err != nil {
		return nil, err
	}
	if m, ok := changes["metadata"].(map[string]any); ok && m["resourceVersion"] != nil && m["resourceVersion"] != strconv.Itoa(s.objects[resource][i].version) {
		return nil, errConflict
	}
	object = merge(object, changes).(map[string]any)
	object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version + 1)
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	s.change(resource, "", name, text)
	s.wake()
	return text, nil
}

// merge applies a JSON merge patch.
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged, _ := target.(map[string]any)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(merged, name)
		} else {
			merged[name] = merge(merged[name], value)
		}
	}
	return merged
}

// Object returns the text of an object without a namespace, nil if it is not there.
func (s *Server) Object(resource, name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[resource] {
		if o.namespace == "" && o.name == name {
			return o.text
		}
	}
	return nil
}

// change makes a new version, in which an object has another text, or is not there if that is nil. The caller holds mu.
func (s *Server) change(resource, namespace, name string, text []byte) {
	s.version++
	c := change{version: s.version, resource: resource}
	s.objects[resource] = slices.DeleteFunc(s.objects[resource], func(old *stored) bool {
		same := old.namespace == namespace && old.name == name
		if same {
			c.before = old
		}
		return same
	})
	if text != nil {
		c.now = &stored{namespace, name, s.version, text}
		s.objects[resource] = append(s.objects[resource], c.now) // so they are in the order of their versions
	}
	if s.history = append(s.history, c); len(s.history) > maxHistory {
		s.oldest = s.history[maxHistory/2].version
		s.history = slices.Clone(s.history[maxHistory/2+1:])
	}
}

// wake lets watchers look. The caller holds mu.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Forget has the server not remember what has changed before, as one does that was away for long.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.history = s.version, nil
}

// Version returns the resource version of the latest change.
func (s *Server) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Restore takes the server back to its state at a version that it remembers, like a server whose etcd was restored.
// It counts on from there, and ends all watches.
func (s *Server) Restore(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource := range resources {
		s.objects[resource] = s.at(resource, version)
	}
	s.history = slices.DeleteFunc(s.history, func(c change) bool { return c.version > version })
	s.version = version
	s.epoch++
	s.wake()
}

// at returns the objects of a resource at a version, in the order of their versions. The caller holds mu.
func (s *Server) at(resource string, version int) []*stored {
	objects := slices.Clone(s.objects[resource])
	for _, c := range slices.Backward(s.history) {
		if c.version <= version {
			break
		}
		if c.resource != resource {
			continue
		}
		if c.now != nil {
			objects = slices.DeleteFunc(objects, func(o *stored) bool { return o == c.now })
		}
		if c.before != nil {
			objects = append(objects, c.before)
		}
	}
	slices.SortFunc(objects, func(a, b *stored) int { return cmp.Compare(a.version, b.version) })
	return objects
}

// since returns the changes of a resource after a version, the current version, and a channel that is closed when
// there are more. ok is false if the server has been restored since epoch.
func (s *Server) since(resource string, after, epoch int) (list []change, version int, more <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearchFunc(s.history, after+1, func(c change, v int) int { return cmp.Compare(c.version, v) })
	for _, c := range s.history[first:] {
		if c.resource == resource {
			list = append(list, c)
		}
	}
	return list, s.version, s.changed, s.epoch == epoch
}

// ServeHTTP answers lists, watches and patches.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method == http.MethodPatch {
		s.servePatch(w, r, path)
		return
	}
	resource, namespace := path[len(path)-1], ""
	if n := len(path) - 3; n > 0 && path[n] == "namespaces" {
		namespace = path[n+1]
	}
	kind, known := resources[resource]
	w.Header().Set("Content-Type", "application/json")
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	query := r.URL.Query()
	name, byName := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	chosen := func(o *stored) bool {
		return o != nil && (!byName || o.name == name) && (namespace == "" || o.namespace == namespace)
	}
	version, _ := strconv.Atoi(query.Get("resourceVersion"))
	if !query.Has("watch") {
		s.list(w, resource, kind, version, query.Get("resourceVersionMatch") == "Exact", chosen)
		return
	}
	s.mu.Lock()
	epoch, forgotten, initial := s.epoch, version < s.oldest, s.objects[resource]
	if query.Get("sendInitialEvents") == "true" {
		version, forgotten, initial = s.version, false, slices.Clone(initial)
	} else {
		initial = nil
	}
	s.mu.Unlock()
	if forgotten {
		fmt.Fprintln(w, `{"type":"ERROR","object":{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Expired","code":410}}`)
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		for _, o := range initial {
			if chosen(o) {
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", o.text)
			}
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", kind[0], kind[1], version)
	}
	s.watch(w, r, resource, version, epoch, chosen)
}

// servePatch answers a patch of an object without a namespace.
func (s *Server) servePatch(w http.ResponseWriter, r *http.Request, path []string) {
	var text []byte
	patch, err := io.ReadAll(r.Body)
	if err == nil && len(path) >= 2 {
		text, err = s.Patch(path[len(path)-2], path[len(path)-1], patch)
	}
	w.Header().Set("Content-Type", "application/json")
	code, reason := http.StatusOK, ""
	switch {
	case errors.Is(err, errConflict):
		code, reason = http.StatusConflict, "Conflict"
	case errors.Is(err, fs.ErrNotExist):
		code, reason = http.StatusNotFound, "NotFound"
	case err != nil:
		code, reason = http.StatusBadRequest, "BadRequest"
	}
	w.WriteHeader(code)
	if err != nil {
		text = fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, err)
	}
	_, _ = w.Write(text)
}

// list answers a list of a version: that one exactly, or any that is not older.
func (s *Server) list(w http.ResponseWriter, resource string, kind [2]string, version int, exactly bool, chosen func(*stored) bool) {
	objects, now, code := s.listed(resource, version, exactly)
	switch code {
	case http.StatusGatewayTimeout:
		w.WriteHeader(code)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Timeout","code":504,`+
			`"message":"Too large resource version","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]}}`)
		return
	case http.StatusGone:
		w.WriteHeader(code)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Expired","code":410}`)
		return
	}
	var items []string
	for _, o := range objects {
		if chosen(o) {
			items = append(items, string(o.text))
		}
	}
	fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, kind[0], kind[1], now, strings.Join(items, ","))
}

// listed returns the objects of a resource and their version, or the code of a refusal.
func (s *Server) listed(resource string, version int, exactly bool) (objects []*stored, now, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case version > s.version:
		return nil, 0, http.StatusGatewayTimeout
	case exactly && version < s.oldest:
		return nil, 0, http.StatusGone
	case exactly:
		return s.at(resource, version), version, http.StatusOK
	}
	return slices.Clone(s.objects[resource]), s.version, http.StatusOK
}

// watch answers a watch from a version on, until the client has gone or the server is restored. As an API server does,
// it leaves out changes that are not newer than that version, even if the version has never existed.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string, after, epoch int, chosen func(*stored) bool) {
	for {
		list, version, more, ok := s.since(resource, after, epoch)
		if !ok {
			return
		}
		for _, c := range list {
			was, is := chosen(c.before), chosen(c.now)
			switch {
			case is && was:
				fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", c.now.text)
			case is:
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", c.now.text)
			case was:
				before, now := strconv.Itoa(c.before.version), strconv.Itoa(c.version)
				text := strings.Replace(string(c.before.text), `"resourceVersion":"`+before+`"`, `"resourceVersion":"`+now+`"`, 1)
				fmt.Fprintf(w, `{"type":"DELETED","object":%s}`+"\n", text)
			}
		}
		after = max(after, version)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}
