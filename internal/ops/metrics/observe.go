package metrics

import (
	"strconv"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// The values of the label call.
const (
	callApply  = "apply"
	callRetry  = "retry"
	callVerify = "verify"
)

// Attempt counts a call of the dataplane. It is made to be the reconciler's OnAttempt.
func (r *Registry) Attempt(a backend.Attempt) {
	call := callApply
	switch {
	case a.Update == nil:
		call = callVerify
	case a.Retry:
		call = callRetry
	}
	result := "success"
	if a.Err != nil {
		result = "error"
	}
	r.own.attempts.WithLabelValues(call, result).Inc()
	r.own.written.Add(float64(a.Written))
	r.own.repaired.Add(float64(a.Repaired))

	r.mu.Lock()
	defer r.mu.Unlock()
	if a.Update == nil {
		r.verified(a)
		return
	}
	for _, f := range r.families {
		r.observeSync(f, a)
	}
	if a.Err == nil {
		r.programmed(a)
	}
}

func (r *Registry) observeSync(family string, a backend.Attempt) {
	seconds := a.Took.Seconds()
	r.kube.sync.WithLabelValues(family).Observe(seconds)
	if a.Update.Full {
		r.kube.fullSync.WithLabelValues(family).Observe(seconds)
	} else {
		r.kube.partialSync.WithLabelValues(family).Observe(seconds)
	}
	if a.Err != nil {
		r.mode.Load().syncFailed(family, a.Update.Full)
	}
}

// programmed takes down what an update meant that is in the kernel now. The caller holds mu.
func (r *Registry) programmed(a backend.Attempt) {
	done := a.Began.Add(a.Took)
	r.noteSynced(done)
	for _, trigger := range a.Update.Triggers {
		if !trigger.After(r.started) {
			continue // the process was not there to be quick about it
		}
		// Clocks differ between nodes. A sum that went down would be taken for a restart.
		seconds := max(0, done.Sub(trigger).Seconds())
		r.own.programming.Observe(seconds)
		for _, f := range r.families {
			r.kube.programming.WithLabelValues(f).Observe(seconds)
		}
	}
	r.applied = a.Update.Revision
	r.changes.applied(r.applied)
	r.showPending()
	r.drops.apply(a.Update)
	r.resets.apply(a.Update)
	for _, f := range r.families {
		r.kube.noLocalEndpoints.WithLabelValues("internal", f).Set(float64(r.drops.total[f].internal))
		r.kube.noLocalEndpoints.WithLabelValues("external", f).Set(float64(r.drops.total[f].external))
	}
}

// verified takes down a verification. The caller holds mu.
func (r *Registry) verified(a backend.Attempt) {
	r.own.verify.Observe(a.Took.Seconds())
	// While an update waits, the dataplane only shows an older state.
	if a.Err == nil && r.pendingSince.IsZero() {
		r.noteSynced(a.Began.Add(a.Took))
	}
}

// Status shows how the dataplane is doing. It is made to be the reconciler's OnStatus.
func (r *Registry) Status(s backend.Status) {
	r.own.revision.Set(float64(s.Applied))
	r.own.failed.Set(float64(len(s.Failed)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pendingSince = s.Pending
	r.noteQueued(s.Pending)
}

// noteQueued shows that a sync was asked for, unless a later one is shown already. The caller holds mu.
func (r *Registry) noteQueued(at time.Time) {
	if !at.After(r.queued) {
		return
	}
	r.queued = at
	for _, f := range r.families {
		r.kube.lastQueued.WithLabelValues(f).Set(unix(at))
	}
}

func (r *Registry) noteSynced(at time.Time) {
	for _, f := range r.families {
		r.kube.lastSync.WithLabelValues(f).Set(unix(at))
	}
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Conntrack counts one round of deleting the stale conntrack entries of a family.
func (r *Registry) Conntrack(f state.Family, took time.Duration, deleted int) {
	r.kube.conntrack.WithLabelValues(f.String()).Observe(took.Seconds())
	r.kube.conntrackDeleted.WithLabelValues(f.String()).Add(float64(deleted))
}

// Resets counts packets that were answered with a reset because their endpoint had left a Service. The name is empty
// if the Service is also gone.
func (r *Registry) Resets(service state.ServiceName, packets uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resets.count(service, packets)
}

// Probe counts a probe of an endpoint by its result.
func (r *Registry) Probe(result string) { r.own.probes.WithLabelValues(result).Inc() }

// Ejections counts endpoints that were ejected in addition, and sets how many are ejected.
func (r *Registry) Ejections(added, now int) {
	r.own.ejections.Add(float64(added))
	r.own.ejected.Set(float64(now))
}

// Healthz counts an answer of /healthz.
func (r *Registry) Healthz(code int) { r.kube.healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// Livez counts an answer of /livez.
func (r *Registry) Livez(code int) { r.kube.livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// IPTablesRules shows how many rules the proxy has in a table, and how many of them the last sync wrote. It does nothing in
// modes other than iptables.
func (r *Registry) IPTablesRules(table string, f state.Family, total, written int) {
	m := r.mode.Load()
	if m.rulesTotal == nil {
		return
	}
	m.rulesTotal.WithLabelValues(table, f.String()).Set(float64(total))
	m.rulesLast.WithLabelValues(table, f.String()).Set(float64(written))
}

// WinKernelOperation is an operation on a load balancer of Windows' host network service.
type WinKernelOperation int

// The operations.
const (
	WinKernelCreate WinKernelOperation = iota
	WinKernelUpdate
	WinKernelDelete
)

// WinKernelFailure counts a load balancer that Windows refused. lbType and reason are kube-proxy's words for the kind of load
// balancer and of error. It does nothing in modes other than kernelspace.
func (r *Registry) WinKernelFailure(op WinKernelOperation, f state.Family, lbType, reason string) {
	if counter := r.mode.Load().winFailures[op]; counter != nil {
		counter.WithLabelValues(f.String(), lbType, reason).Inc()
	}
}
