package kube

import (
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// longestSelector is how long a field selector may be in a URL, in bytes: enough for some 1,400 namespaces. The API server
// takes requests of up to 1 MiB, but compares each object that changes with each namespace, for each node that watches.
const longestSelector = 64 << 10

// optOut knows the namespaces that are taken from the proxy, and which of them requests leave out.
type optOut struct {
	log *slog.Logger
	// disabled belongs to the goroutine of the delivery, which holds mu while it writes.
	disabled map[string]bool

	mu sync.Mutex // guards all below
	// current is nil if it has to be made.
	current *selection
	// limit is how long a selector may be, in bytes.
	limit int
	// everything is set if the last selector was too long.
	everything bool
}

// selection is the selection of a request. It is not modified.
type selection struct {
	fields string
	// excluded are the namespaces that fields leaves out.
	excluded map[string]bool
}

func (s *selection) excludes(namespace string) bool { return s.excluded[namespace] }

func newOptOut(log *slog.Logger) *optOut {
	return &optOut{log: log, disabled: make(map[string]bool), limit: longestSelector}
}

// set notes whether a namespace is disabled, and reports whether that is news. Requests under way stay as they are.
func (o *optOut) set(namespace string, disabled bool) bool {
	if o.disabled[namespace] == disabled {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if disabled {
		o.disabled[namespace] = true
	} else {
		delete(o.disabled, namespace)
	}
	o.current = nil
	return true
}

// selection returns what to ask for now: all but the disabled namespaces. If a field selector for them would be too long, which
// is logged, all objects are asked for, and dropped on arrival. It may be called from any goroutine.
func (o *optOut) selection() *selection {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current != nil {
		return o.current
	}
	var terms []string
	for _, namespace := range slices.Sorted(maps.Keys(o.disabled)) {
		terms = append(terms, "metadata.namespace!="+namespace)
	}
	fields := strings.Join(terms, ",")
	everything := inURL(fields) > o.limit
	if everything && !o.everything {
		o.log.Warn("too many namespaces are disabled to leave them out of requests: their objects are asked for, and ignored",
			"label", optOutLabel, "namespaces", len(terms), "bytes", inURL(fields), "limit", o.limit)
	}
	o.everything = everything
	o.current = &selection{}
	if !everything {
		o.current = &selection{fields: fields, excluded: maps.Clone(o.disabled)}
	}
	return o.current
}

// refuse notes that a selector was too long for the API server, or for a proxy on the way to it. The next one may have half the
// length, so that an unknown limit is not hit again with each namespace more or less. It may be called from any goroutine.
func (o *optOut) refuse(s *selection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit = min(o.limit, inURL(s.fields)/2)
	o.current = nil
}

func inURL(selector string) int { return len(url.QueryEscape(selector)) }
