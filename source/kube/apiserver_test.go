package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// apiServer implements the requests of a source: lists and watches with selectors and resource versions. It answers in
// protobuf or JSON, over connections in memory that can be broken. It uses the clock of the test.
type apiServer struct {
	t      testing.TB
	types  *runtime.Scheme
	codecs serializer.CodecFactory
	server http.Server
	conns  chan net.Conn
	closed chan struct{}
	host   string

	encoding sync.Mutex // encoders write into what they encode, for a moment

	mu       sync.Mutex
	version  uint64
	epoch    uint64                       // of the numbers that change gives to objects
	objects  map[string]map[string]object // by resource, then by namespace/name
	history  []past
	oldest   uint64        // watches cannot begin before this version
	inEtcd   uint64        // etcd has forgotten what was before this version, and the memory of the server has not
	changed  chan struct{} // closed with each change of anything
	open     []net.Conn
	down     bool              // connections are refused
	status   map[string]int    // answers for a resource or request, instead of the right one
	held     map[string]bool   // resources or requests that are not answered yet
	longest  int               // URLs that are longer are refused, if not 0
	ready    map[string][]byte // answers to lists, made before, so that making them takes no time
	half     bool              // lists end in the middle
	slam     bool              // connections end without an answer
	tls      *tls.Config       // speaks TLS, if not nil
	token    string            // is demanded, if not empty
	stale    uint64            // lag of the memory: lists that may be of any age are of this version's time
	lag      *rand.Rand        // lists are of any version that may be asked for, if not nil
	requests []request         // except the requests of resume
	checks   int               // the number of requests of resume
	sent     []string          // events of namespaced objects that have been sent: resource namespace/name
	bytes    map[string]int    // what has been sent, by request
}

type object interface {
	runtime.Object
	metav1.Object
}

// past is a change in history. now or before is nil if the object was not there.
type past struct {
	version     uint64
	resource    string
	before, now object
}

// request is a client's request.
type request struct {
	resource  string
	verb      string // list or watch
	namespace string // empty: all
	labels    string
	fields    string
	url       url.Values
	accept    string
}

func (r request) String() string {
	if r.namespace != "" {
		return r.verb + " " + r.resource + " in " + r.namespace
	}
	return r.verb + " " + r.resource
}

func newAPIServer(t testing.TB) *apiServer {
	types, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	a := &apiServer{
		t:       t,
		types:   types,
		codecs:  serializer.NewCodecFactory(types),
		conns:   make(chan net.Conn),
		closed:  make(chan struct{}),
		host:    "http://api.test",
		version: 100,
		objects: make(map[string]map[string]object),
		changed: make(chan struct{}),
		status:  make(map[string]int),
		held:    make(map[string]bool),
		bytes:   make(map[string]int),
	}
	a.server.Handler = a
	a.server.ErrorLog = log.New(io.Discard, "", 0)
	var done sync.WaitGroup
	t.Cleanup(func() { _ = a.server.Close(); done.Wait() })
	done.Go(func() { _ = a.server.Serve(a) })
	return a
}

// Accept, Close and Addr make it a net.Listener.
func (a *apiServer) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.open = append(a.open, c)
		if a.tls != nil {
			return tls.Server(c, a.tls.Clone()), nil
		}
		return c, nil
	case <-a.closed:
		return nil, net.ErrClosed
	}
}

func (a *apiServer) Close() error {
	select {
	case <-a.closed:
	default:
		close(a.closed)
	}
	return nil
}

func (a *apiServer) Addr() net.Addr { return &net.UnixAddr{Name: "api.test", Net: "unix"} }

func (a *apiServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a.mu.Lock()
	down := a.down
	a.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	client, server := net.Pipe()
	select {
	case a.conns <- server:
		return client, nil
	case <-a.closed:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

// config is how to reach it.
func (a *apiServer) config() *rest.Config { return &rest.Config{Host: a.host, Dial: a.dial, QPS: 1000} }

// do changes something about the server, under its lock, and wakes those who wait.
func (a *apiServer) do(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	close(a.changed)
	a.changed = make(chan struct{})
}

// plural is the resource that an object is of.
func (a *apiServer) plural(o object) string {
	kinds, _, err := a.types.ObjectKinds(o)
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.ToLower(kinds[0].Kind) + "s"
}

func name(o object) string { return o.GetNamespace() + "/" + o.GetName() }

// put stores objects.
func (a *apiServer) put(objects ...object) {
	for _, o := range objects {
		resource := a.plural(o)
		a.do(func() {
			a.version++
			o.SetResourceVersion(strconv.FormatUint(a.version, 10))
			if a.objects[resource] == nil {
				a.objects[resource] = make(map[string]object)
			}
			a.history = append(a.history, past{a.version, resource, a.objects[resource][name(o)], o})
			a.objects[resource][name(o)] = o
		})
	}
}

// remove deletes objects.
func (a *apiServer) remove(objects ...object) {
	for _, o := range objects {
		resource := a.plural(o)
		a.do(func() {
			a.version++
			last := a.objects[resource][name(o)]
			if last == nil {
				a.t.Fatalf("%s %s is not there to be removed", resource, name(o))
			}
			a.history = append(a.history, past{a.version, resource, last, nil})
			delete(a.objects[resource], name(o))
		})
	}
}

// cut breaks all connections. With down, there are no new ones either.
func (a *apiServer) cut(down bool) {
	a.do(func() {
		a.down = down
		for _, c := range a.open {
			_ = c.Close()
		}
		a.open = nil
	})
}

// up lets connections through again.
func (a *apiServer) up() { a.do(func() { a.down = false }) }

// compact forgets the history: watches must begin with a new list.
func (a *apiServer) compact() { a.do(func() { a.oldest = a.version }) }

// compactEtcd forgets the history in etcd: watches that the server's memory reaches back to go on.
func (a *apiServer) compactEtcd() { a.do(func() { a.inEtcd = a.version }) }

// takeRequests returns the requests since it was last called.
func (a *apiServer) takeRequests() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.requests
	a.requests = nil
	return taken
}

// takeSent returns the namespaced objects that have been sent since it was last called, sorted.
func (a *apiServer) takeSent() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.sent)
	taken := a.sent
	a.sent = nil
	return taken
}

// takeBytes returns the bytes of answers since it was last called, by request.
func (a *apiServer) takeBytes() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.bytes
	a.bytes = make(map[string]int)
	return taken
}

// counted counts the bytes of an answer.
type counted struct {
	http.ResponseWriter
	server  *apiServer
	request string
}

func (c counted) Write(b []byte) (int, error) {
	c.server.mu.Lock()
	c.server.bytes[c.request] += len(b)
	c.server.mu.Unlock()
	return c.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func parse(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}

// query is the query of a request.
type query struct {
	resource  string
	namespace string // empty: all
	labels    labels.Selector
	fields    fields.Selector
}

func (s *query) matches(o object) bool {
	return o != nil && (s.namespace == "" || s.namespace == o.GetNamespace()) && s.labels.Matches(labels.Set(o.GetLabels())) &&
		s.fields.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()})
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	s := query{resource: path[len(path)-1]}
	if n := len(path) - 3; n > 0 && path[n] == "namespaces" {
		s.namespace = path[n+1]
	}
	var err1, err2 error
	s.labels, err1 = labels.Parse(q.Get("labelSelector"))
	s.fields, err2 = fields.ParseSelector(q.Get("fieldSelector"))
	req := request{resource: s.resource, verb: "list", namespace: s.namespace, labels: q.Get("labelSelector"), fields: q.Get("fieldSelector"), url: q, accept: r.Header.Get("Accept")}
	if q.Has("watch") {
		req.verb = "watch"
	}
	if q.Has("sendInitialEvents") {
		a.t.Error("a list was asked for as a stream of events")
	}
	w = counted{w, a, req.String()}
	a.mu.Lock()
	if isCheck(q) {
		a.checks++
	} else {
		a.requests = append(a.requests, req)
	}
	status := max(a.status[s.resource], a.status[req.String()])
	if a.slam {
		a.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	for a.held[s.resource] || a.held[req.String()] {
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		a.mu.Lock()
	}
	switch {
	case a.token != "" && r.Header.Get("Authorization") != "Bearer "+a.token:
		status = http.StatusUnauthorized
	case a.longest > 0 && len(r.URL.String()) > a.longest:
		status = http.StatusRequestURITooLong
	case err1 != nil || err2 != nil:
		status = http.StatusBadRequest
	}
	a.mu.Unlock()
	if status != 0 {
		a.refuse(w, s.resource, status)
		return
	}
	media, _, _ := strings.Cut(req.accept, ",")
	info, ok := runtime.SerializerInfoForMediaType(a.codecs.SupportedMediaTypes(), media)
	if !ok {
		a.refuse(w, s.resource, http.StatusNotAcceptable)
		return
	}
	version := schema.GroupVersion{Version: "v1"}
	if path[0] == "apis" {
		version.Group = path[1]
	}
	if req.verb == "list" {
		a.list(w, &s, q, version, info)
	} else {
		a.watch(w, r, &s, q, version, info)
	}
}

// isCheck reports whether a request is one of resume.
func isCheck(q url.Values) bool {
	return !q.Has("watch") && q.Get("resourceVersionMatch") != "NotOlderThan" && strings.HasPrefix(q.Get("fieldSelector"), "metadata.name=") && q.Get("resourceVersion") != "0" && !q.Has("limit")
}

// restore resets the server to its state at a version, like a restore of etcd: it counts on from there. Connections
// break.
func (a *apiServer) restore(version uint64) {
	a.cut(true)
	a.do(func() {
		for resource := range a.objects {
			at := map[string]object{}
			for _, o := range a.at(resource, version) {
				at[name(o)] = o
			}
			a.objects[resource] = at
		}
		a.history = slices.DeleteFunc(a.history, func(p past) bool { return p.version > version })
		a.version, a.oldest, a.inEtcd = version, min(a.oldest, version), min(a.inEtcd, version)
	})
}

// tooLarge refuses a version that does not exist yet, as an API server does after 3 s.
func (a *apiServer) tooLarge(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}},
	})
}

func (a *apiServer) refuse(w http.ResponseWriter, resource string, code int) {
	reason := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
		http.StatusGone: metav1.StatusReasonExpired, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
		http.StatusUnprocessableEntity: metav1.StatusReasonInvalid, http.StatusUnauthorized: metav1.StatusReasonUnauthorized,
	}[code]
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: fmt.Sprintf("%s: %s", resource, http.StatusText(code)),
	})
}

// at returns the objects of a resource at a version, sorted by name. The caller holds mu.
func (a *apiServer) at(resource string, version uint64) []object {
	objects := maps.Clone(a.objects[resource])
	for _, p := range slices.Backward(a.history) {
		if p.version <= version || p.resource != resource {
			continue
		}
		if p.before != nil {
			objects[name(p.before)] = p.before
		} else {
			delete(objects, name(p.now))
		}
	}
	return slices.SortedFunc(maps.Values(objects), func(x, y object) int { return strings.Compare(name(x), name(y)) })
}

func (a *apiServer) list(w http.ResponseWriter, s *query, q url.Values, version schema.GroupVersion, info runtime.SerializerInfo) {
	w.Header().Set("Content-Type", info.MediaType)
	a.mu.Lock()
	if answer := a.ready[s.resource]; answer != nil {
		a.mu.Unlock()
		_, _ = w.Write(answer)
		return
	}
	half := a.half
	now := a.version
	if a.stale != 0 && q.Get("resourceVersion") == "0" {
		now = a.stale
	}
	if least := parse(q.Get("resourceVersion")); a.lag != nil && least > 0 && least < now {
		now = least + a.lag.Uint64N(now-least+1)
	}
	if parse(q.Get("resourceVersion")) > a.version {
		a.mu.Unlock()
		a.tooLarge(w)
		return
	}
	if q.Get("resourceVersionMatch") == "Exact" {
		if now = parse(q.Get("resourceVersion")); now < max(a.oldest, a.inEtcd) {
			a.mu.Unlock()
			a.refuse(w, s.resource, http.StatusGone)
			return
		}
	}
	var items []runtime.Object
	var kind string
	for _, o := range a.at(s.resource, now) {
		if s.matches(o) {
			items = append(items, o)
			if !isCheck(q) {
				a.note(s.resource, o)
			}
		}
	}
	a.mu.Unlock()
	for k := range a.types.KnownTypes(version) {
		if strings.ToLower(k) == s.resource[:len(s.resource)-1]+"list" {
			kind = k
		}
	}
	list, err := a.types.New(version.WithKind(kind))
	if err != nil {
		panic(err)
	}
	var answer bytes.Buffer
	a.encoding.Lock()
	if err := meta.SetList(list, items); err != nil {
		panic(err)
	}
	list.(metav1.ListInterface).SetResourceVersion(strconv.FormatUint(now, 10))
	_ = a.codecs.EncoderForVersion(info.Serializer, version).Encode(list, &answer)
	a.encoding.Unlock()
	if half {
		_, _ = w.Write(answer.Bytes()[:answer.Len()/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(answer.Bytes())
}

// note records that an object has been sent. The caller holds mu.
func (a *apiServer) note(resource string, o object) {
	if o.GetNamespace() != "" {
		a.sent = append(a.sent, resource+" "+name(o))
	}
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, s *query, q url.Values, version schema.GroupVersion,
	info runtime.SerializerInfo) {
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	timeout := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timeout.Stop()
	w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	frames := info.StreamSerializer.Framer.NewFrameWriter(w)
	send := func(kind string, o runtime.Object) {
		var raw strings.Builder
		a.encoding.Lock()
		_ = a.codecs.EncoderForVersion(info.Serializer, version).Encode(o, &raw)
		a.encoding.Unlock()
		event := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: []byte(raw.String())}}
		if err := info.StreamSerializer.Serializer.Encode(event, frames); err != nil {
			panic(http.ErrAbortHandler) // the client has gone
		}
	}
	from := parse(q.Get("resourceVersion"))
	a.mu.Lock()
	flush := func() { _ = http.NewResponseController(w).Flush() }
	if from < a.oldest {
		a.mu.Unlock()
		send("ERROR", &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"})
		flush()
		return
	}
	for {
		var next []past
		for _, p := range a.history {
			if p.version > from && p.resource == s.resource {
				next = append(next, p)
			}
		}
		from = max(from, a.version) // what is in the future leaves out all before it
		changed := a.changed
		a.mu.Unlock()
		for _, p := range next {
			was, is := s.matches(p.before), s.matches(p.now)
			switch {
			case is:
				a.mu.Lock()
				a.note(s.resource, p.now)
				a.mu.Unlock()
				send(map[bool]string{true: "MODIFIED", false: "ADDED"}[was], p.now)
			case was:
				last := p.before.DeepCopyObject().(object)
				last.SetResourceVersion(strconv.FormatUint(p.version, 10))
				send("DELETED", last)
			}
		}
		flush()
		select {
		case <-changed:
		case <-timeout.C:
			return
		case <-r.Context().Done():
			return
		}
		a.mu.Lock()
	}
}
