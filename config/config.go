// Package config has the configuration of a node's service proxy, independent of the version of the file.
//
// Packages v1alpha1 and v1alpha2 convert files into it. Field paths in errors and notes are paths of v1alpha2, the
// latest version, unless documented otherwise.
package config

import (
	"net/netip"
	"strings"
	"time"
)

// Config is the configuration of a node's service proxy. [Default] returns one that is complete; the zero value is not.
type Config struct {
	// FeatureGates are Kubernetes' feature gates, by name. [Config.Gate] reports whether one is on. Most have no
	// effect. [Config.WithoutEffect] names gates that turn off a feature that is always on here, and
	// [Config.UnknownGates] names unknown gates.
	FeatureGates map[string]bool
	// ClientConnection says how the API server is reached.
	ClientConnection ClientConnection
	// Logging has the levels and the format of the log.
	Logging Logging
	// ServiceProxyName selects the Services that have this value in their label service.kubernetes.io/service-proxy-name. Empty
	// selects those without the label.
	ServiceProxyName string
	// HostnameOverride is the name of this Node. Empty means the host's name.
	HostnameOverride string
	// NodeIPOverride replaces the addresses of the Node object, the primary one first.
	NodeIPOverride []netip.Addr
	// IPFamilyPolicy says which of the node's addresses count, and which there must be. See [Config.NodeIPs].
	IPFamilyPolicy IPFamilyPolicy
	// HealthzBindAddress is where /healthz and /livez are served. The zero value serves them nowhere.
	HealthzBindAddress netip.AddrPort
	// MetricsBindAddress is where /metrics, /proxyMode and /configz are served. The zero value serves them nowhere.
	MetricsBindAddress netip.AddrPort
	// AdminBindAddress is where the admin API is served: unix:///PATH. "none" and the empty string serve it nowhere.
	AdminBindAddress string
	// UIBindAddress is where the page for people is served. The zero value serves it nowhere.
	UIBindAddress netip.AddrPort
	// BindAddressHardFail ends the process when an address cannot be bound, rather than warn and try again.
	BindAddressHardFail bool
	// ConfigHardFail ends the process when the configuration is broken, rather than warn. See [Choose].
	ConfigHardFail bool
	// EnableProfiling serves /debug/pprof at MetricsBindAddress.
	EnableProfiling bool
	// ShowHiddenMetricsForVersion shows metrics that were hidden in that version, such as 1.36, of Kubernetes.
	ShowHiddenMetricsForVersion string
	// Mode selects the dataplane.
	Mode Mode
	// AllowModeFallback lets the nftables dataplane replace the modes iptables and ipvs on a node that lacks their
	// requirements. If it is false, the process ends at its start instead. Files of kube-proxy, v1alpha1, are read as
	// if it were true.
	AllowModeFallback bool
	// DetectLocalMode specifies how connections of pods are distinguished from others. Empty means ClusterCIDR. Without ClusterCIDRs, no
	// client then counts as a pod, and connections to cluster IPs keep their source.
	DetectLocalMode LocalMode
	// DetectLocal has what DetectLocalMode needs.
	DetectLocal DetectLocal
	// NodePortAddresses are the addresses that serve NodePorts. See [Config.NodePorts] for the meaning of the zero
	// value.
	NodePortAddresses NodePortAddresses
	// ResetConnectionsToRemovedEndpoints answers packets of established TCP connections to endpoints that have left their Service with a
	// reset.
	ResetConnectionsToRemovedEndpoints bool
	// Ping makes nodes answer echo requests to the addresses of Services without the annotation switchyard.net/ping.
	Ping bool
	// AcceptAnnotationsOf are some of [brain.AnnotationDomains]. Annotations of these projects count where Switchyard's own are absent. Of several,
	// the first one counts.
	AcceptAnnotationsOf []string
	// Ejection is about endpoints that do not answer.
	Ejection Ejection
	// NodeHealth is about endpoints on Nodes that shut down or are not ready.
	NodeHealth NodeHealth
	// Edge is about connections from outside that nodes hand over to each other.
	Edge Edge
	// Services bounds what Services may ask for.
	Services Services
	// ConfigSyncPeriod is how long a watch of the API server lasts at least. The next one goes on from where it ended, if the API server's history
	// is still the same; otherwise everything is listed again. Nothing else is listed twice.
	ConfigSyncPeriod Duration
	// SyncPeriod is how often the kernel is compared with the wanted state.
	SyncPeriod Duration
	// MinSyncPeriod is the shortest time between two commits to the kernel. See [Config.CommitInterval].
	MinSyncPeriod Duration

	// Linux and Windows have the settings of a platform that do not depend on the dataplane.
	Linux   Linux
	Windows Windows

	NFTables  NFTables
	IPTables  IPTables
	IPVS      IPVS
	EBPF      EBPF
	Userspace Userspace
	Winkernel Winkernel

	// API is the node-local API.
	API API
}

// ClientConnection says how the API server is reached.
type ClientConnection struct {
	// Kubeconfig is the path of a kubeconfig file. Empty means the service account of the pod.
	Kubeconfig string
	// AcceptContentTypes is the Accept header of requests. Empty leaves it to the client.
	AcceptContentTypes string
	// ContentType is the encoding that is asked for.
	ContentType string
	// QPS is how many requests a second are sent on average. Negative means no limit.
	QPS float32
	// Burst is how many requests may be sent at once.
	Burst int32
}

// Logging has the levels and the format of the log.
type Logging struct {
	// Format is one of [LogFormats].
	Format string
	// FlushFrequency is how long a line may be held back.
	FlushFrequency Duration
	// Verbosity is 0 for what an operator should know; higher numbers log more.
	Verbosity int32
	// VModule sets the verbosity for single source files.
	VModule []VModule
	// Options are settings of the formats.
	Options LogOptions
}

// LogFormats are the formats of lines: logfmt, JSON, and the text of Kubernetes' components.
var LogFormats = []string{"text", "json", "klog"}

// VModule sets the verbosity for the source files whose name, without .go, matches a pattern.
type VModule struct {
	FilePattern string
	Verbosity   int32
}

// LogOptions are settings of the formats of the log.
type LogOptions struct{ Text, JSON LogOutput }

// LogOutput says where the lines of a log go.
type LogOutput struct {
	// SplitStream writes errors to stderr and the rest to stdout.
	SplitStream bool
	// InfoBufferSize is how many bytes may be held back when streams are split.
	InfoBufferSize int64
}

// Mode names a dataplane. Empty means the best one for the platform.
type Mode string

// The modes. Kernelspace is what kube-proxy calls the dataplane of Windows.
const (
	ModeNFTables    Mode = "nftables"
	ModeIPTables    Mode = "iptables"
	ModeIPVS        Mode = "ipvs"
	ModeEBPF        Mode = "ebpf"
	ModeUserspace   Mode = "userspace"
	ModeKernelspace Mode = "kernelspace"
)

// LocalMode is a way to distinguish connections of pods from others.
type LocalMode string

// The ways to distinguish connections of pods from others.
const (
	LocalModeClusterCIDR         LocalMode = "ClusterCIDR"
	LocalModeNodeCIDR            LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// DetectLocal has the parameters for the ways to distinguish connections of pods from others.
type DetectLocal struct {
	// ClusterCIDRs are the addresses of all pods: one range, or one of each family.
	ClusterCIDRs []netip.Prefix
	// BridgeInterface is the bridge on which connections of pods come in.
	BridgeInterface string
	// InterfaceNamePrefix begins the names of the interfaces on which connections of pods come in.
	InterfaceNamePrefix string
}

// IPFamilyPolicy says which families a node must have. Empty accepts the node's families.
type IPFamilyPolicy string

// The policies, named as in a Service.
const (
	SingleStack      IPFamilyPolicy = "SingleStack"
	PreferDualStack  IPFamilyPolicy = "PreferDualStack"
	RequireDualStack IPFamilyPolicy = "RequireDualStack"
)

// NodePortAddresses say on which addresses of the node NodePorts are served: the sum of all that is set.
type NodePortAddresses struct {
	// Primary are the first addresses of each family of the Node object.
	Primary bool
	// Localhost are the loopback addresses.
	Localhost bool
	// All are all addresses but the loopback ones.
	All bool
	// CIDRs are the addresses in these ranges.
	CIDRs []netip.Prefix
}

// Services bounds what Services may ask for, so that the owner of one takes nothing from the others.
type Services struct {
	// AllowedExternalIPs are the ranges that externalIPs may be in. Empty: they may be any address.
	AllowedExternalIPs []netip.Prefix
	// NodeExternalIPs allows externalIPs that are addresses of nodes.
	NodeExternalIPs bool
	// MaxEntries is how many entries are routed for one Service, MaxEntriesPerNamespace for one namespace, and
	// MaxEntriesPerNode for the node. Each endpoint behind a frontend is an entry, and so is each source that it
	// admits. A frontend counts as five, and a port of a family as five more. 0 means no limit; for one Service, the
	// limit is then [brain.MaxEntries]. The default is ByMemory.
	MaxEntries, MaxEntriesPerNamespace, MaxEntriesPerNode int64
}

// Ejection is about endpoints of TCP that do not answer.
type Ejection struct {
	// Enabled ejects them from Services that do not say whether to.
	Enabled bool
	// ProbeTimeout is how long an endpoint has to answer a probe.
	ProbeTimeout Duration
}

// NodeHealth is about endpoints on Nodes that shut down or are not ready. They come last: see [brain.NodeHealth].
type NodeHealth struct {
	// Enabled turns this on, and lets the process watch all Nodes.
	Enabled bool
	// NotReadyAfter is how long a Node must not have been ready.
	NotReadyAfter Duration
	// IgnoreAbovePercent is how many of all Nodes, in percent, may not be ready for this to hold.
	IgnoreAbovePercent int32
}

// Linux has the settings of Linux that do not depend on the dataplane.
type Linux struct {
	Conntrack Conntrack
	// MasqueradeAll masquerades all connections to cluster IPs.
	MasqueradeAll bool
	// OOMScoreAdj is written to /proc/self/oom_score_adj.
	OOMScoreAdj int32
}

// Conntrack has the limits and timeouts of connection tracking. A 0 keeps the kernel's setting.
type Conntrack struct {
	// MaxPerCore is how many connections are tracked, for each CPU.
	MaxPerCore int32
	// Min is how many connections are tracked at least, unless MaxPerCore is 0.
	Min int32
	// TCPEstablishedTimeout is how long an idle TCP connection is tracked.
	TCPEstablishedTimeout Duration
	// TCPCloseWaitTimeout is how long a TCP connection in state CLOSE_WAIT is tracked.
	TCPCloseWaitTimeout Duration
	// TCPBeLiberal takes packets outside the TCP window for valid ones.
	TCPBeLiberal bool
	// UDPTimeout is how long a UDP flow without an answer is tracked.
	UDPTimeout Duration
	// UDPStreamTimeout is how long a UDP flow with answers is tracked.
	UDPStreamTimeout Duration
}

// Windows has the settings of Windows that do not depend on the dataplane.
type Windows struct {
	// RunAsService runs the process as a Windows service.
	RunAsService bool
}

// API has the settings of the node-local API.
type API struct {
	// Listen are the addresses where it is served, such as unix:///run/switchyard/api.sock or tcp://192.0.2.10:10250. If
	// there is none, it is not served.
	Listen []string
	// SocketMode are the permissions of unix sockets, in octal.
	SocketMode string
	// SocketUsers are users whose processes may connect to unix sockets, by name or number, in addition to root and the
	// process's user.
	SocketUsers []string
	// TLSCertFile has the server's certificate. TCP on addresses other than loopback needs it.
	TLSCertFile string
	// TLSKeyFile has the key of the certificate, which needs it.
	TLSKeyFile string
	// ClientCAFile has the authorities of clients' certificates. TLS needs it.
	ClientCAFile string
	// Names also serves the names of all Services to DNS servers. These include Services that are not routed, which are
	// then also watched. Without Listen it has no effect.
	Names bool
}

// Default returns the configuration of an empty v1alpha2 file. It serves /healthz at port 10256 of all addresses, /metrics at
// 127.0.0.1:10249, and the admin API at [DefaultAdminAddress]. A second node in the same network namespace needs other addresses. The
// result shares nothing with other configurations.
func Default() *Config {
	return &Config{
		ClientConnection:    ClientConnection{ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10},
		Logging:             Logging{Format: "text", FlushFrequency: duration(5 * time.Second)},
		HealthzBindAddress:  netip.AddrPortFrom(netip.IPv4Unspecified(), HealthzPort),
		MetricsBindAddress:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), MetricsPort),
		AdminBindAddress:    DefaultAdminAddress,
		BindAddressHardFail: true,
		ConfigHardFail:      true,
		ConfigSyncPeriod:    duration(15 * time.Minute),
		SyncPeriod:          duration(30 * time.Second),
		MinSyncPeriod:       duration(time.Second),
		Ejection:            Ejection{ProbeTimeout: duration(time.Second)},
		NodeHealth:          NodeHealth{NotReadyAfter: duration(40 * time.Second), IgnoreAbovePercent: 55},
		Edge:                defaultEdge(),
		Services:            Services{MaxEntries: ByMemory, MaxEntriesPerNamespace: ByMemory, MaxEntriesPerNode: ByMemory},
		Linux: Linux{
			Conntrack: Conntrack{
				MaxPerCore: 32 * 1024, Min: 128 * 1024,
				TCPEstablishedTimeout: duration(24 * time.Hour), TCPCloseWaitTimeout: duration(time.Hour),
			},
			OOMScoreAdj: -999,
		},
		NFTables:  defaultNFTables(),
		IPTables:  defaultIPTables(),
		IPVS:      defaultIPVS(),
		EBPF:      defaultEBPF(),
		Userspace: defaultUserspace(),
		Winkernel: defaultWinkernel(),
		API:       API{SocketMode: "0600"},
	}
}

// DefaultAdminAddress is where the admin API is served by default. AdminNowhere stands for nowhere.
const (
	DefaultAdminAddress = "unix:///run/switchyard/admin.sock"
	AdminNowhere        = "none"
)

// AdminSocket returns the path of the admin API's socket, empty if it is served nowhere.
func (c *Config) AdminSocket() string {
	path, _ := strings.CutPrefix(c.AdminBindAddress, "unix://")
	if path == AdminNowhere {
		return ""
	}
	return path
}

// The ports that kube-proxy is known to listen on.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

func duration(d time.Duration) Duration { return Duration{Duration: d} }

// Note reports that a field now has another meaning, or no meaning.
type Note struct {
	// File is the name of the file, empty if the field is not from one.
	File string
	// Path leads to the field in the file that was read.
	Path string
	// Text is worded to follow the path.
	Text string
}

// String returns the path and the text.
func (n Note) String() string { return n.Path + ": " + n.Text }
