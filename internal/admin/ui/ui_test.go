package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/await"
)

// fake is a process with a store of its own.
type fake struct {
	store   *store.Store
	sink    model.Sink
	changes Changes
	// asked blocks questions if it is not nil, until it is closed.
	asked chan struct{}
	facts *diagnosis.Facts
}

func newFake(t *testing.T, services int) *fake {
	f := &fake{store: store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})}
	t.Cleanup(f.store.Close)
	f.sink = f.store.Source("test")
	for i := range services {
		f.sink.Update([]model.Object{serviceNo(i)}, nil)
	}
	f.sink.Complete()
	return f
}

func serviceNo(i int) *model.Service {
	return &model.Service{
		Name: state.ServiceName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i)}, Type: model.TypeClusterIP,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}, Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}},
	}
}

func sliceNo(i int, node string) *model.EndpointSlice {
	return &model.EndpointSlice{
		Namespace: "shop", Name: fmt.Sprintf("web-%03d-x", i), Service: fmt.Sprintf("web-%03d", i), Family: state.IPv4,
		Ports:     []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.244.0.1"), Ready: true, Serving: true, NodeName: node}},
	}
}

func (f *fake) Status() *view.Status { return &view.Status{Node: "node-a", Mode: "none"} }
func (f *fake) View() *view.View     { return &view.View{Store: f.store, Facts: f.facts} }
func (f *fake) Changes() *Changes    { return &f.changes }
func (f *fake) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	if f.asked != nil {
		select {
		case <-f.asked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return explain.New(explain.Options{Store: f.store}).Ask(ctx, from, to)
}

// get asks a handler, with changes of the request.
func get(h http.Handler, path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:10270"+path, nil)
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAnswers: what the page asks for, and what it may not.
func TestAnswers(t *testing.T) {
	f := newFake(t, 5)
	f.sink.Update([]model.Object{sliceNo(1, "node-b")}, nil)
	h := Handler(t.Context(), f)
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{"/", 200, `<script type="module" src="app.js">`},
		{"/data.js", 200, "EventSource"},
		{"/style.css", 200, "prefers-color-scheme"},
		{"/ui.go", 404, "no such page"},
		{"/page", 404, "no such page"},
		{"/api/status", 200, `"node":"node-a"`},
		{"/api/services?limit=2", 200, `"next":"shop/web-001"`},
		{"/api/services?limit=2&after=shop/web-003", 200, `{"items":[{"namespace":"shop","name":"web-004"`},
		{"/api/services?filter=WEB-002", 200, `{"items":[{"namespace":"shop","name":"web-002"`},
		{"/api/services?namespace=other", 200, `{"items":[]}`},
		{"/api/services?limit=1001", 400, "limit must be a number from 0 to 1000, got \\\"1001\\\""},
		{"/api/services?limit=x", 400, "limit must be a number"},
		{"/api/services?key=shop/web-001&key=shop/gone", 200, `{"items":[{"namespace":"shop","name":"web-001"`},
		{"/api/services?key=x", 400, `key \"x\" is not NAMESPACE/NAME`},
		{"/api/services?" + strings.Repeat("key=a/b&", 101), 400, "101 keys are too many"},
		{"/api/services?filter=" + strings.Repeat("x", 600), 400, "too long"},
		{"/api/services?filter=" + strings.Repeat("x", 5000), 414, "longer than 4096 bytes"},
		{"/api/service?key=shop/web-001", 200, `"internal":"Cluster","external":"Unused","inside":"forwarded","outside":"not served"`},
		{"/api/service?key=shop/web-000", 200, `"endpoints":[]`},
		{"/api/service?key=shop/gone", 404, "there is no Service shop/gone"},
		{"/api/changes", 200, `{"items":[]}`},
		{"/api/changes?after=-1", 400, "after must be a number"},
		{"/api/explain?from=node&to=svc/shop/web-001", 200, `"verdict":"forwarded"`},
		{"/api/explain?from=node&to=svc/shop/gone", 404, "gone"},
		{"/api/explain?from=nobody&to=x", 400, "FROM"},
	} {
		w := get(h, tt.path)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%.60s: %d %s", tt.path, w.Code, w.Body)
		}
		if got := w.Header().Get("Content-Security-Policy"); got != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%.60s: %v", tt.path, w.Header())
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy %s", policy)
	}
}

// TestPods: where pods are known, endpoints have their names.
func TestPods(t *testing.T) {
	f := newFake(t, 2)
	f.sink.Update([]model.Object{sliceNo(1, "node-b")}, nil)
	addr := f.store.Explain(state.ServiceName{Namespace: "shop", Name: "web-001"}).Ports[0].Endpoints[0].Addr.Addr()
	h := Handler(t.Context(), f)
	if got := get(h, "/api/service?key=shop/web-001").Body.String(); strings.Contains(got, `"pod"`) {
		t.Errorf("an unknown pod has a name: %s", got)
	}
	f.facts = &diagnosis.Facts{Pods: []diagnosis.Pod{{Namespace: "shop", Name: "web-x7k2p", Node: "node-b", Addrs: []netip.Addr{addr}}}}
	if got := get(h, "/api/service?key=shop/web-001").Body.String(); !strings.Contains(got, `"pod":"web-x7k2p"`) {
		t.Errorf("a pod has no name: %s", got)
	}
	f.facts = nil
	slice := sliceNo(1, "node-b")
	slice.Pods = model.PackPods("", []string{"web-q2w3e"})
	f.sink.Update([]model.Object{slice}, nil)
	if got := get(h, "/api/service?key=shop/web-001").Body.String(); !strings.Contains(got, `"pod":"web-q2w3e"`) {
		t.Errorf("the pod of a slice has no name: %s", got)
	}
}

// TestReasonsHaveWords: the page has words for every reason of package brain.
func TestReasonsHaveWords(t *testing.T) {
	page, err := fs.ReadFile(files, "page/dom.js")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../../../brain/explain.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`\n\t\w+ +Reason = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(reasons) < 20 {
		t.Fatalf("package brain has only %d reasons", len(reasons))
	}
	for _, r := range reasons {
		if !regexp.MustCompile(`\b` + string(r[1]) + `: "`).Match(page) {
			t.Errorf("dom.js has no words for %s", r[1])
		}
	}
}

// TestOnlyThisHostAndPage: names that another site may have, requests of its pages, and all methods that change something are refused.
func TestOnlyThisHostAndPage(t *testing.T) {
	h := Handler(t.Context(), newFake(t, 1))
	at := func(addr string) func(*http.Request) {
		return func(r *http.Request) {
			*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))))
		}
	}
	host := func(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }
	fetched := func(site, mode string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", site)
			r.Header.Set("Sec-Fetch-Mode", mode)
		}
	}
	for name, tt := range map[string]struct {
		path   string
		change []func(*http.Request)
		code   int
	}{
		"loopback":          {"/api/status", []func(*http.Request){host("127.0.0.1:10270")}, 200},
		"loopback, IPv6":    {"/api/status", []func(*http.Request){host("[::1]:10270")}, 200},
		"localhost":         {"/api/status", []func(*http.Request){host("LocalHost")}, 200},
		"written address":   {"/api/status", []func(*http.Request){host("192.0.2.10:10270"), at("192.0.2.10:10270")}, 200},
		"another address":   {"/api/status", []func(*http.Request){host("192.0.2.11:10270"), at("192.0.2.10:10270")}, 403},
		"a name":            {"/api/status", []func(*http.Request){host("evil.example:10270")}, 403},
		"a name for itself": {"/", []func(*http.Request){host("localhost.evil.example")}, 403},
		"no host":           {"/api/status", []func(*http.Request){host("")}, 403},
		"the page":          {"/api/status", []func(*http.Request){fetched("same-origin", "cors")}, 200},
		"a person":          {"/", []func(*http.Request){fetched("none", "navigate")}, 200},
		"another site":      {"/api/explain?from=node&to=svc/shop/web-000", []func(*http.Request){fetched("cross-site", "no-cors")}, 403},
		"another port":      {"/api/status", []func(*http.Request){fetched("same-site", "cors")}, 403},
		"a link":            {"/", []func(*http.Request){fetched("cross-site", "navigate")}, 200},
		"a link to data":    {"/api/status", []func(*http.Request){fetched("cross-site", "navigate")}, 403},
		"POST":              {"/api/status", []func(*http.Request){func(r *http.Request) { r.Method = http.MethodPost }}, 405},
	} {
		if w := get(h, tt.path, tt.change...); w.Code != tt.code || tt.code != 200 && !strings.Contains(w.Body.String(), `{"error":"`) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// TestTurns: questions that take long leave room for everything else, and the end of the process ends the wait for a turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1)
		f.asked = make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		h := Handler(ctx, f)
		codes := make(chan int, 10)
		for range maxQuestions + 1 {
			go func() { codes <- get(h, "/api/explain?from=node&to=svc/shop/web-000").Code }()
		}
		synctest.Wait()
		if len(codes) > 0 {
			t.Fatal("there is an answer to a question that nobody has worked on")
		}
		rows := make(chan int, 1)
		go func() { rows <- get(h, "/api/services").Code }()
		synctest.Wait()
		if len(rows) != 1 || <-rows != http.StatusOK {
			t.Error("questions keep rows waiting")
		}
		stop()
		synctest.Wait()
		if len(codes) != 1 || <-codes != http.StatusServiceUnavailable {
			t.Errorf("the one that waited for its turn does not hear that the process ends")
		}
		close(f.asked)
		for range maxQuestions {
			if code := <-codes; code != 200 {
				t.Errorf("an answer has code %d", code)
			}
		}
	})
}

// TestLongQuestion: a client gets its answer, however long that takes.
func TestLongQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1)
		f.asked = make(chan struct{})
		here, there := net.Pipe()
		defer there.Close()
		l := &oneConn{conn: here, closed: make(chan struct{})}
		srv := httpserver.New(Handler(t.Context(), f), slog.New(slog.DiscardHandler))
		go func() { _ = srv.Serve(l) }()
		go func() {
			_, _ = there.Write([]byte("GET /api/explain?from=node&to=svc/shop/web-000 HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		}()
		time.Sleep(time.Minute)
		close(f.asked)
		if resp, err := http.ReadResponse(bufio.NewReader(there), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("after a minute the answer is %v, %v", resp, err)
		}
		_ = srv.Close()
	})
}

// serve serves a page over real connections.
func serve(t *testing.T, f *fake) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	done := make(chan error, 1)
	go func() {
		done <- httpserver.Serve(ctx, l, Handler(ctx, f), httpserver.Options{Connections: connlimit.New(connlimit.Options{Name: "page", Max: MaxConnections, Replace: true, Logger: log}), Logger: log})
	}()
	t.Cleanup(func() {
		began := time.Now()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("open pages hold up the end of the process for %v", took)
		}
	})
	return l.Addr().String()
}

// follow reads the events of a page.
func follow(t *testing.T, address string) (next func() event, end func()) {
	resp, err := http.Get("http://" + address + "/api/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 10<<20)
	return func() (e event) {
		t.Helper()
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(text), &e); err != nil {
					t.Error(err)
				}
				return e
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return e
	}, func() { resp.Body.Close() }
}

// TestEvents: a page hears of what changes: rows, the log, and that too much is different to list.
func TestEvents(t *testing.T) {
	f := newFake(t, 300)
	next, _ := follow(t, serve(t, f))
	if e := next(); e.Status == nil || e.Status.Node != "node-a" || len(e.Set) > 0 || e.Reload {
		t.Errorf("the first event is %+v", e)
	}
	f.sink.Update([]model.Object{sliceNo(7, "node-a")}, []model.Ref{serviceNo(8).Ref()})
	f.changes.Attempted(backend.Attempt{Update: &state.Update{Revision: 2}})
	var e event
	for len(e.Set)+len(e.Deleted) < 2 || len(e.Changes) == 0 {
		got := next()
		e.Set, e.Deleted, e.Changes = append(e.Set, got.Set...), append(e.Deleted, got.Deleted...), append(e.Changes, got.Changes...)
	}
	if !strings.Contains(string(e.Set[0]), `"name":"web-007"`) || !strings.Contains(string(e.Set[0]), `"endpoints":{"used":1`) || e.Deleted[0] != "shop/web-008" || e.Changes[0].Revision != 2 {
		t.Errorf("changes are %+v", e)
	}
	var all []model.Object
	for i := range maxRows + 20 {
		all = append(all, sliceNo(i, "node-b"))
	}
	f.sink.Update(all, nil)
	for {
		if e := next(); e.Reload {
			break
		} else if len(e.Set) > maxRows {
			t.Fatalf("an event has %d rows", len(e.Set))
		}
	}
}

// TestStreamsAreBounded: one page too many is refused, and is served when another one is closed.
func TestStreamsAreBounded(t *testing.T) {
	address := serve(t, newFake(t, 1))
	var ends []func()
	for range maxStreams {
		next, end := follow(t, address)
		next()
		ends = append(ends, end)
	}
	ask := func() int {
		resp, err := http.Get("http://" + address + "/api/events")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if code := ask(); code != http.StatusServiceUnavailable {
		t.Errorf("page %d has code %d", maxStreams+1, code)
	}
	ends[0]()
	await.Until(t, "a page that is closed leaves its place", func() bool { return ask() == http.StatusOK })
}

// TestSlowClient: one that does not read is cut, and its place is free for another one. The bubble's clock goes on when everybody waits.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, maxRows)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s := &page{newServer(ctx), f}
		here, there := net.Pipe()
		defer there.Close()
		l := &oneConn{conn: here, closed: make(chan struct{})}
		srv := httpserver.New(s.events(s.follow), slog.New(slog.DiscardHandler))
		go func() { _ = srv.Serve(l) }()
		if _, err := there.Write([]byte("GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second / 2)
		if s.streams.len() != 1 {
			t.Fatal("there is no stream")
		}
		time.Sleep(2 * writeTimeout) // nobody reads
		synctest.Wait()
		if s.streams.len() != 0 {
			t.Error("a client that does not read keeps its place")
		}
		if len(s.turns) != 0 {
			t.Error("a client that does not read keeps its turn")
		}
		_ = srv.Close()
	})
}

// TestQuietStream outlives the timeouts of requests, though nothing happens.
func TestQuietStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &page{newServer(t.Context()), newFake(t, 1)}
		here, there := net.Pipe()
		l := &oneConn{conn: here, closed: make(chan struct{})}
		srv := httpserver.New(s.events(s.follow), slog.New(slog.DiscardHandler))
		go func() { _ = srv.Serve(l) }()
		events := make(chan string, 100)
		go func() {
			lines := bufio.NewScanner(there)
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data: ") {
					events <- lines.Text()
				}
			}
		}()
		_, _ = there.Write([]byte("GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		time.Sleep(5 * time.Minute)
		if s.streams.len() != 1 || len(events) < 15 || len(events) > 25 {
			t.Errorf("after five quiet minutes, there are %d streams and %d events", s.streams.len(), len(events))
		}
		there.Close()
		time.Sleep(2 * quiet)
		synctest.Wait()
		if s.streams.len() != 0 {
			t.Error("a client that is gone keeps its place")
		}
		_ = srv.Close()
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { close(l.closed); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestWhatChanged: an entry has the endpoints that came and went, in a bounded number, also of a Service that is new or gone.
func TestWhatChanged(t *testing.T) {
	record := func(name string, ends ...string) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "shop", Name: name}, Ports: make([]state.Port, 2)}
		for _, end := range ends {
			for i := range s.Ports { // each endpoint has two ports
				r := &s.Ports[i].Internal.Inside
				r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(end), uint16(80+i))})
			}
		}
		return s
	}
	before := map[state.ServiceName]*state.Service{}
	for _, s := range []*state.Service{record("redis", "10.0.0.1", "10.244.2.8"), record("many"), record("gone", "10.0.0.9")} {
		before[s.Name] = s
	}
	var c Changes
	c.Attempted(backend.Attempt{
		Update: &state.Update{
			Changed: []*state.Service{record("redis", "10.0.0.1", "10.244.1.7"), record("new", "10.0.0.3"), record("many", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6")},
			Removed: []state.ServiceName{{Namespace: "shop", Name: "gone"}},
		},
		Before: before,
	})
	c.Attempted(backend.Attempt{Update: &state.Update{Full: true, Changed: []*state.Service{record("redis", "10.0.0.1")}}})
	var got []string
	for _, e := range c.After(0) {
		for _, s := range e.Services {
			got = append(got, fmt.Sprintf("%s +%v -%v %d %v %v", s.Name, s.Plus, s.Minus, s.More, s.New, s.Gone))
		}
	}
	want := []string{
		"shop/redis +[10.244.1.7] -[10.244.2.8] 0 false false", "shop/new +[10.0.0.3] -[] 0 true false", "shop/many +[10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4] -[] 2 false false",
		"shop/gone +[] -[10.0.0.9] 0 false true", "shop/redis +[] -[] 0 false false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLog: the log keeps what the dataplane did last, with its latency, and leaves out verifications that find nothing.
func TestLog(t *testing.T) {
	var c Changes
	began := time.Now()
	c.Attempted(backend.Attempt{Began: began}) // a verification
	c.Attempted(backend.Attempt{Began: began, Took: time.Second, Update: &state.Update{
		Revision: 7, Removed: []state.ServiceName{{Namespace: "a", Name: "b"}}, Triggers: []time.Time{began.Add(-2 * time.Second), began.Add(-time.Second)},
	}})
	c.Attempted(backend.Attempt{Began: began, Result: backend.Result{Repaired: 3}})
	c.Attempted(backend.Attempt{Began: began, Err: errors.New(strings.Repeat("x", 5000))})
	got := c.After(0)
	if len(got) != 3 || got[0].Kind != Programmed || *got[0].Latency != 3 || got[0].Services[0].Name != "a/b" || !got[0].Services[0].Gone || got[0].Number != 1 ||
		got[1].Kind != Repaired || got[1].Repaired != 3 || got[2].Kind != Failed || len(got[2].Error) != maxError {
		t.Errorf("the log is %+v", got)
	}
	for i := range 1000 {
		c.Attempted(backend.Attempt{Began: began, Update: &state.Update{Revision: state.Revision(100 + i), Changed: make([]*state.Service, 0)}})
	}
	if got := c.After(0); len(got) != maxChanges || got[0].Number != 1003-maxChanges+1 || got[maxChanges-1].Revision != 1099 {
		t.Errorf("of 1003 entries, %d are kept: %d to %d", len(got), got[0].Number, got[len(got)-1].Number)
	}
	if got := c.After(1001); len(got) != 2 || got[0].Number != 1002 {
		t.Errorf("after entry 1001 there are %+v", got)
	}
	if got := c.After(5000); len(got) != 0 {
		t.Errorf("after an entry that is not there are %+v", got)
	}
}
