package metrics

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

var both = []state.Family{state.IPv4, state.IPv6}

// common are the metrics that kube-proxy's users depend on in all modes: name, type, labels.
const common = `
kubeproxy_conntrack_reconciler_deleted_entries_total counter ip_family
kubeproxy_conntrack_reconciler_sync_duration_seconds histogram ip_family
kubeproxy_network_programming_duration_seconds histogram ip_family
kubeproxy_proxy_healthz_total counter code
kubeproxy_proxy_livez_total counter code
kubeproxy_sync_full_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_partial_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge
kubeproxy_sync_proxy_rules_endpoint_changes_total counter
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge ip_family
kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge ip_family
kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge ip_family,traffic_policy
kubeproxy_sync_proxy_rules_service_changes_pending gauge
kubeproxy_sync_proxy_rules_service_changes_total counter
rest_client_rate_limiter_duration_seconds histogram host,verb
rest_client_request_duration_seconds histogram host,verb
rest_client_request_retries_total counter code,host,verb
rest_client_request_size_bytes histogram host,verb
rest_client_requests_total counter code,host,method
rest_client_response_size_bytes histogram host,verb
rest_client_transport_ca_reload_total counter reason,result
rest_client_transport_create_calls_total counter result
switchyard_api_followers gauge kind,role
switchyard_api_oldest_unapplied_update_timestamp_seconds gauge role
switchyard_api_sent_bytes_total counter role
switchyard_applied_revision gauge
switchyard_build_info gauge go_version,platform,version
switchyard_connection_resets_total counter name,namespace
switchyard_conntrack_entries gauge
switchyard_conntrack_entries_limit gauge
switchyard_dataplane_attempts_total counter call,result
switchyard_dataplane_repairs_total counter
switchyard_dataplane_verify_duration_seconds histogram
switchyard_dataplane_written_total counter
switchyard_ejected_endpoints gauge
switchyard_ejections_total counter
switchyard_failed_services gauge
switchyard_health_check_port_problems gauge
switchyard_limited_services gauge reason
switchyard_log_lines_suppressed_total counter
switchyard_network_programming_duration_seconds histogram
switchyard_node_health_ignored gauge
switchyard_node_problems gauge
switchyard_nftables_affinity_clients gauge ip_family
switchyard_nftables_affinity_clients_limit gauge ip_family
switchyard_nodes_coming_last gauge
switchyard_nodes_not_ready gauge
switchyard_oldest_pending_change_timestamp_seconds gauge
switchyard_probes_total counter result
switchyard_server_connections gauge server
switchyard_server_connections_closed_total counter server
switchyard_service_connections_total counter namespace,port,service
switchyard_service_drops_total counter namespace,port,service
switchyard_service_ports_left_out gauge
switchyard_service_rejects_total counter namespace,port,service
switchyard_services gauge
switchyard_source_problems gauge
switchyard_start_time_seconds gauge
`

// byMode are those that only one mode has.
var byMode = map[string]string{
	"proxyless": "",
	ModeIPTables: `
kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter
kubeproxy_iptables_localhost_nodeports_accepted_packets_total counter
kubeproxy_sync_proxy_rules_iptables_last gauge ip_family,table
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter ip_family
kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter ip_family
kubeproxy_sync_proxy_rules_iptables_total gauge ip_family,table
`,
	ModeIPVS: `
kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter ip_family
`,
	ModeNFTables: `
kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total counter ip_family
kubeproxy_nftables_localhost_nodeport_listeners gauge ip_family
kubeproxy_nftables_localhost_nodeport_rejected_packets_total counter ip_family,protocol
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter ip_family
kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter ip_family
`,
	ModeUserspace: `
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter ip_family
kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter ip_family
`,
	ModeEBPF: `
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter ip_family
kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter ip_family
switchyard_socket_hooks gauge state
switchyard_socket_hooks_connections_total counter result
switchyard_socket_hooks_frontends gauge
switchyard_socket_hooks_memory_bytes gauge
`,
	ModeKernelspace: `
kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total counter error,ip_family,lb_type
kubeproxy_sync_proxy_rules_winkernel_lb_delete_failures_total counter error,ip_family,lb_type
kubeproxy_sync_proxy_rules_winkernel_lb_update_failures_total counter error,ip_family,lb_type
`,
}

func TestNamesTypesAndLabels(t *testing.T) {
	for mode, special := range byMode {
		t.Run(mode, func(t *testing.T) {
			one := func() int { return 1 }
			packets := func() uint64 { return 7 }
			var hooks func() SocketHooks
			if mode == ModeEBPF {
				hooks = func() SocketHooks { return SocketHooks{} }
			}
			r := New(Options{Mode: mode, Families: both, Services: one, SourceProblems: one, NodeProblems: one, NodeHealth: func() NodeHealth { return NodeHealth{} }, HealthCheckProblems: one, SocketHooks: hooks,
				Connections:            map[string]Connections{"health": func() (open, closed int64) { return 2, 3 }},
				LogLinesSuppressed:     func() uint64 { return 4 },
				LimitedServices:        func() map[string]int { return map[string]int{"NodeFull": 3} },
				Traffic:                func() *Traffic { return &Traffic{} },
				AffinityClients:        func() []AffinityClients { return []AffinityClients{{Family: state.IPv4}} },
				PendingSince:           func() time.Time { return time.Time{} },
				ConntrackEntries:       func() (ConntrackEntries, bool) { return ConntrackEntries{}, true },
				Role:                   "relay",
				Followers:              func() Followers { return Followers{} },
				IPTablesInvalidDropped: packets, IPTablesLocalhostAccepted: packets,
				LocalNodePorts: func() LocalNodePorts {
					return LocalNodePorts{Listeners: 1, Failures: 2, Rejects: []LocalRejects{{state.IPv6, state.UDP, 3}}}
				}})
			c := NewRESTClient(r.registry)
			host := url.URL{Host: "api"}
			c.RequestLatency.Observe(t.Context(), "GET", host, time.Second)
			c.RateLimiterLatency.Observe(t.Context(), "GET", host, time.Second)
			c.RequestSize.Observe(t.Context(), "GET", "api", 1)
			c.ResponseSize.Observe(t.Context(), "GET", "api", 1)
			c.RequestResult.Increment(t.Context(), "200", "GET", "api")
			c.RequestRetry.IncrementRetry(t.Context(), "500", "GET", "api")
			c.TransportCreateCalls.Increment("hit")
			c.TransportCAReloads.Increment("success", "ca-file")
			r.Attempt(backend.Attempt{Update: &state.Update{Revision: 1, Full: true}})
			r.IPTablesRules("nat", state.IPv4, 10, 2)
			for op := range WinKernelDelete + 1 {
				r.WinKernelFailure(op, state.IPv4, "clusterip", "port_already_exists")
			}
			want := strings.Fields(strings.ReplaceAll(common+special, " ", "·"))
			slices.Sort(want)
			got := described(t, r)
			for _, line := range want {
				if !slices.Contains(got, line) {
					t.Errorf("missing: %s", line)
				}
			}
			for _, line := range got {
				if !slices.Contains(want, line) {
					t.Errorf("not expected: %s", line)
				}
			}
		})
	}
}

// described returns name, type and labels of each metric that is not about Go or the process.
func described(t *testing.T, r *Registry) []string {
	var lines []string
	for _, f := range gather(t, r) {
		name := f.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		line := name + "·" + strings.ToLower(f.GetType().String())
		if len(labels) > 0 {
			line += "·" + strings.Join(labels, ",")
		}
		lines = append(lines, line)
	}
	return lines
}

func gather(t *testing.T, r *Registry) []*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// value returns a counter's or gauge's value, or a histogram's count. labels are "name=value". It is -1 if there is no such series.
func value(t *testing.T, r *Registry, name string, labels ...string) float64 {
	t.Helper()
	for _, f := range gather(t, r) {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			if !slices.Equal(has, labels) {
				continue
			}
			if h := m.GetHistogram(); h != nil {
				return float64(h.GetSampleCount())
			}
			return cmp.Or(m.GetCounter().GetValue(), m.GetGauge().GetValue())
		}
	}
	return -1
}

func sum(t *testing.T, r *Registry, name string) float64 {
	for _, f := range gather(t, r) {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleSum()
		}
	}
	return -1
}

func check(t *testing.T, r *Registry, when string, want map[string]float64) {
	t.Helper()
	for key, v := range want {
		name, labels, _ := strings.Cut(key, " ")
		if got := value(t, r, name, strings.Fields(labels)...); got != v {
			t.Errorf("%s: %s = %v, want %v", when, key, got, v)
		}
	}
}

func TestGrafanaBoardFindsItsSeries(t *testing.T) {
	r := New(Options{Mode: ModeNFTables, Families: both})
	names := map[string]bool{}
	for _, f := range gather(t, r) {
		names[f.GetName()] = true
	}
	// The metrics that the board "Kubernetes / Proxy" of kubernetes-mixin shows, before anything has happened.
	for _, name := range []string{
		"kubeproxy_sync_proxy_rules_duration_seconds", "kubeproxy_network_programming_duration_seconds",
		"process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds", "process_open_fds",
		"go_goroutines", "go_memstats_alloc_bytes", "go_gc_duration_seconds", "go_info",
	} {
		if !names[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if names["kubernetes_build_info"] {
		t.Error("kubernetes_build_info would raise alerts about version skew")
	}
}

func TestBuckets(t *testing.T) {
	r := New(Options{Families: both})
	want := map[string]struct {
		count       int
		first, last float64
	}{
		"kubeproxy_sync_proxy_rules_duration_seconds":     {15, 0.001, 16.384},
		"kubeproxy_network_programming_duration_seconds":  {80, 0.25, 300},
		"switchyard_network_programming_duration_seconds": {16, 0.001, 32.768},
	}
	for _, f := range gather(t, r) {
		w, ok := want[f.GetName()]
		if !ok {
			continue
		}
		delete(want, f.GetName())
		b := f.GetMetric()[0].GetHistogram().GetBucket()
		if len(b) != w.count || b[0].GetUpperBound() != w.first || b[len(b)-1].GetUpperBound() != w.last {
			t.Errorf("%s has %d buckets from %v to %v, want %v", f.GetName(), len(b), b[0].GetUpperBound(), b[len(b)-1].GetUpperBound(), w)
		}
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}

func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Mode: ModeNFTables, Families: both})
		start := time.Now()
		check(t, r, "at the start", map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv4":              0,
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv6": unix(start),
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4":        -1, // not 1970
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total ip_family=IPv6":  0,
		})

		time.Sleep(time.Second)
		began := time.Now()
		r.Status(backend.Status{Pending: began})
		r.Attempt(backend.Attempt{Update: &state.Update{Revision: 1, Full: true}, Began: began, Took: time.Second, Err: errors.New("refused")})
		check(t, r, "after a failed sync", map[string]float64{
			"kubeproxy_sync_full_proxy_rules_duration_seconds ip_family=IPv4":         1,
			"kubeproxy_sync_partial_proxy_rules_duration_seconds ip_family=IPv4":      0,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total ip_family=IPv4":  1,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total ip_family=IPv6":  1,
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv4": unix(began),
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4":        -1,
			"switchyard_dataplane_attempts_total call=apply result=error":             1,
		})

		r.Attempt(backend.Attempt{Began: began, Took: time.Second})
		check(t, r, "after a verification while an update waits", map[string]float64{
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4": -1,
			"switchyard_dataplane_attempts_total call=verify result=success":   1,
			"switchyard_dataplane_verify_duration_seconds":                     1,
			"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv4":       1,
		})

		queued := began
		began = time.Now()
		r.Attempt(backend.Attempt{Update: &state.Update{Revision: 2}, Began: began, Took: time.Second,
			Result: backend.Result{Written: 5, Repaired: 2}})
		r.Status(backend.Status{Applied: 2, Failed: map[state.ServiceName]error{{Name: "web"}: errors.New("x")}})
		check(t, r, "after a sync", map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv6":              2,
			"kubeproxy_sync_partial_proxy_rules_duration_seconds ip_family=IPv6":      1,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv6":        unix(began.Add(time.Second)),
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv6": unix(queued),
			"switchyard_dataplane_written_total":                                      5,
			"switchyard_dataplane_repairs_total":                                      2,
			"switchyard_applied_revision":                                             2,
			"switchyard_failed_services":                                              1,
		})

		time.Sleep(time.Minute)
		began = time.Now()
		r.Attempt(backend.Attempt{Began: began})
		r.Attempt(backend.Attempt{Update: &state.Update{Revision: 2}, Retry: true, Began: began})
		check(t, r, "after a verification", map[string]float64{
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4": unix(began),
			"switchyard_dataplane_attempts_total call=retry result=success":    1,
		})
	})
}

func TestRestoreFailures(t *testing.T) {
	r := New(Options{Mode: ModeIPTables, Families: both[:1]})
	r.Attempt(backend.Attempt{Update: &state.Update{Full: true}, Err: errors.New("x")})
	r.Attempt(backend.Attempt{Update: &state.Update{}, Err: errors.New("x")})
	r.Attempt(backend.Attempt{Update: &state.Update{}, Err: errors.New("x")})
	r.IPTablesRules("nat", state.IPv4, 10, 2)
	check(t, r, "iptables", map[string]float64{
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total ip_family=IPv4":         3,
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total ip_family=IPv4": 2,
		"kubeproxy_sync_proxy_rules_iptables_total ip_family=IPv4 table=nat":                10,
		"kubeproxy_sync_proxy_rules_iptables_last ip_family=IPv4 table=nat":                 2,
		"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv6":                        -1,
	})
}

func TestProgrammingLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now()
		time.Sleep(time.Minute)
		r := New(Options{Families: both})
		time.Sleep(time.Second)
		trigger := time.Now()
		time.Sleep(time.Second)
		u := &state.Update{Revision: 2, Triggers: []time.Time{before, trigger, trigger.Add(time.Hour)}}
		r.Attempt(backend.Attempt{Update: u, Began: time.Now(), Took: time.Second, Err: errors.New("not yet")})
		check(t, r, "failed", map[string]float64{"kubeproxy_network_programming_duration_seconds ip_family=IPv4": 0})
		r.Attempt(backend.Attempt{Update: u, Began: time.Now(), Took: time.Second})
		// One is older than the process, one comes from a clock that is ahead.
		check(t, r, "applied", map[string]float64{
			"kubeproxy_network_programming_duration_seconds ip_family=IPv4": 2,
			"kubeproxy_network_programming_duration_seconds ip_family=IPv6": 2,
			"switchyard_network_programming_duration_seconds":               2,
		})
		if got := sum(t, r, "kubeproxy_network_programming_duration_seconds"); got != 2 {
			t.Errorf("latencies sum up to %v s, want 2", got)
		}
	})
}

// fakeStore is a sink that publishes a revision with each update.
type fakeStore struct {
	revision state.Revision
	noNews   bool // what comes makes no difference
	complete bool
}

func (f *fakeStore) Update(set []model.Object, _ []model.Ref) {
	clear(set) // it owns them
	if !f.noNews {
		f.revision++
	}
}
func (f *fakeStore) Complete()              { f.complete = true }
func (f *fakeStore) newest() state.Revision { return f.revision }

func TestPendingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Families: both[:1]})
		var store fakeStore
		sink := r.CountChanges(&store, store.newest)
		pending := func(when string, services, endpoints float64) {
			t.Helper()
			check(t, r, when, map[string]float64{
				"kubeproxy_sync_proxy_rules_service_changes_pending":  services,
				"kubeproxy_sync_proxy_rules_endpoint_changes_pending": endpoints,
			})
		}
		apply := func(rev state.Revision, err error) {
			r.Attempt(backend.Attempt{Update: &state.Update{Revision: rev}, Began: time.Now(), Err: err})
		}
		slice, service, node := &model.EndpointSlice{}, &model.Service{}, &model.Node{}

		store.noNews = true
		sink.Update([]model.Object{service}, nil)
		pending("before anything is published", 1, 0)
		store.noNews = false
		sink.Update([]model.Object{slice, slice, node}, nil)
		sink.Complete()
		if !store.complete {
			t.Error("Complete is not handed on")
		}
		pending("before the first sync", 1, 2)
		apply(1, errors.New("refused"))
		pending("after a failure", 1, 2)
		sink.Update([]model.Object{slice}, []model.Ref{{Kind: model.KindService}})
		apply(1, nil)
		pending("after the first sync, with a later change", 1, 1)
		apply(2, nil)
		pending("after all", 0, 0)
		store.noNews = true
		sink.Update([]model.Object{service}, nil)
		pending("after no news", 0, 0)
		check(t, r, "in the end", map[string]float64{
			"kubeproxy_sync_proxy_rules_service_changes_total":  3,
			"kubeproxy_sync_proxy_rules_endpoint_changes_total": 3,
		})

		time.Sleep(time.Second)
		queued := func() float64 {
			return value(t, r, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "ip_family=IPv4")
		}
		before := queued()
		sink.Update([]model.Object{service}, nil)
		if queued() != before {
			t.Error("an update that made no difference asked for a sync")
		}
		store.noNews = false
		sink.Update([]model.Object{slice}, nil)
		if queued() != unix(time.Now()) {
			t.Error("an update did not ask for a sync")
		}
	})
}

func TestPendingChangesAreBounded(t *testing.T) {
	var c changes
	for rev := range state.Revision(10_000) {
		c.add(rev+1, changed{services: 1})
	}
	if len(c.pending) > maxPending {
		t.Errorf("%d revisions are remembered, want %d at most", len(c.pending), maxPending)
	}
	c.applied(maxPending - 1)
	left := 0
	for _, p := range c.pending {
		left += p.services
	}
	if left != 10_000-maxPending+1 {
		t.Errorf("%d changes are left, want %d", left, 10_000-maxPending+1)
	}
	if c.applied(10_000); len(c.pending) != 0 {
		t.Errorf("still pending: %v", c.pending)
	}
}

func TestNoLocalEndpoints(t *testing.T) {
	r := New(Options{Families: both})
	drop, reject := state.Route{Verdict: state.Drop}, state.Route{Verdict: state.Reject}
	service := func(name string, ports ...state.Port) *state.Service {
		return &state.Service{Name: state.ServiceName{Namespace: "d", Name: name}, Ports: ports}
	}
	internal := state.Port{Family: state.IPv4, Internal: state.Traffic{Inside: drop, Outside: drop}}
	external := state.Port{Family: state.IPv6, External: state.Traffic{Outside: drop}}
	none := state.Port{Family: state.IPv4, Internal: state.Traffic{Inside: reject, Outside: reject}}
	steps := []struct {
		update             state.Update
		internal, external float64
	}{
		{state.Update{Full: true, Changed: []*state.Service{service("a", internal, internal), service("b", external), service("c", none)}}, 2, 1},
		{state.Update{Changed: []*state.Service{service("a", internal)}}, 1, 1},
		{state.Update{Changed: []*state.Service{service("b", none)}, Removed: []state.ServiceName{{Namespace: "d", Name: "a"}}}, 0, 0},
		{state.Update{Changed: []*state.Service{service("b", external)}}, 0, 1},
		{state.Update{Full: true, Changed: []*state.Service{service("a", internal)}}, 1, 0},
	}
	for i, s := range steps {
		r.Attempt(backend.Attempt{Update: &s.update})
		check(t, r, fmt.Sprintf("step %d", i), map[string]float64{
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=internal": s.internal,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv6 traffic_policy=external": s.external,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv6 traffic_policy=internal": 0,
		})
	}
}

// TestEjections counts probes and ejected endpoints.
func TestEjections(t *testing.T) {
	r := New(Options{Families: both})
	r.Probe("silent")
	r.Probe("silent")
	r.Ejections(2, 2)
	r.Ejections(1, 3)
	r.Ejections(0, 1)
	check(t, r, "two probes", map[string]float64{
		"switchyard_probes_total result=silent": 2, "switchyard_probes_total result=answered": 0, "switchyard_ejections_total": 3, "switchyard_ejected_endpoints": 1,
	})
}

// TestResets: a Service has a series from its first reset until it is gone, and there are not more than a thousand.
func TestResets(t *testing.T) {
	r := New(Options{Families: both})
	name := func(i int) state.ServiceName { return state.ServiceName{Namespace: "d", Name: fmt.Sprint(i)} }
	series := func() (n int, total float64) {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "switchyard_connection_resets_total" {
				for _, m := range f.Metric {
					n, total = n+1, total+m.Counter.GetValue()
				}
			}
		}
		return n, total
	}
	r.Resets(name(1), 3)
	r.Resets(name(1), 4)
	r.Resets(state.ServiceName{}, 2)
	check(t, r, "two services, one of them gone", map[string]float64{
		"switchyard_connection_resets_total name=1 namespace=d": 7, "switchyard_connection_resets_total name= namespace=": 2,
	})
	var all []*state.Service
	for i := range 2000 {
		r.Resets(name(i), 1)
		all = append(all, &state.Service{Name: name(i)})
	}
	if n, total := series(); n != maxResets+1 || total != 2009 {
		t.Errorf("%d series with %v resets", n, total)
	}
	r.Attempt(backend.Attempt{Update: &state.Update{Full: true, Changed: all[10:]}})
	if n, _ := series(); n != maxResets+1-10 {
		t.Errorf("%d series after ten services are gone", n)
	}
	r.Attempt(backend.Attempt{Update: &state.Update{Removed: []state.ServiceName{name(20), name(1999), name(5)}}})
	r.Resets(name(1999), 1)
	if n, _ := series(); n != maxResets+1-10 {
		t.Errorf("%d series after another one is gone, and another has its first reset", n)
	}
}

func TestHandler(t *testing.T) {
	r := New(Options{Mode: ModeNFTables, Families: both, Version: "v1.2.3"})
	r.Healthz(200)
	r.Livez(503)
	r.Conntrack(state.IPv6, time.Second, 3)
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body := w.Body.String()
	for _, line := range []string{
		`kubeproxy_proxy_healthz_total{code="200"} 1`,
		`kubeproxy_proxy_livez_total{code="503"} 1`,
		`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 3`,
		`kubeproxy_conntrack_reconciler_sync_duration_seconds_bucket{ip_family="IPv6",le="1.024"} 1`,
		`version="v1.2.3"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("/metrics lacks %s", line)
		}
	}
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("Content-Type is %s", w.Header().Get("Content-Type"))
	}
}

// TestAffinityClients: the numbers are read again for each scrape, and unknown numbers are not shown.
func TestAffinityClients(t *testing.T) {
	now := []AffinityClients{{state.IPv4, 3, 10}, {state.IPv6, 0, 10}}
	r := New(Options{Mode: ModeNFTables, Families: both, AffinityClients: func() []AffinityClients { return now }})
	check(t, r, "told", map[string]float64{
		"switchyard_nftables_affinity_clients ip_family=IPv4": 3, "switchyard_nftables_affinity_clients_limit ip_family=IPv4": 10,
		"switchyard_nftables_affinity_clients ip_family=IPv6": 0, "switchyard_nftables_affinity_clients_limit ip_family=IPv6": 10,
	})
	now = nil
	check(t, r, "not told", map[string]float64{
		"switchyard_nftables_affinity_clients ip_family=IPv4": -1, "switchyard_nftables_affinity_clients_limit ip_family=IPv4": -1,
	})
}

// TestPendingSince: no time is 0.
func TestPendingSince(t *testing.T) {
	var since time.Time
	r := New(Options{Mode: ModeNFTables, Families: both, PendingSince: func() time.Time { return since }})
	check(t, r, "nothing waits", map[string]float64{"switchyard_oldest_pending_change_timestamp_seconds": 0})
	since = time.Unix(1000, 5e8)
	check(t, r, "a change waits", map[string]float64{"switchyard_oldest_pending_change_timestamp_seconds": 1000.5})
}

// TestConntrackEntries: the numbers are read again for each scrape, and unknown numbers are not shown.
func TestConntrackEntries(t *testing.T) {
	now, known := ConntrackEntries{Entries: 90, Limit: 100}, true
	r := New(Options{Mode: ModeNFTables, Families: both, ConntrackEntries: func() (ConntrackEntries, bool) { return now, known }})
	check(t, r, "known", map[string]float64{"switchyard_conntrack_entries": 90, "switchyard_conntrack_entries_limit": 100})
	known = false
	check(t, r, "unknown", map[string]float64{"switchyard_conntrack_entries": -1, "switchyard_conntrack_entries_limit": -1})
}

// TestFollowers: each number is read again for each scrape.
func TestFollowers(t *testing.T) {
	now := Followers{Dataplanes: 3, Relays: 2, OldestUnapplied: time.Unix(1000, 0), Sent: 4096}
	r := New(Options{Families: both, Role: "relay", Followers: func() Followers { return now }})
	check(t, r, "behind", map[string]float64{
		"switchyard_api_followers kind=dataplane role=relay": 3, "switchyard_api_followers kind=relay role=relay": 2,
		"switchyard_api_oldest_unapplied_update_timestamp_seconds role=relay": 1000, "switchyard_api_sent_bytes_total role=relay": 4096,
	})
	now = Followers{}
	check(t, r, "nobody", map[string]float64{
		"switchyard_api_followers kind=dataplane role=relay": 0, "switchyard_api_oldest_unapplied_update_timestamp_seconds role=relay": 0,
	})
}

// TestSocketHooks: exactly one state is 1, and each number is read again for each scrape.
func TestSocketHooks(t *testing.T) {
	now := SocketHooks{State: "on", Frontends: 3, Memory: 4096, Translated: 5, Mesh: 2}
	r := New(Options{Mode: ModeEBPF, Families: both, SocketHooks: func() SocketHooks { return now }})
	check(t, r, "on", map[string]float64{
		"switchyard_socket_hooks state=on": 1, "switchyard_socket_hooks state=degraded": 0, "switchyard_socket_hooks state=off": 0,
		"switchyard_socket_hooks_frontends": 3, "switchyard_socket_hooks_memory_bytes": 4096,
		"switchyard_socket_hooks_connections_total result=translated": 5, "switchyard_socket_hooks_connections_total result=mesh": 2,
	})
	now = SocketHooks{State: "off"}
	check(t, r, "off", map[string]float64{
		"switchyard_socket_hooks state=on": 0, "switchyard_socket_hooks state=off": 1, "switchyard_socket_hooks_frontends": 0,
	})
}

// TestEdge: there are metrics of the edge while there is one.
func TestEdge(t *testing.T) {
	now := &Edge{Ports: 3, Left: 1, Draining: 2, Packets: map[string]uint64{"handed-over": 7}}
	r := New(Options{Mode: ModeNFTables, Families: both, Edge: func() *Edge { return now }})
	check(t, r, "an edge", map[string]float64{
		"switchyard_edge_ports result=served": 3, "switchyard_edge_ports result=left": 1, "switchyard_edge_draining_frontends": 2,
		"switchyard_edge_packets_total action=handed-over": 7,
	})
	now = nil
	for _, f := range gather(t, r) {
		if strings.HasPrefix(f.GetName(), "switchyard_edge") {
			t.Errorf("without an edge: %v", f)
		}
	}
}

// TestMetricsOfOtherRegistries: the metrics of the rest of a program are also shown. If both have a family, the
// program's metrics count.
func TestMetricsOfOtherRegistries(t *testing.T) {
	mine := prometheus.NewRegistry()
	mine.MustRegister(
		collectors.NewGoCollector(),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "agent_pods"}, func() float64 { return 7 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "switchyard_applied_revision"}, func() float64 { return 42 }),
	)
	r := New(Options{Families: []state.Family{state.IPv4}, Others: mine})
	if got := value(t, r, "agent_pods"); got != 7 {
		t.Errorf("agent_pods is %v, want 7", got)
	}
	if got := value(t, r, "switchyard_applied_revision"); got != 42 {
		t.Errorf("switchyard_applied_revision is %v, want 42", got)
	}
	answer := httptest.NewRecorder()
	r.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if text := answer.Body.String(); answer.Code != http.StatusOK || strings.Count(text, "# TYPE go_goroutines ") != 1 {
		t.Errorf("status %d, want 200 with one go_goroutines:\n%.1000s", answer.Code, text)
	}
	both, err := Join(nil, r).Gather()
	if err != nil || len(both) != len(gather(t, r)) {
		t.Errorf("joined with nothing: %d families, %v", len(both), err)
	}
}
