// Package kubeapi is an API server in miniature: it lists and watches objects that change, so that programs under test have one that does as it
// is told.
package kubeapi

import (
	"encoding/json"
	"fmt"
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

// resources are those of the API server, with the version and kind of their objects.
var resources = map[string][2]string{
	"namespaces": {"v1", "Namespace"}, "nodes": {"v1", "Node"}, "services": {"v1", "Service"},
	"servicecidrs":   {"networking.k8s.io/v1", "ServiceCIDR"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
}

// Server serves over HTTP what it was given. Its methods may be called from several goroutines.
type Server struct {
	mu      sync.Mutex
	version int
	// oldest is the version before which the server has forgotten what changed.
	oldest  int
	objects map[string][]stored // by resource
	changed chan struct{}       // closed and replaced when something above changes
}

// New returns a server without objects.
func New() *Server {
	return &Server{version: 1, objects: map[string][]stored{}, changed: make(chan struct{})}
}

// stored is an object as it was stored last.
type stored struct {
	namespace, name string
	version         int
	text            []byte
	isNew           bool // this version is the first one
}

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
		s.version++
		o := o.DeepCopyObject().(Object)
		o.SetResourceVersion(strconv.Itoa(s.version))
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		next := stored{namespace: o.GetNamespace(), name: o.GetName(), version: s.version, text: text, isNew: true}
		s.objects[resource] = slices.DeleteFunc(s.objects[resource], func(old stored) bool {
			same := old.namespace == next.namespace && old.name == next.name
			next.isNew = next.isNew && !same
			return same
		})
		s.objects[resource] = append(s.objects[resource], next) // so they are in the order of their versions
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// Forget has the server not remember what has changed before, as one does that was away for long.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
}

// Remove removes objects, by resource and name, while the server is away: watchers get no event.
func (s *Server) Remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[resource] = slices.DeleteFunc(s.objects[resource], func(o stored) bool { return o.name == name })
}

// since returns what is newer than a version, the version now, and what is closed when there is more.
func (s *Server) since(resource string, after int) (list []stored, version int, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[resource] {
		if o.version > after {
			list = append(list, o)
		}
	}
	return list, s.version, s.changed
}

// ServeHTTP answers lists and watches.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	kind, known := resources[resource]
	w.Header().Set("Content-Type", "application/json")
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	query := r.URL.Query()
	name, byName := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	chosen := func(o stored) bool { return !byName || o.name == name }
	if !query.Has("watch") {
		list, version, _ := s.since(resource, 0)
		var items []string
		for _, o := range list {
			if chosen(o) {
				items = append(items, string(o.text))
			}
		}
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, kind[0], kind[1], version, strings.Join(items, ","))
		return
	}
	after, _ := strconv.Atoi(query.Get("resourceVersion"))
	if query.Get("sendInitialEvents") == "true" {
		list, version, _ := s.since(resource, 0)
		for _, o := range list {
			if chosen(o) {
				fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", o.text)
			}
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", kind[0], kind[1], version)
		after = version
	} else if s.forgotten(after) {
		fmt.Fprintln(w, `{"type":"ERROR","object":{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Expired","code":410}}`)
		return
	}
	for {
		list, version, more := s.since(resource, after)
		for _, o := range list {
			verb := "MODIFIED"
			if o.isNew {
				verb = "ADDED"
			}
			if chosen(o) {
				fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", verb, o.text)
			}
		}
		after = version
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

func (s *Server) forgotten(version int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return version < s.oldest
}
