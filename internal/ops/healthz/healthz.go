// Package healthz answers for the health of a proxy process, as kube-proxy does. It serves /healthz and /livez for load
// balancers and the kubelet, and the operator's paths next to /metrics.
//
// Both answers report whether the dataplane keeps up: it does not if an update has been waiting for longer than two
// sync periods without progress. A lost API server, a bad manifest or one service that cannot be programmed does not
// make a node unhealthy. The node still routes, and otherwise load balancers would drop all nodes at once. Such
// problems are listed in the answers to clients on this machine, in a field that kube-proxy's do not have. They name
// services and addresses of the cluster; other clients, such as pods, get kube-proxy's fields and no more. A process
// on its own, whose sources belong to the same person that looks at it, may be strict about problems.
package healthz

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// Options specifies what a [Health] judges by.
type Options struct {
	// Families are the IP families that the dataplane programs. They share one fate, and each has an item in the answer.
	Families []state.Family
	// Timeout is how long an update may wait. kube-proxy's is two sync periods. Default: 1 min.
	Timeout time.Duration
	// Newest returns the newest revision that there is to apply. With it, a dataplane is found out that hangs and does not
	// even look for updates. It is called concurrently and must not block. Default: only the reconciler's statuses count.
	Newest func() state.Revision
	// OnHealthz and OnLivez are called with the status code of each answer, concurrently. They may be nil.
	OnHealthz, OnLivez func(code int)
}

// Health is the health of one process. Its methods may be called concurrently.
type Health struct {
	o Options

	mu      sync.Mutex // guards all below
	started time.Time
	node    Node
	updated time.Time // when the dataplane last showed the newest state known then
	applied state.Revision
	pending time.Time // since when an update has been waiting, zero if none is
	behind  time.Time // when it was first seen that there is something newer that the reconciler does not speak of
	// progressed is when work on an update last got on. It does not count while failing is set: an attempt that gets on, fails and begins
	// again leads nowhere.
	progressed time.Time
	failing    bool
	checks     []namedCheck
}

type namedCheck struct {
	part        string
	check       func() []error
	failsHealth bool
}

// New returns the health of a process that starts now, and is healthy for the time being. Its node does not exist yet.
func New(o Options) *Health {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	now := time.Now()
	return &Health{o: o, started: now, updated: now}
}

// SetTimeout changes how long an update may wait. See [Options].
func (h *Health) SetTimeout(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.o.Timeout = d
}

// Status takes down how the dataplane is doing. It is made to be the reconciler's OnStatus.
func (h *Health) Status(s backend.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.applied = s.Applied
	h.pending = s.Pending
	h.failing = s.Failures > 0
	h.behind = time.Time{}
	// While an update waits, a verification succeeds for an older state.
	if s.Pending.IsZero() && s.LastSuccess.After(h.updated) {
		h.updated = s.LastSuccess
	}
}

// Progress notes that the dataplane has applied an update, or makes progress with an update or a long verification.
// It is not stuck, and a restart of the process would only repeat the work. It counts until an attempt fails. It may
// be called at any time.
func (h *Health) Progress() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progressed = time.Now()
}

// Node is what decides whether load balancers may send new connections to this node.
type Node struct {
	// Exists reports whether the cluster has the Node. A proxy that has no cluster sets it.
	Exists bool
	// Deleting reports whether metadata.deletionTimestamp is set.
	Deleting bool
	// Taints are the keys of spec.taints.
	Taints []string
}

// toBeDeleted is the taint by which the cluster autoscaler announces that it will delete a node.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Eligible reports whether new connections may be sent to the node.
func (n Node) Eligible() bool {
	return n.Exists && !n.Deleting && !slices.Contains(n.Taints, toBeDeleted)
}

// SetNode records the state of this node.
func (h *Health) SetNode(n Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.node = n
}

// AddProblems lets a part of the process list its current problems in the answers. They make no process unhealthy: that
// the loss of a watch is no reason to send connections elsewhere. check is called concurrently and must not block.
func (h *Health) AddProblems(part string, check func() []error) {
	h.add(namedCheck{part, check, false})
}

// AddFaults is like AddProblems, for problems as long as which /healthz is unhealthy.
func (h *Health) AddFaults(part string, check func() []error) { h.add(namedCheck{part, check, true}) }

func (h *Health) add(c namedCheck) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, c)
}

// Healthy reports whether the dataplane keeps up, whatever the state of the node. It is what health check node ports call
// serviceProxyHealthy.
func (h *Health) Healthy() bool {
	newest := h.newest()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthy(time.Now(), newest)
}

func (h *Health) newest() state.Revision {
	if h.o.Newest == nil {
		return 0
	}
	return h.o.Newest()
}

// healthy is called with mu held.
func (h *Health) healthy(now time.Time, newest state.Revision) bool {
	since := h.waiting(now, newest)
	if !h.failing && !since.IsZero() && h.progressed.After(since) {
		since = h.progressed
	}
	return since.IsZero() || now.Sub(since) < h.o.Timeout
}

// waiting returns since when the oldest update waits, zero if none does. It is called with mu held.
func (h *Health) waiting(now time.Time, newest state.Revision) time.Time {
	switch {
	case !h.pending.IsZero():
		return h.pending
	case newest <= h.applied:
		h.behind = time.Time{}
	case h.behind.IsZero():
		h.behind = now
	}
	return h.behind
}

// PendingSince returns since when the oldest update waits for the dataplane, zero if none waits. A dataplane that has
// shown no state yet waits since the start of the process. While a call of the dataplane hangs, the reconciler does not
// mention further updates. Such an update waits since this method or an answer first noticed it.
func (h *Health) PendingSince() time.Time {
	newest := h.newest()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.applied == 0 {
		return h.started
	}
	return h.waiting(time.Now(), newest)
}

// Problem is one thing that is not as it should be.
type Problem struct {
	// Part is where it is: the name given to [Health.AddProblems].
	Part    string
	Message string
	// Fault reports whether /healthz is unhealthy for it.
	Fault bool
}

// Problems returns what the parts of the process list now, as answers do.
func (h *Health) Problems() []Problem {
	h.mu.Lock()
	checks := h.checks
	h.mu.Unlock()
	var problems []Problem
	for _, c := range checks {
		var a answer
		a.list(c.part, c.check())
		for _, p := range a.Problems {
			problems = append(problems, Problem{p.Part, p.Message, c.failsHealth})
		}
	}
	return problems
}

// answer is kube-proxy's, and problems.
type answer struct {
	// LastUpdated is the current time in a healthy process: kube-proxy once reported when it last looked, and keeps the field.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is in /healthz only.
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status,omitempty"`
	// Problems are for clients on this machine only.
	Problems []problem `json:"problems,omitempty"`

	faulty bool // some of the problems are faults
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// problem is one thing that is not as it should be.
type problem struct {
	// Part is where it is: the name given to [Health.AddProblems].
	Part    string `json:"part"`
	Message string `json:"message"`
}

// report returns the answer of /livez to a request, and whether the node is eligible.
func (h *Health) report(r *http.Request) (a answer, eligible bool) {
	newest := h.newest()
	h.mu.Lock()
	now := time.Now()
	healthy := h.healthy(now, newest)
	updated := h.updated.UTC()
	a = answer{LastUpdated: updated, CurrentTime: now.UTC(), Healthy: healthy, Status: map[string]familyStatus{}}
	for _, f := range h.o.Families {
		a.Status[f.String()] = familyStatus{updated, healthy}
	}
	eligible = h.node.Eligible()
	checks := h.checks
	h.mu.Unlock()
	local := overLoopback(r)
	for _, c := range checks {
		if !local && !c.failsHealth {
			continue
		}
		errs := c.check()
		a.faulty = a.faulty || c.failsHealth && len(errs) > 0
		if local {
			a.list(c.part, errs)
		}
	}
	return a, eligible
}

// maxListed is how many problems of a part are listed. Others can cause any number of them.
const maxListed = 100

func (a *answer) list(part string, errs []error) {
	for i, err := range errs {
		if i == maxListed {
			a.Problems = append(a.Problems, problem{part, fmt.Sprintf("and %d more", len(errs)-maxListed)})
			return
		}
		a.Problems = append(a.Problems, problem{part, err.Error()})
	}
}

// overLoopback reports whether a request came over the loopback interface, which no packet from elsewhere does.
func overLoopback(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && remote.Addr().Unmap().IsLoopback()
}

// Handler serves /healthz and /livez, for the port that load balancers and the kubelet ask: 200 or 503, and JSON like
//
//	{"lastUpdated":"...","currentTime":"...","nodeEligible":true,"healthy":true,
//	 "status":{"IPv4":{"lastUpdated":"...","healthy":true}},"problems":[{"part":"source","message":"..."}]}
//
// /healthz is also 503 while new connections should not be sent to the node; /livez, which has no nodeEligible, is not. Only
// clients that connect over loopback get problems.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		a, eligible := h.report(r)
		a.NodeEligible = &eligible
		a.Healthy = a.Healthy && !a.faulty
		a.write(w, a.Healthy && eligible, h.o.OnHealthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) {
		a, _ := h.report(r)
		a.write(w, a.Healthy, h.o.OnLivez)
	})
	return mux
}

func (a *answer) write(w http.ResponseWriter, ok bool, onAnswer func(code int)) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		a.LastUpdated = a.CurrentTime
	}
	if onAnswer != nil {
		onAnswer(code)
	}
	writeJSON(w, code, a)
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// The only possible error is that the client has gone.
	_, _ = w.Write(text)
}
