package main

// variables are what a board lets people choose.
type variable struct {
	name, label, query string
}

// board is a dashboard.
type board struct {
	file, uid, title, description string
	variables                     []variable
	rows                          []row
}

type row struct {
	title  string
	panels []panel
}

// panel shows the results of queries. Its kind is stat, table or timeseries, the default.
type panel struct {
	title, description string
	kind               string
	unit               string
	// warn is from where on a stat is yellow, and bad from where on it is red; both 0 for none.
	warn, bad float64
	queries   []query
}

type query struct{ expr, legend string }

// one is a single query.
func one(expr, legend string) []query { return []query{{expr, legend}} }

// quantiles are the median and the slowest hundredth of a histogram.
func quantiles(metric, labels, by string) []query {
	rate := "rate(" + metric + "_bucket{" + labels + "}[$__rate_interval])"
	if by != "" {
		rate = "sum by (le, " + by + ") (" + rate + ")"
		return []query{{"histogram_quantile(0.99, " + rate + ")", "99% {{" + by + "}}"}}
	}
	rate = "sum by (le) (" + rate + ")"
	return []query{{"histogram_quantile(0.5, " + rate + ")", "50%"}, {"histogram_quantile(0.99, " + rate + ")", "99%"}}
}

// process is what every process shows; labels select it.
func process(labels, legend string) row {
	return row{"Process", []panel{
		{title: "Memory", unit: "bytes", queries: one("process_resident_memory_bytes{"+labels+"}", legend)},
		{title: "CPU", description: "Seconds of CPU a second.", queries: one("rate(process_cpu_seconds_total{"+labels+"}[$__rate_interval])", legend)},
		{title: "Open files", queries: one("process_open_fds{"+labels+"}", legend)},
		{title: "Log lines that were left out", description: "There were too many like them; the next one with the same message has their number.",
			queries: one("rate(switchyard_log_lines_suppressed_total{"+labels+"}[$__rate_interval])", legend)},
	}}
}

// apiRequests are those to the API server.
func apiRequests(labels string) row {
	return row{"API server", []panel{
		{title: "Requests", description: "Watches count once, when they begin.", unit: "reqps",
			queries: one("sum by (code, method) (rate(rest_client_requests_total{"+labels+"}[$__rate_interval]))", "{{method}} {{code}}")},
		{title: "Time of requests", unit: "s", queries: quantiles("rest_client_request_duration_seconds", labels, "verb")},
		{title: "Changes of objects", unit: "ops", queries: []query{
			{"rate(kubeproxy_sync_proxy_rules_service_changes_total{" + labels + "}[$__rate_interval])", "Services"},
			{"rate(kubeproxy_sync_proxy_rules_endpoint_changes_total{" + labels + "}[$__rate_interval])", "EndpointSlices"},
		}},
	}}
}

const nodeLabels = `node="$node"`

var nodeBoard = board{
	file: "node.json", uid: "switchyard-node", title: "Switchyard / Node", description: "One node: is it in step with the cluster, and what does it do.",
	variables: []variable{{"node", "Node", "label_values(switchyard_services, node)"}},
	rows: []row{
		{"Health", []panel{
			{title: "Behind", description: "For how long a change has been waiting for the kernel.", kind: "stat", unit: "s", warn: 5, bad: 60, queries: one(
				"max(time() - (switchyard_oldest_pending_change_timestamp_seconds{"+nodeLabels+"} > 0)) or vector(0)", "")},
			{title: "Services that cannot be programmed", kind: "stat", bad: 1, queries: one("switchyard_failed_services{"+nodeLabels+"}", "")},
			{title: "Services that are limited", description: "They exceed a budget, or claim what another owns.", kind: "stat", warn: 1, queries: one("sum(switchyard_limited_services{"+nodeLabels+"})", "")},
			{title: "Problems of sources", description: "Something cannot be read from the API server.", kind: "stat", warn: 1, queries: one("switchyard_source_problems{"+nodeLabels+"}", "")},
			{title: "Health check ports that cannot be bound", kind: "stat", warn: 1, queries: one("switchyard_health_check_port_problems{"+nodeLabels+"}", "")},
			{title: "Repairs within an hour", description: "Something else on the node changed Switchyard's rules.", kind: "stat", warn: 1, queries: one("increase(switchyard_dataplane_repairs_total{"+nodeLabels+"}[1h])", "")},
		}},
		{"Services", []panel{
			{title: "Services", queries: one("switchyard_services{"+nodeLabels+"}", "Services")},
			{title: "Ports with the policy Local and no endpoint here", queries: one("sum by (traffic_policy) (kubeproxy_sync_proxy_rules_no_local_endpoints_total{"+nodeLabels+"})", "{{traffic_policy}}")},
			{title: "Limited Services by reason", queries: one("switchyard_limited_services{"+nodeLabels+"}", "{{reason}}")},
			{title: "Resets of connections to endpoints that are gone", unit: "pps", description: "By Service. It is read at each comparison with the kernel.",
				queries: one("topk(10, sum by (namespace, name) (rate(switchyard_connection_resets_total{"+nodeLabels+"}[$__rate_interval])))", "{{namespace}}/{{name}}")},
			{title: "Connection tracking", description: "Once the table is full, the kernel drops new connections.", queries: []query{
				{"switchyard_conntrack_entries{" + nodeLabels + "}", "entries"}, {"switchyard_conntrack_entries_limit{" + nodeLabels + "}", "limit"},
			}},
			{title: "Clients with affinity", description: "The share of the room for them that is in use, in nftables on Linux 6.18 and later. Once it is full, new clients have no affinity.", unit: "percentunit", queries: one(
				"switchyard_nftables_affinity_clients{"+nodeLabels+"} / switchyard_nftables_affinity_clients_limit{"+nodeLabels+"}", "{{ip_family}}")},
		}},
		{"Traffic of Services, with nftables.counters", []panel{
			{title: "New connections", description: "The ten busiest ports. Without names: all ports beyond the first 1,000 together.", unit: "cps",
				queries: one("topk(10, rate(switchyard_service_connections_total{"+nodeLabels+"}[$__rate_interval]))", "{{namespace}}/{{service}}:{{port}}")},
			{title: "New connections that fail", description: "Rejected because no endpoint exists, or dropped by the traffic policy or the source ranges. The ten ports with the most.", unit: "cps",
				queries: []query{
					{"topk(10, rate(switchyard_service_rejects_total{" + nodeLabels + "}[$__rate_interval]) > 0)", "rejected, {{namespace}}/{{service}}:{{port}}"},
					{"topk(10, rate(switchyard_service_drops_total{" + nodeLabels + "}[$__rate_interval]) > 0)", "dropped, {{namespace}}/{{service}}:{{port}}"},
				}},
			{title: "Ports without a series", description: "They had connections when 1,000 ports had one.", kind: "stat", warn: 1,
				queries: one("switchyard_service_ports_left_out{"+nodeLabels+"}", "")},
		}},
		{"Changes", []panel{
			{title: "From the cluster to the kernel", unit: "s", queries: quantiles("switchyard_network_programming_duration_seconds", nodeLabels, "")},
			{title: "Syncs", unit: "s", queries: quantiles("kubeproxy_sync_proxy_rules_duration_seconds", nodeLabels, "")},
			{title: "Calls of the dataplane", unit: "ops", queries: one("sum by (call, result) (rate(switchyard_dataplane_attempts_total{"+nodeLabels+"}[$__rate_interval]))", "{{call}} {{result}}")},
			{title: "Objects of the kernel", unit: "ops", queries: []query{
				{"rate(switchyard_dataplane_written_total{" + nodeLabels + "}[$__rate_interval])", "written"},
				{"rate(switchyard_dataplane_repairs_total{" + nodeLabels + "}[$__rate_interval])", "repaired"},
			}},
			{title: "Comparison with the kernel", unit: "s", queries: quantiles("switchyard_dataplane_verify_duration_seconds", nodeLabels, "")},
			{title: "Stale connections that were deleted", unit: "ops", queries: one("sum by (ip_family) (rate(kubeproxy_conntrack_reconciler_deleted_entries_total{"+nodeLabels+"}[$__rate_interval]))", "{{ip_family}}")},
		}},
		{"Socket hooks, in mode ebpf", []panel{
			{title: "State", description: "While hooks are off, nftables does what they do.", queries: one("switchyard_socket_hooks{"+nodeLabels+"}", "{{state}}")},
			{title: "Connections", unit: "cps", queries: one("rate(switchyard_socket_hooks_connections_total{"+nodeLabels+"}[$__rate_interval])", "{{result}}")},
			{title: "Memory of maps", unit: "bytes", queries: one("switchyard_socket_hooks_memory_bytes{"+nodeLabels+"}", "maps")},
		}},
		apiRequests(nodeLabels),
		{"Servers", []panel{
			{title: "Answers of /healthz and /livez", unit: "reqps", queries: []query{
				{"sum by (code) (rate(kubeproxy_proxy_healthz_total{" + nodeLabels + "}[$__rate_interval]))", "/healthz {{code}}"},
				{"sum by (code) (rate(kubeproxy_proxy_livez_total{" + nodeLabels + "}[$__rate_interval]))", "/livez {{code}}"},
			}},
			{title: "Open connections", queries: one("switchyard_server_connections{"+nodeLabels+"}", "{{server}}")},
			{title: "Connections that were closed because the server was full", unit: "cps", queries: one("rate(switchyard_server_connections_closed_total{"+nodeLabels+"}[$__rate_interval])", "{{server}}")},
		}},
		process(nodeLabels, "{{node}}"),
	},
}

var clusterBoard = board{
	file: "cluster.json", uid: "switchyard-cluster", title: "Switchyard / Cluster", description: "All nodes: which ones differ from the others.",
	rows: []row{
		{"Health", []panel{
			{title: "Nodes", kind: "stat", queries: one("count(switchyard_services)", "")},
			{title: "Nodes that are behind by more than a minute", kind: "stat", bad: 1, queries: one(
				"count(time() - (switchyard_oldest_pending_change_timestamp_seconds > 0) > 60) or vector(0)", "")},
			{title: "Nodes without an answer", kind: "stat", bad: 1, queries: one(`count(up{job="kube-proxy"} == 0) or vector(0)`, "")},
			{title: "Nodes with Services that cannot be programmed", kind: "stat", bad: 1, queries: one("count(switchyard_failed_services > 0) or vector(0)", "")},
			{title: "Nodes with problems of sources", kind: "stat", warn: 1, queries: one("count(switchyard_source_problems > 0) or vector(0)", "")},
			{title: "Nodes whose rules something else changes", kind: "stat", warn: 1, queries: one("count(increase(switchyard_dataplane_repairs_total[1h]) > 0) or vector(0)", "")},
			{title: "Nodes whose socket hooks are off", description: "In mode ebpf.", kind: "stat", warn: 1, queries: one(`count(switchyard_socket_hooks{state="off"} == 1) or vector(0)`, "")},
		}},
		{"Nodes", []panel{
			{title: "Versions", queries: one("count by (version) (switchyard_build_info)", "{{version}}")},
			{title: "Services", description: "The fewest and the most that a node knows. They are the same unless a node is behind.", queries: []query{
				{"min(switchyard_services)", "fewest"}, {"max(switchyard_services)", "most"},
			}},
			{title: "Services that cannot be programmed", description: "The ten nodes with the most.", kind: "table", queries: one("topk(10, switchyard_failed_services > 0)", "{{node}}")},
			{title: "Limited Services by reason", description: "On the node with the most.", queries: one("max by (reason) (switchyard_limited_services)", "{{reason}}")},
		}},
		{"Changes", []panel{
			{title: "From the cluster to the kernel, all nodes", unit: "s", queries: quantiles("switchyard_network_programming_duration_seconds", "", "")},
			{title: "The ten slowest nodes", unit: "s", queries: one(
				"topk(10, histogram_quantile(0.99, sum by (le, node) (rate(switchyard_network_programming_duration_seconds_bucket[$__rate_interval]))))", "{{node}}")},
			{title: "Calls of the dataplane that failed", unit: "ops", queries: one(
				`topk(10, sum by (node) (rate(switchyard_dataplane_attempts_total{result="error"}[$__rate_interval])))`, "{{node}}")},
			{title: "Repairs", unit: "ops", queries: one("topk(10, rate(switchyard_dataplane_repairs_total[$__rate_interval]))", "{{node}}")},
		}},
		{"Connections", []panel{
			{title: "Resets of connections to endpoints that are gone", unit: "pps",
				queries: one("topk(10, sum by (namespace, name) (rate(switchyard_connection_resets_total[$__rate_interval])))", "{{namespace}}/{{name}}")},
			{title: "Share of the connection tracking table that is used", description: "The ten nodes with the most.", unit: "percentunit", queries: one(
				"topk(10, switchyard_conntrack_entries / (switchyard_conntrack_entries_limit > 0))", "{{node}}")},
			{title: "Connections that socket hooks translate", unit: "cps", queries: one("sum by (result) (rate(switchyard_socket_hooks_connections_total[$__rate_interval]))", "{{result}}")},
		}},
		{"Processes", []panel{
			{title: "Memory", description: "The ten largest.", unit: "bytes", queries: one("topk(10, process_resident_memory_bytes and on (instance) switchyard_services)", "{{node}}")},
			{title: "CPU", description: "The ten busiest, in seconds of CPU a second.", queries: one("topk(10, rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) switchyard_services)", "{{node}}")},
		}},
	},
}

const relayLabels = `job="$job",instance=~"$instance"`

var relayBoard = board{
	file: "relay.json", uid: "switchyard-relay", title: "Switchyard / Relay", description: "Relays, which serve the state of all nodes: 'switchyard serve --nodes'.",
	variables: []variable{
		{"job", "Job", "label_values(switchyard_build_info, job)"},
		{"instance", "Instance", `label_values(switchyard_build_info{job="$job"}, instance)`},
	},
	rows: []row{
		{"Health", []panel{
			{title: "Relays", kind: "stat", queries: one("count(switchyard_build_info{"+relayLabels+"})", "")},
			{title: "Problems of sources", description: "Something cannot be read from the API server. The objects that were read stay.", kind: "stat", warn: 1, queries: one("max(switchyard_source_problems{"+relayLabels+"})", "")},
			{title: "Up for", description: "Of the relay that was started last.", kind: "stat", unit: "s", queries: one("time() - max(process_start_time_seconds{"+relayLabels+"})", "")},
		}},
		apiRequests(relayLabels),
		{"Followers", []panel{
			{title: "Followers", description: "Dataplanes watch the state of a node, and relays below the objects of the cluster.",
				queries: one("switchyard_api_followers{"+relayLabels+"}", "{{kind}}, {{instance}}")},
			{title: "Lag", description: "For how long an update has waited for the report that a dataplane has applied it. Dataplanes that never report do not count.", unit: "s",
				queries: one("time() - (switchyard_api_oldest_unapplied_update_timestamp_seconds{"+relayLabels+"} > 0)", "{{instance}}")},
			{title: "Sent to followers", unit: "Bps", queries: one("rate(switchyard_api_sent_bytes_total{"+relayLabels+"}[$__rate_interval])", "{{instance}}")},
			{title: "Open files", description: "Each follower has one connection, and so one of these.", queries: one("process_open_fds{"+relayLabels+"}", "{{instance}}")},
			{title: "Share of the open files that are allowed", unit: "percentunit", queries: one("process_open_fds{"+relayLabels+"} / process_max_fds{"+relayLabels+"}", "{{instance}}")},
			{title: "Network", unit: "Bps", description: "Of the network namespace of the process.", queries: []query{
				{"rate(process_network_transmit_bytes_total{" + relayLabels + "}[$__rate_interval])", "sent, {{instance}}"},
				{"rate(process_network_receive_bytes_total{" + relayLabels + "}[$__rate_interval])", "received, {{instance}}"},
			}},
			{title: "Connections to /healthz and /metrics", queries: one("switchyard_server_connections{"+relayLabels+"}", "{{server}}, {{instance}}")},
		}},
		process(relayLabels, "{{instance}}"),
	},
}

var boards = []board{nodeBoard, clusterBoard, relayBoard}
