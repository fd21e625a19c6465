package healthz

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func operatorOptions() OperatorOptions {
	return OperatorOptions{
		Metrics:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("metrics")) }),
		ProxyMode: func() string { return "nftables" },
		Version:   "v1.2.3",
		Config: func() any {
			return map[string]string{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
		},
		Flags: func() map[string]string { return map[string]string{"v": "2", "config": "/etc/c.yaml"} },
	}
}

func TestOperatorPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Operator(operatorOptions())
		time.Sleep(25*time.Hour + 61*time.Second)
		const text, json = "text/plain; charset=utf-8", "application/json"
		warning := "Warning: this page is for debugging. Its format may change at any time; do not parse it.\n"
		tests := map[string]struct {
			contentType, body string
		}{
			"/healthz":      {text, "ok"},
			"/healthz/ping": {text, "ok"},
			"/proxyMode":    {text, "nftables"},
			"/configz":      {json, `{"kubeproxy.config.k8s.io":{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration"}}`},
			"/flagz":        {text, "\nkube-proxy flagz\n" + warning + "config=/etc/c.yaml\nv=2\n"},
			"/statusz": {text, "\nkube-proxy statusz\n" + warning + "\nStarted: " + time.Now().Add(-25*time.Hour-61*time.Second).Format(time.UnixDate) +
				"\nUp: 25 hr 01 min 01 sec\nGo version: " + runtime.Version() +
				"\nBinary version: v1.2.3\nPaths: /configz /flagz /healthz /metrics /proxyMode /statusz\n"},
		}
		for path, want := range tests {
			w := get(h, path)
			if w.Code != 200 || w.Body.String() != want.body || w.Header().Get("Content-Type") != want.contentType ||
				w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s = %d %v\n%s\nwant\n%s", path, w.Code, w.Header(), w.Body, want.body)
			}
		}
		if body := get(h, "/metrics").Body.String(); body != "metrics" {
			t.Errorf("/metrics = %s", body)
		}
	})
}

func TestOptionalPaths(t *testing.T) {
	o := operatorOptions()
	o.Flags = nil
	h := Operator(o)
	for _, path := range []string{"/flagz", "/debug/pprof/", "/debug/pprof/symbol", "/debug/pprof/cmdline"} {
		if code := get(h, path).Code; code != http.StatusNotFound {
			t.Errorf("%s = %d, want 404", path, code)
		}
	}
	if body := get(h, "/statusz").Body.String(); strings.Contains(body, "flagz") {
		t.Errorf("/statusz lists what is not there: %s", body)
	}
	profiling := true
	o.Profiling = func() bool { return profiling }
	h = Operator(o)
	for path, want := range map[string]int{"/debug/pprof/": 200, "/debug/pprof/goroutine": 200, "/debug/pprof/symbol": 200, "/debug/pprof/cmdline": 404} {
		if code := get(h, path).Code; code != want {
			t.Errorf("%s = %d, want %d", path, code, want)
		}
	}
	if code := get(h, "/debug/pprof").Code; code/100 != 3 {
		t.Errorf("/debug/pprof = %d, want a redirect", code)
	}
	profiling = false
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/symbol"} {
		if code := get(h, path).Code; code != http.StatusNotFound {
			t.Errorf("%s = %d after profiling was switched off, want 404", path, code)
		}
	}
}

func TestPagesAreTextOnly(t *testing.T) {
	h := Operator(operatorOptions())
	for accept, want := range map[string]int{
		"":                           200,
		"*/*":                        200,
		"text/html, text/plain;q=.5": 200,
		"application/json":           406,
		"application/json;as=Statusz;v=v1beta1;g=config.k8s.io": 406,
	} {
		r := httptest.NewRequest("GET", "/statusz", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Accept: %s gets %d, want %d", accept, w.Code, want)
		}
	}
}

func TestConfigThatCannotBeShown(t *testing.T) {
	o := operatorOptions()
	o.Config = func() any { return func() {} }
	if w := get(Operator(o), "/configz"); w.Code != 500 || !strings.Contains(w.Body.String(), "unsupported type") {
		t.Errorf("/configz = %d %s", w.Code, w.Body)
	}
}
