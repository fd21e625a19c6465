package healthz

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

var both = []state.Family{state.IPv4, state.IPv6}

// get asks over loopback.
func get(h http.Handler, path string) *httptest.ResponseRecorder {
	return getFrom(h, path, "127.0.0.1:1234")
}

func getFrom(h http.Handler, path, remote string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr = remote
	h.ServeHTTP(w, r)
	return w
}

// TestExactAnswers has the whole text: clients of kube-proxy parse it.
func TestExactAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A bubble's clock begins at midnight, 2000-01-01.
		h := New(Options{Families: both})
		h.SetNode(Node{Exists: true})
		at := func(clock string) string { return `"2000-01-01T00:` + clock + `Z"` }
		expect := func(path string, code int, body string) {
			t.Helper()
			w := get(h.Handler(), path)
			if w.Code != code || w.Body.String() != body {
				t.Errorf("%v after the start, %s = %d\n%s\nwant %d\n%s", time.Now().UTC().Format("04:05"), path, w.Code, w.Body, code, body)
			}
			if ct := w.Header().Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type is %q", ct)
			}
			if w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers are %v", w.Header())
			}
		}
		time.Sleep(time.Second)
		expect("/healthz", 200, `{"lastUpdated":`+at("00:01")+`,"currentTime":`+at("00:01")+`,"nodeEligible":true,"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":`+at("00:00")+`,"healthy":true},"IPv6":{"lastUpdated":`+at("00:00")+`,"healthy":true}}}`)
		expect("/livez", 200, `{"lastUpdated":`+at("00:01")+`,"currentTime":`+at("00:01")+`,"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":`+at("00:00")+`,"healthy":true},"IPv6":{"lastUpdated":`+at("00:00")+`,"healthy":true}}}`)

		h.Status(backend.Status{Pending: time.Now()})
		time.Sleep(time.Minute)
		expect("/livez", 503, `{"lastUpdated":`+at("00:00")+`,"currentTime":`+at("01:01")+`,"healthy":false,`+
			`"status":{"IPv4":{"lastUpdated":`+at("00:00")+`,"healthy":false},"IPv6":{"lastUpdated":`+at("00:00")+`,"healthy":false}}}`)

		h.Status(backend.Status{Applied: 1, LastSuccess: time.Now()})
		h.AddProblems("source", func() []error { return []error{errors.New("no API server")} })
		h.SetNode(Node{})
		expect("/healthz", 503, `{"lastUpdated":`+at("01:01")+`,"currentTime":`+at("01:01")+`,"nodeEligible":false,"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":`+at("01:01")+`,"healthy":true},"IPv6":{"lastUpdated":`+at("01:01")+`,"healthy":true}},`+
			`"problems":[{"part":"source","message":"no API server"}]}`)
	})
}

func TestEligible(t *testing.T) {
	tests := map[string]struct {
		node Node
		want bool
	}{
		"absent":              {Node{}, false},
		"there":               {Node{Exists: true}, true},
		"tainted otherwise":   {Node{Exists: true, Taints: []string{"node.kubernetes.io/unschedulable"}}, true},
		"about to be deleted": {Node{Exists: true, Taints: []string{"x", "ToBeDeletedByClusterAutoscaler"}}, false},
		"being deleted":       {Node{Exists: true, Deleting: true}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := New(Options{})
			h.SetNode(test.node)
			want := map[bool]int{true: 200, false: 503}[test.want]
			if got := get(h.Handler(), "/healthz").Code; got != want {
				t.Errorf("/healthz = %d, want %d", got, want)
			}
			if got := get(h.Handler(), "/livez").Code; got != 200 {
				t.Errorf("/livez = %d: a node that goes away does not need its proxy restarted", got)
			}
		})
	}
}

func TestHealthy(t *testing.T) {
	type step struct {
		after  time.Duration
		status backend.Status
		newest state.Revision
		silent bool // the reconciler reports nothing
		begins bool // an update begins to wait
		still  bool // it still waits
		want   bool
	}
	const limit = 20 * time.Second
	err := errors.New("refused")
	tests := map[string][]step{
		"starting takes as long as it takes": {
			{silent: true, want: true},
			{after: time.Hour, silent: true, want: true},
		},
		"an update waits for too long, and is applied in the end": {
			{begins: true, want: true},
			{after: limit - 1, silent: true, want: true},
			{after: 1, silent: true, want: false},
			{status: backend.Status{Applied: 1}, want: true},
		},
		"attempts that fail do not help": {
			{begins: true, want: true},
			{after: limit / 2, status: backend.Status{Failures: 1, Err: err}, still: true, want: true},
			{after: limit / 2, status: backend.Status{Failures: 2, Err: err}, still: true, want: false},
		},
		"a service that fails is no reason": {
			{status: backend.Status{Applied: 1, Failed: map[state.ServiceName]error{{}: err}}, want: true},
			{after: time.Hour, silent: true, want: true},
		},
		"a verification that fails is no reason": {
			{status: backend.Status{Applied: 1, Failures: 7, Err: err}, want: true},
			{after: time.Hour, silent: true, want: true},
		},
		"the reconciler hangs": {
			{status: backend.Status{Applied: 1}, newest: 1, want: true},
			{after: time.Hour, newest: 2, silent: true, want: true},
			{after: limit - 1, newest: 3, silent: true, want: true},
			{after: 1, newest: 3, silent: true, want: false},
			{status: backend.Status{Applied: 3}, newest: 3, want: true},
		},
		"the reconciler is always a little behind": {
			{status: backend.Status{Applied: 1}, newest: 2, want: true},
			{after: limit / 2, status: backend.Status{Applied: 2}, newest: 3, want: true},
			{after: limit / 2, status: backend.Status{Applied: 3}, newest: 4, want: true},
			{after: limit / 2, status: backend.Status{Applied: 4}, newest: 5, want: true},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var newest state.Revision
				var since time.Time
				h := New(Options{Families: both, Timeout: limit, Newest: func() state.Revision { return newest }})
				h.SetNode(Node{Exists: true})
				for i, s := range steps {
					time.Sleep(s.after)
					newest = s.newest
					if s.begins {
						since = time.Now()
					}
					if s.begins || s.still {
						s.status.Pending = since
					}
					if !s.silent {
						h.Status(s.status)
					}
					if got := h.Healthy(); got != s.want {
						t.Errorf("step %d: healthy is %v, want %v", i, got, s.want)
					}
					for _, path := range []string{"/healthz", "/livez"} {
						if got := get(h.Handler(), path).Code == 200; got != s.want {
							t.Errorf("step %d: %s is 200: %v, want %v", i, path, got, s.want)
						}
					}
				}
			})
		})
	}
}

// TestFaults: they make a process unhealthy, but not dead. Other problems are only listed.
func TestFaults(t *testing.T) {
	var problems []error
	h := New(Options{Families: both})
	h.SetNode(Node{Exists: true})
	h.AddProblems("api", func() []error { return []error{errors.New("nobody is there")} })
	h.AddFaults("source", func() []error { return problems })
	for _, problems = range [][]error{nil, {errors.New("web.yaml:3: bad port")}, nil} {
		want := 200
		if len(problems) > 0 {
			want = 503
		}
		w := get(h.Handler(), "/healthz")
		if w.Code != want || strings.Contains(w.Body.String(), `"nodeEligible":true,"healthy":true`) != (want == 200) || strings.Contains(w.Body.String(), "web.yaml:3") != (want == 503) {
			t.Errorf("with %d problems: %d %s", len(problems), w.Code, w.Body)
		}
		if code := get(h.Handler(), "/livez").Code; code != 200 || !h.Healthy() {
			t.Errorf("/livez = %d with %d problems", code, len(problems))
		}
	}
}

func TestSetTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{Families: both, Timeout: time.Minute})
		h.Status(backend.Status{Pending: time.Now()})
		time.Sleep(time.Minute)
		if h.Healthy() {
			t.Error("healthy after the timeout")
		}
		h.SetTimeout(2 * time.Minute)
		if !h.Healthy() {
			t.Error("unhealthy before the new timeout")
		}
	})
}

// TestPendingSince: a change waits since it came, also over failures, and a process that has programmed nothing waits since its start.
func TestPendingSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var newest state.Revision
		h, began := New(Options{Newest: func() state.Revision { return newest }}), time.Now()
		expect := func(when string, want time.Time) {
			t.Helper()
			if got := h.PendingSince(); !got.Equal(want) {
				t.Errorf("%s: pending since %v, want %v", when, got, want)
			}
		}
		time.Sleep(time.Minute)
		expect("before the first state", began)
		newest = 1
		h.Status(backend.Status{Pending: time.Now(), Failures: 1, Err: errors.New("refused")})
		expect("the first state fails", began)
		h.Status(backend.Status{Applied: 1, LastSuccess: time.Now()})
		expect("it is programmed", time.Time{})
		newest = 2
		time.Sleep(time.Second)
		noticed := time.Now()
		expect("the dataplane has not been called", noticed)
		time.Sleep(time.Minute)
		expect("the call hangs", noticed)
		h.Status(backend.Status{Applied: 1, Pending: began.Add(time.Minute), Failures: 3, Err: errors.New("refused")})
		expect("the call fails", began.Add(time.Minute))
		h.Status(backend.Status{Applied: 2, LastSuccess: time.Now()})
		expect("all is programmed", time.Time{})
	})
}

// TestVerificationOfAnOldState: a success while an update waits is not one of the newest state.
// TestProgress: an update that takes long, but gets on, is no reason to end the process. One that is stuck is, and so is one that gets on,
// fails and begins again.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{Timeout: time.Minute})
		expect := func(when string, want int) {
			t.Helper()
			if got := get(h.Handler(), "/livez").Code; got != want {
				t.Errorf("%s: /livez = %d, want %d", when, got, want)
			}
		}
		began := time.Now()
		h.Status(backend.Status{Pending: began})
		for range 10 {
			time.Sleep(59 * time.Second)
			expect("it gets on", 200)
			h.Progress()
		}
		time.Sleep(time.Minute)
		expect("it is stuck", 503)
		h.Progress()
		expect("it gets on again", 200)
		h.Status(backend.Status{Pending: began, Failures: 1, Err: errors.New("refused")})
		expect("it has failed", 503)
		h.Progress()
		expect("it begins again", 503)
		h.Status(backend.Status{Applied: 1, LastSuccess: time.Now()})
		expect("it has succeeded", 200)
		h.Status(backend.Status{Applied: 1, Pending: time.Now()})
		time.Sleep(59 * time.Second)
		h.Progress()
		time.Sleep(59 * time.Second)
		expect("the next one gets on", 200)
	})
}

func TestVerificationOfAnOldState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{Families: both[:1]})
		start := time.Now()
		time.Sleep(2 * time.Minute)
		h.Status(backend.Status{Pending: start, LastSuccess: time.Now()})
		var got struct{ LastUpdated time.Time }
		if err := json.Unmarshal(get(h.Handler(), "/livez").Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if !got.LastUpdated.Equal(start) {
			t.Errorf("lastUpdated is %v, want %v", got.LastUpdated, start)
		}
	})
}

func TestProblemsAreOnlyListed(t *testing.T) {
	h := New(Options{})
	h.SetNode(Node{Exists: true})
	problems := []error{errors.New("a"), errors.New("b")}
	h.AddProblems("source", func() []error { return problems })
	h.AddProblems("ports", func() []error { return nil })
	w := get(h.Handler(), "/healthz")
	var got struct {
		Problems []struct{ Part, Message string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if w.Code != 200 || len(got.Problems) != 2 || got.Problems[1].Part != "source" || got.Problems[1].Message != "b" {
		t.Errorf("/healthz = %d %s", w.Code, w.Body)
	}
	problems = nil
	var keys map[string]any
	if err := json.Unmarshal(get(h.Handler(), "/healthz").Body.Bytes(), &keys); err != nil {
		t.Fatal(err)
	}
	if _, ok := keys["problems"]; ok {
		t.Errorf("without problems, the answer has the fields %v", slices.Sorted(maps.Keys(keys)))
	}
}

// TestOthersGetNoProblems: what does not come over loopback gets the fields of kube-proxy, and the same codes. It has nobody look
// for problems that are no faults.
func TestOthersGetNoProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looked int
		h := New(Options{Families: both[:1]})
		h.SetNode(Node{Exists: true})
		h.AddProblems("source", func() []error {
			looked++
			return []error{errors.New("service shop/web: invalid port")}
		})
		var faults []error
		h.AddFaults("dataplane", func() []error { return faults })
		const at = `"2000-01-01T00:00:00Z"`
		const status = `"status":{"IPv4":{"lastUpdated":` + at + `,"healthy":true}}}`
		for _, remote := range []string{"10.244.0.7:50000", "[fd00::7]:50000", "[fe80::7%eth0]:1", "192.0.2.1:1", "somewhere", ""} {
			for _, faults = range [][]error{nil, {errors.New("service shop/db: refused by the kernel")}} {
				code, healthy := 200, "true"
				if faults != nil {
					code, healthy = 503, "false"
				}
				want := `{"lastUpdated":` + at + `,"currentTime":` + at + `,"nodeEligible":true,"healthy":` + healthy + `,` + status
				if w := getFrom(h.Handler(), "/healthz", remote); w.Code != code || w.Body.String() != want {
					t.Errorf("/healthz to %q = %d\n%s\nwant %d\n%s", remote, w.Code, w.Body, code, want)
				}
				want = `{"lastUpdated":` + at + `,"currentTime":` + at + `,"healthy":true,` + status
				if w := getFrom(h.Handler(), "/livez", remote); w.Code != 200 || w.Body.String() != want {
					t.Errorf("/livez to %q = %d\n%s\nwant\n%s", remote, w.Code, w.Body, want)
				}
			}
		}
		if looked > 0 {
			t.Errorf("problems were looked for %d times in vain", looked)
		}
		for _, remote := range []string{"127.0.0.1:1", "[::1]:1", "127.9.9.9:1", "[::ffff:127.0.0.1]:1"} {
			if w := getFrom(h.Handler(), "/healthz", remote); !strings.Contains(w.Body.String(), "shop/web") || !strings.Contains(w.Body.String(), "shop/db") {
				t.Errorf("/healthz to %q lacks the problems: %s", remote, w.Body)
			}
		}
	})
}

func TestManyProblems(t *testing.T) {
	h := New(Options{})
	h.AddProblems("source", func() (errs []error) {
		for i := range 1000 {
			errs = append(errs, fmt.Errorf("number %d", i))
		}
		return errs
	})
	text := get(h.Handler(), "/healthz").Body.String()
	if n := strings.Count(text, "number "); n != 100 || !strings.Contains(text, `{"part":"source","message":"and 900 more"}`) {
		t.Errorf("%d of 1000 problems are listed: %s", n, text)
	}
}

func TestCodesAreCounted(t *testing.T) {
	var healthz, livez []int
	h := New(Options{
		OnHealthz: func(code int) { healthz = append(healthz, code) },
		OnLivez:   func(code int) { livez = append(livez, code) },
	})
	get(h.Handler(), "/healthz")
	h.SetNode(Node{Exists: true})
	get(h.Handler(), "/healthz")
	get(h.Handler(), "/livez")
	if !slices.Equal(healthz, []int{503, 200}) || !slices.Equal(livez, []int{200}) {
		t.Errorf("counted %v and %v", healthz, livez)
	}
	if code := get(h.Handler(), "/elsewhere").Code; code != 404 {
		t.Errorf("/elsewhere = %d", code)
	}
}
