package healthz

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/pprof"
	"runtime"
	"slices"
	"strings"
	"time"
)

// OperatorOptions specifies what the operator's paths show.
type OperatorOptions struct {
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// ProxyMode returns the answer of /proxyMode. It may be called at any time. Required.
	ProxyMode func() string
	// Version is the version of the program, for /statusz.
	Version string
	// Config returns what /configz shows: the configuration in use, marshalled by encoding/json with its apiVersion and kind.
	// It is called for each request, concurrently. Required.
	Config func() any
	// Flags returns what /flagz shows: the value of each command line flag, with secrets left out. It is called for each
	// request, concurrently. If it is nil, there is no /flagz.
	Flags func() map[string]string
	// Profiling reports whether to serve /debug/pprof. It is called for each request to it, concurrently. Default: no.
	Profiling func() bool
}

// configGroup is the key under which kube-proxy's /configz has the configuration.
const configGroup = "kubeproxy.config.k8s.io"

// Operator serves the paths of kube-proxy's metrics port: /metrics, /healthz, /proxyMode, /configz, /statusz, /flagz
// and, if asked for, /debug/pprof. /healthz answers ok as long as the process runs.
func Operator(o OperatorOptions) http.Handler {
	started := time.Now()
	mux := http.NewServeMux()
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode", "/statusz"}
	mux.Handle("/metrics", o.Metrics)
	mux.HandleFunc("/healthz", answerText("ok"))
	mux.HandleFunc("/healthz/ping", answerText("ok"))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, r *http.Request) { answerText(o.ProxyMode())(w, r) })
	mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{configGroup: o.Config()})
	})
	if o.Flags != nil {
		paths = append(paths, "/flagz")
		mux.HandleFunc("/flagz", page("flagz", func(w io.Writer) {
			flags := o.Flags()
			for _, name := range slices.Sorted(maps.Keys(flags)) {
				fmt.Fprintf(w, "%s=%s\n", name, flags[name])
			}
		}))
	}
	slices.Sort(paths)
	mux.HandleFunc("/statusz", page("statusz", func(w io.Writer) {
		up := int64(time.Since(started).Seconds())
		fmt.Fprintf(w, "\nStarted: %s\n", started.Format(time.UnixDate))
		fmt.Fprintf(w, "Up: %d hr %02d min %02d sec\n", up/3600, up/60%60, up%60)
		fmt.Fprintf(w, "Go version: %s\n", runtime.Version())
		fmt.Fprintf(w, "Binary version: %s\n", o.Version)
		fmt.Fprintf(w, "Paths: %s\n", strings.Join(paths, " "))
	}))
	if o.Profiling != nil {
		profile := func(path string, h http.HandlerFunc) {
			mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
				if !o.Profiling() {
					http.NotFound(w, r)
					return
				}
				h(w, r)
			})
		}
		profile("/debug/pprof/", pprof.Index) // also redirects from /debug/pprof
		profile("/debug/pprof/profile", pprof.Profile)
		profile("/debug/pprof/symbol", pprof.Symbol)
		profile("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// answerText answers with a text.
func answerText(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, text)
	}
}

// page answers with text for people, under the heading that all Kubernetes components give it. The structured forms of these
// pages, which are of alpha and beta API versions, are not offered.
func page(name string, write func(io.Writer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !acceptsText(r.Header.Values("Accept")) {
			http.Error(w, "only text/plain is offered here", http.StatusNotAcceptable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprintf(w, "\nkube-proxy %s\nWarning: this page is for debugging. Its format may change at any time; do not parse it.\n", name)
		write(w)
	}
}

// acceptsText judges an Accept header without its weights.
func acceptsText(accept []string) bool {
	all := strings.TrimSpace(strings.Join(accept, ","))
	if all == "" {
		return true
	}
	for item := range strings.SplitSeq(all, ",") {
		kind, _, _ := strings.Cut(item, ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "*/*", "text/*", "text/plain":
			return true
		}
	}
	return false
}
