// Package v1alpha1 has the configuration file of version kubeproxy.config.k8s.io/v1alpha1, the version that kube-proxy
// reads and kubeadm writes.
//
// As in kube-proxy, [KubeProxyConfiguration.SetDefaults] gives a field its default if it is missing, null or, without a
// pointer, zero. [KubeProxyConfiguration.Convert] converts a file to v1alpha2, and [From] converts it back.
package v1alpha1

import (
	"encoding/json"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-net/switchyard/config"
)

// APIVersion and Kind are the apiVersion and kind of a file of this version.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// KubeProxyConfiguration is a configuration file.
type KubeProxyConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// FeatureGates switches features by name.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// ClientConnection says how the API server is reached.
	ClientConnection ClientConnection `json:"clientConnection"`
	// Logging has the levels and the format of the log.
	Logging Logging `json:"logging"`
	// HostnameOverride is the name of this Node. Empty means the host's name.
	HostnameOverride string `json:"hostnameOverride"`
	// BindAddress is the node's primary IP, unless it is 0.0.0.0 or ::. Nothing is bound to it. Default 0.0.0.0. It lands in
	// nodeIPOverride if it is a specific address; otherwise its family decides the defaults of the two addresses below.
	BindAddress string `json:"bindAddress"`
	// HealthzBindAddress is an IP and port, or an IP with port 10256. Default 0.0.0.0:10256, or [::]:10256 if BindAddress is
	// an IPv6 address.
	HealthzBindAddress string `json:"healthzBindAddress"`
	// MetricsBindAddress is an IP and port, or an IP with port 10249. Default 127.0.0.1:10249, or [::1]:10249 if BindAddress
	// is an IPv6 address.
	MetricsBindAddress string `json:"metricsBindAddress"`
	// BindAddressHardFail ends the process when an address cannot be bound. The default is false, unlike in v1alpha2.
	BindAddressHardFail bool `json:"bindAddressHardFail"`
	// EnableProfiling serves /debug/pprof at MetricsBindAddress.
	EnableProfiling bool `json:"enableProfiling"`
	// ShowHiddenMetricsForVersion is the version of Kubernetes whose hidden metrics are shown.
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`

	// Mode is iptables, ipvs, nftables, kernelspace, one of the modes that kube-proxy lacks, or empty. It decides which of
	// the sections below gives the sync periods and masqueradeAll.
	Mode string `json:"mode"`
	// IPTables, IPVS, NFTables and Winkernel are the sections of the dataplanes.
	IPTables  IPTables  `json:"iptables"`
	IPVS      IPVS      `json:"ipvs"`
	NFTables  NFTables  `json:"nftables"`
	Winkernel Winkernel `json:"winkernel"`

	// DetectLocalMode specifies how connections of pods are distinguished from others. Empty means ClusterCIDR.
	DetectLocalMode string `json:"detectLocalMode"`
	// DetectLocal has what DetectLocalMode needs.
	DetectLocal DetectLocal `json:"detectLocal"`
	// ClusterCIDR has the addresses of all pods: a range, or one of each family with a comma between them. It lands in
	// detectLocal.clusterCIDRs.
	ClusterCIDR string `json:"clusterCIDR"`
	// NodePortAddresses are ranges and keywords.
	NodePortAddresses []string `json:"nodePortAddresses"`
	// OOMScoreAdj lands in linux.oomScoreAdj. Default -999.
	OOMScoreAdj *int32 `json:"oomScoreAdj"`
	// Conntrack lands in linux.conntrack.
	Conntrack Conntrack `json:"conntrack"`
	// ConfigSyncPeriod is how long a watch of the API server lasts at least. Default 15m.
	ConfigSyncPeriod config.Duration `json:"configSyncPeriod"`
	// PortRange is dropped: nothing uses it.
	PortRange string `json:"portRange"`
	// WindowsRunAsService lands in windows.runAsService.
	WindowsRunAsService bool `json:"windowsRunAsService,omitempty"`
}

// ClientConnection is the section clientConnection.
type ClientConnection struct {
	Kubeconfig         string `json:"kubeconfig"`
	AcceptContentTypes string `json:"acceptContentTypes"`
	// ContentType has the default application/vnd.kubernetes.protobuf.
	ContentType string `json:"contentType"`
	// QPS has the default 5.
	QPS float32 `json:"qps"`
	// Burst has the default 10.
	Burst int32 `json:"burst"`
}

// Logging is the section logging.
type Logging struct {
	// Format has the default text.
	Format string `json:"format,omitempty"`
	// FlushFrequency has the default 5s.
	FlushFrequency DurationOrNanoseconds `json:"flushFrequency"`
	Verbosity      int32                 `json:"verbosity"`
	VModule        []VModule             `json:"vmodule,omitempty"`
	Options        LogOptions            `json:"options"`
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
	SplitStream    bool              `json:"splitStream,omitempty"`
	InfoBufferSize resource.Quantity `json:"infoBufferSize"`
}

// IPTables is the section iptables.
type IPTables struct {
	// MasqueradeBit lands in iptables.masqueradeBit and ipvs.masqueradeBit, which has no other source in this version. If
	// Mode is empty, which means iptables to kube-proxy, and nftables.masqueradeBit is not set, it also lands there. Default
	// 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// MasqueradeAll lands in linux.masqueradeAll, unless Mode is nftables.
	MasqueradeAll bool `json:"masqueradeAll"`
	// LocalhostNodePorts serves NodePorts on loopback addresses. The default is true, unlike in v1alpha2.
	LocalhostNodePorts *bool `json:"localhostNodePorts"`
	// SyncPeriod lands in syncPeriod, unless Mode is nftables or ipvs. Default 30s.
	SyncPeriod config.Duration `json:"syncPeriod"`
	// MinSyncPeriod lands in minSyncPeriod, unless Mode is nftables or ipvs. Default 1s.
	MinSyncPeriod config.Duration `json:"minSyncPeriod"`
}

// IPVS is the section ipvs.
type IPVS struct {
	// SyncPeriod lands in syncPeriod if Mode is ipvs. Default 30s.
	SyncPeriod config.Duration `json:"syncPeriod"`
	// MinSyncPeriod lands in minSyncPeriod if Mode is ipvs. The default is 0.
	MinSyncPeriod config.Duration `json:"minSyncPeriod"`
	Scheduler     string          `json:"scheduler"`
	ExcludeCIDRs  []string        `json:"excludeCIDRs"`
	StrictARP     bool            `json:"strictARP"`
	TCPTimeout    config.Duration `json:"tcpTimeout"`
	TCPFinTimeout config.Duration `json:"tcpFinTimeout"`
	UDPTimeout    config.Duration `json:"udpTimeout"`
}

// NFTables is the section nftables.
type NFTables struct {
	// MasqueradeBit lands in nftables.masqueradeBit. Default 14, or see [IPTables].
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// MasqueradeAll lands in linux.masqueradeAll if Mode is nftables.
	MasqueradeAll bool `json:"masqueradeAll"`
	// SyncPeriod lands in syncPeriod if Mode is nftables. Default 30s.
	SyncPeriod config.Duration `json:"syncPeriod"`
	// MinSyncPeriod lands in minSyncPeriod if Mode is nftables. Default 1s.
	MinSyncPeriod config.Duration `json:"minSyncPeriod"`
}

// Conntrack is the section conntrack. It lands in linux.conntrack.
type Conntrack struct {
	// MaxPerCore has the default 32768.
	MaxPerCore *int32 `json:"maxPerCore"`
	// Min has the default 131072.
	Min *int32 `json:"min"`
	// TCPEstablishedTimeout has the default 24h.
	TCPEstablishedTimeout *config.Duration `json:"tcpEstablishedTimeout"`
	// TCPCloseWaitTimeout has the default 1h.
	TCPCloseWaitTimeout *config.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal        bool             `json:"tcpBeLiberal"`
	UDPTimeout          config.Duration  `json:"udpTimeout"`
	UDPStreamTimeout    config.Duration  `json:"udpStreamTimeout"`
}

// Winkernel is the section winkernel.
type Winkernel struct {
	NetworkName string `json:"networkName"`
	SourceVip   string `json:"sourceVip"`
	EnableDSR   bool   `json:"enableDSR"`
	// RootHnsEndpointName has the default cbr0, like kube-proxy's flag.
	RootHnsEndpointName   string `json:"rootHnsEndpointName"`
	ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
}

// DetectLocal is the section detectLocal.
type DetectLocal struct {
	BridgeInterface     string `json:"bridgeInterface"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

// DurationOrNanoseconds is a duration written as text, such as 5s, or as a number of nanoseconds, as kubeadm does.
type DurationOrNanoseconds struct{ time.Duration }

// MarshalJSON returns the duration as text.
func (d DurationOrNanoseconds) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads both forms.
func (d *DurationOrNanoseconds) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		var v config.Duration
		err := v.UnmarshalText([]byte(text))
		d.Duration = v.Duration
		return err
	}
	var n int64
	if err := json.Unmarshal(data, &n); err != nil {
		return errors.New("must be a duration such as 5s, or a number of nanoseconds")
	}
	d.Duration = time.Duration(n)
	return nil
}
