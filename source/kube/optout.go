package kube

import (
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// quiet is how long namespaces must have been left alone before Services and EndpointSlices are listed anew, longest how
	// long that is put off at most. Labels are often put on many namespaces in a row.
	quiet   = 250 * time.Millisecond
	longest = 2 * time.Second

	// longestSelector is how long a field selector may be in a URL, in bytes: enough for some 1,400 namespaces. The API server
	// takes requests of up to 1 MiB, but compares each object that changes with each namespace, for each node that watches.
	longestSelector = 64 << 10
)

// optOut knows the namespaces that are taken from the proxy.
type optOut struct {
	log      *slog.Logger
	disabled map[string]bool
	// settled fires when they have changed and then been left alone.
	settled *time.Timer
	// since is when the change began that settled waits for the end of.
	since time.Time
	// limit is how long a selector may be, in bytes.
	limit int
	// everything says that the last selector was too long.
	everything bool
}

func newOptOut(log *slog.Logger) optOut {
	settled := time.NewTimer(0)
	settled.Stop()
	return optOut{log: log, disabled: make(map[string]bool), settled: settled, limit: longestSelector}
}

// set notes whether a namespace is disabled, and says whether that is news.
func (o *optOut) set(namespace string, disabled bool, now time.Time) bool {
	if o.disabled[namespace] == disabled {
		return false
	}
	if disabled {
		o.disabled[namespace] = true
	} else {
		delete(o.disabled, namespace)
	}
	o.changed(now)
	return true
}

// changed puts off the end of the change. That all is as it was before does not call it off: objects of a namespace that
// was disabled for a moment only have been forgotten, and must be listed.
func (o *optOut) changed(now time.Time) {
	if o.since.IsZero() {
		o.since = now
	}
	o.settled.Reset(max(0, min(quiet, o.since.Add(longest).Sub(now))))
}

// selector returns the field selector that leaves the disabled namespaces out. It is empty if it would be too long, which
// is logged: then all objects are asked for, and thrown away on arrival.
func (o *optOut) selector() string {
	o.settled.Stop()
	o.since = time.Time{}
	var terms []string
	for _, namespace := range slices.Sorted(maps.Keys(o.disabled)) {
		terms = append(terms, "metadata.namespace!="+namespace)
	}
	selector := strings.Join(terms, ",")
	everything := inURL(selector) > o.limit
	if everything && !o.everything {
		o.log.Warn("too many namespaces are disabled to leave them out of requests: their objects are asked for, and ignored",
			"label", optOutLabel, "namespaces", len(terms), "bytes", inURL(selector), "limit", o.limit)
	}
	o.everything = everything
	if everything {
		return ""
	}
	return selector
}

// refuse notes that a selector was too long for the API server, or for a proxy on the way to it. One of half the length is
// tried next, so that a limit which is not known is not run into with each namespace more or less.
func (o *optOut) refuse(selector string) {
	o.limit = inURL(selector) / 2
	o.settled.Reset(0)
}

func inURL(selector string) int { return len(url.QueryEscape(selector)) }
