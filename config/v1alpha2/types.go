// Package v1alpha2 has the configuration file of version kubeproxy.config.k8s.io/v1alpha2, as KEP-784 defines it, with
// one section for each dataplane and one for the node-local API.
//
// Compared with v1alpha1, platform settings are in the sections linux and windows, settings of all dataplanes appear
// once, and unused settings are gone. Fields are read over their defaults. A field that is missing or null keeps its
// default, and zero means zero.
package v1alpha2

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-net/switchyard/config"
)

// APIVersion and Kind are the apiVersion and kind of a file of this version.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha2"
	Kind       = "KubeProxyConfiguration"
)

// KubeProxyConfiguration is a configuration file. [Default] returns one with all defaults. The
// fields have the names, except for case, and the meanings of the fields of [config.Config]. The tables of
// docs/config-reference.md and docs/config.schema.json are generated from the comments.
type KubeProxyConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// The feature gates of Kubernetes, as all its components take them.
	FeatureGates     map[string]bool  `json:"featureGates,omitempty"`
	ClientConnection ClientConnection `json:"clientConnection"`
	Logging          Logging          `json:"logging"`
	// Handles the Services with this value of the label `service.kubernetes.io/service-proxy-name`, instead of those
	// without the label.
	ServiceProxyName string `json:"serviceProxyName"`
	// The name of this Node. Empty: the host's name.
	HostnameOverride string `json:"hostnameOverride"`
	// Replaces the addresses of the Node object, the primary one first.
	NodeIPOverride []netip.Addr `json:"nodeIPOverride"`
	// Which of the node's addresses count: with `SingleStack` the ones of the primary address's family, with
	// `PreferDualStack` or empty all of them. `RequireDualStack` demands some of each family: without them the process
	// ends at the start, or warns if `configHardFail` is false.
	IPFamilyPolicy config.IPFamilyPolicy `json:"ipFamilyPolicy"`
	// Where `/healthz` and `/livez` are served. Empty: nowhere.
	HealthzBindAddress netip.AddrPort `json:"healthzBindAddress"`
	// Where `/metrics`, `/proxyMode` and `/configz` are served. Empty: nowhere.
	MetricsBindAddress netip.AddrPort `json:"metricsBindAddress"`
	// Where the admin API (docs/admin.md) is served, for root and the process's own user. `none` or empty: nowhere. It
	// has no effect in `apply` and `serve --nodes`, and elsewhere than on Linux.
	AdminBindAddress string `json:"adminBindAddress"`
	// Where the page for people (docs/ui.md) is served, to anybody who can connect; one address of this machine, best a
	// loopback one. Empty: nowhere. It has no effect in `apply`.
	UIBindAddress netip.AddrPort `json:"uiBindAddress"`
	// Ends the process when an address cannot be bound, rather than warn and try again.
	BindAddressHardFail bool `json:"bindAddressHardFail"`
	// When this file is broken, end the process. `false`: warn, and at the start use the defaults of the fields at
	// fault, later go on with what the file said last.
	ConfigHardFail bool `json:"configHardFail"`
	// Serves `/debug/pprof` at `metricsBindAddress`.
	EnableProfiling bool `json:"enableProfiling"`
	// The minor version of Kubernetes, such as `1.36`, whose hidden metrics are shown.
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`
	// The dataplane: `nftables`, `iptables`, `ipvs`, `ebpf`, `userspace`, or `kernelspace` on Windows, which is
	// experimental. Empty: nftables, or kernelspace on Windows. A change drops no connection
	// (docs/operate.md#changing-the-mode).
	Mode config.Mode `json:"mode"`
	// Lets nftables replace the modes `iptables` and `ipvs` on nodes that lack their requirements. A warning and a
	// Warning Event about the Node say so. The `masqueradeBit` of the mode's section stays. `false`: the process ends at
	// its start, and a change of the mode is refused.
	AllowModeFallback bool `json:"allowModeFallback"`
	// How connections of pods are distinguished from others: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface` or
	// `InterfaceNamePrefix`. Empty: `ClusterCIDR`.
	DetectLocalMode config.LocalMode `json:"detectLocalMode"`
	DetectLocal     DetectLocal      `json:"detectLocal"`
	// Where NodePorts are served: CIDRs of local addresses, and the keywords `primary` (of the Node object), `localhost`
	// and `all`. IPv6 link-local addresses need a range within `fe80::/10`. Empty: `primary` in the modes `nftables` and
	// `ebpf`, else `all`, with `localhost` as `iptables.localhostNodePorts` says in the modes `iptables` and empty.
	NodePortAddresses []string `json:"nodePortAddresses"`
	// Answers packets of established TCP connections to endpoints that have left their Service with a reset. Clients
	// then connect again instead of waiting for their timeouts. Endpoints that terminate and still serve keep their
	// connections. It has no effect in `apply`; in mode ebpf, hooks leave Pods to nftables with it. See
	// docs/operate.md#connections-to-endpoints-that-are-gone.
	ResetConnectionsToRemovedEndpoints bool `json:"resetConnectionsToRemovedEndpoints"`
	// Answers echo requests (ping) to the addresses of Services without the annotation `switchyard.net/ping`. The answer
	// is the node's, not an endpoint's. See docs/ping.md.
	Ping bool `json:"ping"`
	// The projects whose annotations of Services and EndpointSlices count where Switchyard's own are absent: `cilium.io`,
	// `kube-router.io`, `loxilb.io` and `projectcalico.org`. The first in the list takes precedence. Empty: none, so that
	// old annotations change nothing. See docs/balance.md#annotations-of-other-projects.
	AcceptAnnotationsOf []string    `json:"acceptAnnotationsOf"`
	Ejection            Ejection    `json:"ejection"`
	NodeHealth          NodeHealth  `json:"nodeHealth"`
	Edge                config.Edge `json:"edge"`
	Services            Services    `json:"services"`
	// How long a watch of the API server lasts at least, 5 minutes or more. It is opened again from where it ended; if
	// the API server has gone back to an earlier state, everything is listed again
	// (docs/operate.md#when-etcd-is-restored).
	ConfigSyncPeriod config.Duration `json:"configSyncPeriod"`
	// How often the contents of the kernel are compared with the desired contents.
	SyncPeriod config.Duration `json:"syncPeriod"`
	// The shortest time between two commits to the kernel. Up to the default there is none: a commit is as large as the
	// change, so that single changes need not wait for others.
	MinSyncPeriod config.Duration `json:"minSyncPeriod"`

	Linux   Linux   `json:"linux"`
	Windows Windows `json:"windows"`

	NFTables  config.NFTables  `json:"nftables"`
	IPTables  config.IPTables  `json:"iptables"`
	IPVS      config.IPVS      `json:"ipvs"`
	EBPF      config.EBPF      `json:"ebpf"`
	Userspace config.Userspace `json:"userspace"`
	Winkernel config.Winkernel `json:"winkernel"`

	API API `json:"api"`
}

// ClientConnection is the section clientConnection.
type ClientConnection struct {
	// The path of a kubeconfig file. Empty means the service account of the pod.
	Kubeconfig string `json:"kubeconfig"`
	// The Accept header of requests. Empty leaves it to the client.
	AcceptContentTypes string `json:"acceptContentTypes"`
	// The encoding that is asked for.
	ContentType string `json:"contentType"`
	// How many requests a second are sent on average. Negative means no limit.
	QPS float32 `json:"qps"`
	// How many requests may be sent at once.
	Burst int32 `json:"burst"`
}

// Logging is the section logging.
type Logging struct {
	// `text` is logfmt, `json` is JSON, and `klog` is the text of Kubernetes' components.
	Format string `json:"format"`
	// How long a line may be held back.
	FlushFrequency config.Duration `json:"flushFrequency"`
	// 0 for what an operator should know, 4 and above for debugging, as in Kubernetes.
	Verbosity int32 `json:"verbosity"`
	// Verbosity of single source files: items with `filePattern` and `verbosity`. `filePattern` is the name without
	// `.go`, or a path if it has a `/`. The first matching item counts.
	VModule []VModule  `json:"vmodule,omitempty"`
	Options LogOptions `json:"options"`
}

// VModule is an item of logging.vmodule.
type VModule struct {
	FilePattern string `json:"filePattern"`
	Verbosity   int32  `json:"verbosity"`
}

// LogOptions is the section logging.options.
type LogOptions struct {
	Text LogOutput `json:"text"`
	JSON LogOutput `json:"json"`
}

// LogOutput has the options of one format.
type LogOutput struct {
	// Writes errors to stderr and the rest to stdout.
	SplitStream bool `json:"splitStream"`
	// How many bytes may be held back when streams are split.
	InfoBufferSize resource.Quantity `json:"infoBufferSize"`
}

// DetectLocal is the section detectLocal.
type DetectLocal struct {
	// The addresses of all pods: one range, or one of each family.
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs"`
	// The bridge on which connections of pods come in.
	BridgeInterface string `json:"bridgeInterface"`
	// Starts the names of the interfaces on which connections of pods come in.
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

// Ejection is the section ejection.
type Ejection struct {
	// Whether silent endpoints of TCP are ejected from the Services without the annotation `switchyard.net/eject`.
	Enabled bool `json:"enabled"`
	// How long an endpoint that is suspected to be silent has to answer a probe, from 100ms to 20s. With more than 1s,
	// some clients whose connections are stuck wait longer than 4 s. A process that gets its configuration from a file of
	// one dataplane, such as `NFTablesConfiguration`, has the default.
	ProbeTimeout config.Duration `json:"probeTimeout"`
}

// NodeHealth is the section nodeHealth.
type NodeHealth struct {
	// Whether endpoints on Nodes that shut down, or are not ready for long, come last. The process then watches all Nodes,
	// unless it follows a relay.
	Enabled bool `json:"enabled"`
	// How long a Node must not have been ready, from 1s to 24h. A Node whose kubelet reports a shutdown counts at once.
	NotReadyAfter config.Duration `json:"notReadyAfter"`
	// While more of all Nodes are not ready, in percent from 1 to 100, no endpoint comes last.
	IgnoreAbovePercent int32 `json:"ignoreAbovePercent"`
}

// Services is the section services.
type Services struct {
	// The ranges that externalIPs may be in (CVE-2020-8554). Empty: they may be any address. `[0.0.0.0/32]` allows none.
	AllowedExternalIPs []netip.Prefix `json:"allowedExternalIPs"`
	// Allows externalIPs that are addresses of Nodes, of this node's interfaces, or of the API server or relay. A
	// process that follows an API server knows this Node's addresses, and a relay knows all Nodes' addresses. Where they
	// are allowed, a Service can take the connections to the kubelet or to ssh. A TCP port of the API server or relay is
	// refused in any case.
	NodeExternalIPs bool `json:"nodeExternalIPs"`
	// How many entries are routed for one Service, up to 1600000. -1: a tenth of the node's derived budget, 200000 at
	// most, and 20000 in mode `iptables`. 0: the maximum. A Service may have one frontend (port times address) for each
	// 32 of them, and at least 2000. So for its names, where the Service itself counts as six: with 1 to 5, no Service
	// has names.
	MaxEntries int64 `json:"maxEntries"`
	// How many entries are routed for the Services of a namespace, from the oldest Service to the youngest; its names
	// have the same bound. -1: half of the node's derived budget, 1000000 at most. 0: no bound.
	MaxEntriesPerNamespace int64 `json:"maxEntriesPerNamespace"`
	// How many entries are routed in all, and how many all names have. When there are more, the bound of namespaces is
	// lowered by a quarter until all fits. -1: one for each 512 bytes of the memory limit, 4000000 at most; in mode
	// `iptables` a tenth of that. 0: no bound.
	MaxEntriesPerNode int64 `json:"maxEntriesPerNode"`
}

// Linux is the section linux.
type Linux struct {
	Conntrack Conntrack `json:"conntrack"`
	// Masquerades all connections to cluster IPs.
	MasqueradeAll bool `json:"masqueradeAll"`
	// Written to `/proc/self/oom_score_adj`, from -1000 to 1000.
	OOMScoreAdj int32 `json:"oomScoreAdj"`
}

// Conntrack is the section linux.conntrack.
type Conntrack struct {
	// How many connections are tracked at least, for each CPU; a larger limit of the node stays.
	MaxPerCore int32 `json:"maxPerCore"`
	// How many connections are tracked at least, unless `maxPerCore` is 0.
	Min int32 `json:"min"`
	// How long an idle TCP connection is tracked.
	TCPEstablishedTimeout config.Duration `json:"tcpEstablishedTimeout"`
	// How long a TCP connection in state CLOSE_WAIT is tracked.
	TCPCloseWaitTimeout config.Duration `json:"tcpCloseWaitTimeout"`
	// Takes packets outside the TCP window for valid ones.
	TCPBeLiberal bool `json:"tcpBeLiberal"`
	// How long a UDP flow without an answer is tracked.
	UDPTimeout config.Duration `json:"udpTimeout"`
	// How long a UDP flow with answers is tracked.
	UDPStreamTimeout config.Duration `json:"udpStreamTimeout"`
}

// Windows is the section windows.
type Windows struct {
	// On Windows, answers the service manager, which must have started the process, and also logs to the event log.
	RunAsService bool `json:"runAsService"`
}

// API is the section api.
type API struct {
	// Where it is served: `unix:///run/switchyard/api.sock`, `npipe:////./pipe/switchyard` (on Windows),
	// `tcp://192.0.2.10:10250`, also without `tcp://`. Empty: nowhere.
	Listen []string `json:"listen"`
	// The permissions of unix sockets, in octal.
	SocketMode string `json:"socketMode"`
	// The users whose processes may use unix sockets, by name or number, in addition to root and the process's own. Each
	// of them may have a quarter of the connections, at least 64. Root and the process's own user have 8 that the others
	// cannot take.
	SocketUsers []string `json:"socketUsers"`
	// The server's certificate. TCP on addresses other than loopback needs it.
	TLSCertFile string `json:"tlsCertFile"`
	// The key of the certificate, which needs it.
	TLSKeyFile string `json:"tlsKeyFile"`
	// The authorities of clients' certificates. TLS needs it.
	ClientCAFile string `json:"clientCAFile"`
	// Also serves the names of all Services to DNS servers. Services that are not routed are included and then watched.
	// Without `listen` it has no effect.
	Names bool `json:"names"`
}
