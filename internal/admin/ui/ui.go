// Package ui serves the page that shows a process in a browser: its status, its Services, the reasons for routes, and
// the changes. The page of a relay also shows the nodes that follow it.
//
// Everybody who can connect may read it. So it shows nothing that is secret on the node, changes nothing, and bounds
// everything that clients can ask for. Pages of other sites get nothing. The server refuses names that such sites can
// resolve to this machine, and requests that a browser makes for these pages.
package ui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/explain"
)

// Source is what a page shows. Its methods are called concurrently.
type Source interface {
	// Status returns how the process is doing.
	Status() *view.Status
	// View returns what rows are made from.
	View() *view.View
	// Explain answers a question.
	Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error)
	// Changes is the log of the dataplane.
	Changes() *Changes
}

// The limits for all clients together.
const (
	// MaxConnections is enough for a few browsers, which make up to six each.
	MaxConnections = 48
	// maxStreams is how many pages are kept up to date at a time.
	maxStreams = 16
	// maxAtOnce is how many lists and events are worked on at a time: each takes its turns at the lock of the store.
	maxAtOnce = 2
	// stepTime is how long one list or event is worked on, and stepBytes how large it may be, beyond its first row. The page asks for the rest.
	stepTime  = 100 * time.Millisecond
	stepBytes = 1 << 20
	// maxQuestions is how many questions are worked on in addition to them. They may take seconds, because the kernel
	// is read back.
	maxQuestions = 2
	// maxQuery is how long the query of a request may be.
	maxQuery = 4 << 10
	// writeTimeout is how long a client may take to read an answer, or one event.
	writeTimeout = 10 * time.Second
)

// policy lets a page load what this server has, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed page
var files embed.FS

// pageKind is what a page is about. The page goes by it.
type pageKind string

const (
	ofNode  pageKind = "node"
	ofRelay pageKind = "relay"
	ofLab   pageKind = "lab"
)

// status is the status of a process, with the kind of its page.
type status struct {
	Page pageKind `json:"page"`
	*view.Status
}

// Handler returns what serves the page of a source, until ctx ends: then it ends the streams of events. A source that is a [Lab] has the page
// of one.
func Handler(ctx context.Context, source Source) http.Handler {
	p := &page{newServer(ctx), source}
	return p.handler(map[string]http.Handler{
		"status": p.answer(p.turns, p.status), "services": p.answer(p.turns, p.services), "service": p.answer(p.turns, p.service),
		"changes": p.answer(p.turns, p.changes), "explain": p.answer(p.questions, p.explain),
	}, p.follow)
}

// answerer answers one request, with what becomes JSON.
type answerer func(*http.Request) (any, error)

// handler serves the page's files, answers below /api/, and the events of streams.
func (s *server) handler(answers map[string]http.Handler, follow func() stream) http.Handler {
	mux := http.NewServeMux()
	for name, answer := range answers {
		mux.Handle("GET /api/"+name, answer)
	}
	mux.HandleFunc("GET /api/events", s.events(follow))
	mux.HandleFunc("GET /", serveFile)
	return guard(mux)
}

// guard keeps pages of other sites out, and tells browsers what this page may do.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "this page changes nothing: use GET")
		case !allowedHost(r):
			fail(w, http.StatusForbidden, "the host in the address is neither localhost nor an address of this server: open the page by the address that --ui-bind-address has")
		case !sameOrigin(r):
			fail(w, http.StatusForbidden, "another site asks: open the page itself")
		case len(r.URL.RawQuery) > maxQuery:
			fail(w, http.StatusRequestURITooLong, "the query is longer than "+strconv.Itoa(maxQuery)+" bytes")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// allowedHost reports whether a request names this server by localhost, a loopback address, or the address of the
// connection. Another site cannot use these names. If its own name resolved to this machine and were allowed, its pages
// could read this page.
func allowedHost(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return false
	}
	if addr.Unmap().IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap().WithZone("") == addr.Unmap().WithZone("")
}

// sameOrigin reports whether a person or this page makes a request. Browsers say if another page does; it may only link to this one.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && !strings.HasPrefix(r.URL.Path, "/api/")
}

// contentTypes are the content types of the page's files. Package mime asks the system, whose types may differ, and
// browsers run no script of another type.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// serveFile serves a file of the page.
func serveFile(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if name == "" {
		name = "index.html"
	}
	data, err := fs.ReadFile(files, "page/"+name)
	if err != nil {
		fail(w, http.StatusNotFound, "there is no such page")
		return
	}
	w.Header().Set("Content-Type", contentTypes[path.Ext(name)])
	_, _ = w.Write(data)
}

// fail answers with an error.
func fail(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message})
}

// server is what all kinds of pages share: their bounds.
type server struct {
	ctx              context.Context // of the handler
	turns, questions chan struct{}
	streams          streams
}

func newServer(ctx context.Context) *server {
	return &server{ctx: ctx, turns: make(chan struct{}, maxAtOnce), questions: make(chan struct{}, maxQuestions)}
}

// page is the page of a process with the cluster's objects.
type page struct {
	*server
	source Source
}

// apiError is an error with a code of HTTP.
type apiError struct {
	code int
	text string
}

func (e *apiError) Error() string { return e.text }

// answer returns what answers with what f returns, when it is its turn.
func (s *server) answer(turns chan struct{}, f answerer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.answerWith(w, r, turns, f) })
}

func (s *server) answerWith(w http.ResponseWriter, r *http.Request, turns chan struct{}, f answerer) {
	select {
	case turns <- struct{}{}:
	case <-r.Context().Done():
		return
	case <-s.ctx.Done():
		fail(w, http.StatusServiceUnavailable, "the process is shutting down")
		return
	}
	v, err := func() (any, error) {
		defer func() { <-turns }() // a client that does not read keeps nobody else waiting
		return f(r)
	}()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers of tests have none
	if err != nil {
		code := http.StatusInternalServerError
		if e, ok := errors.AsType[*apiError](err); ok {
			code = e.code
		}
		fail(w, code, err.Error())
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

func badRequest(err error) error { return &apiError{http.StatusBadRequest, err.Error()} }

// current is how the process is doing.
func (p *page) current() *status {
	if _, ok := p.source.(Lab); ok {
		return &status{ofLab, p.source.Status()}
	}
	return &status{ofNode, p.source.Status()}
}

func (p *page) status(*http.Request) (any, error) { return p.current(), nil }

// changes returns the log after the number that the query has.
func (p *page) changes(r *http.Request) (any, error) {
	after, err := number[uint64](r, "after", 0, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	return map[string]any{"items": nonNil(p.source.Changes().After(after))}, nil
}

// explain answers a question.
func (p *page) explain(r *http.Request) (any, error) {
	from, err := explain.ParseFrom(r.FormValue("from"))
	to, toErr := explain.ParseTo(r.FormValue("to"))
	if err := errors.Join(err, toErr); err != nil {
		return nil, badRequest(err)
	}
	answers, err := p.source.Explain(r.Context(), from, to)
	if err != nil {
		return nil, &apiError{http.StatusNotFound, err.Error()}
	}
	explain.Limit(answers)
	return map[string]any{"answers": nonNil(answers)}, nil
}

// number returns a number of the query.
func number[T int | uint64](r *http.Request, name string, missing, most T) (T, error) {
	text := r.FormValue(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > uint64(most) {
		return 0, &apiError{http.StatusBadRequest, fmt.Sprintf("%s must be a number from 0 to %d, got %q", name, most, text)}
	}
	return T(n), nil
}

// nonNil makes a list without elements [] in JSON.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
