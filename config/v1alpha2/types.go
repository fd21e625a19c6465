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

// KubeProxyConfiguration is a configuration file. [Default] returns one with all defaults. docs/config-reference.md
// explains the fields. They have the names, except for case, and the meanings of the fields of [config.Config].
type KubeProxyConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	FeatureGates                       map[string]bool       `json:"featureGates,omitempty"`
	ClientConnection                   ClientConnection      `json:"clientConnection"`
	Logging                            Logging               `json:"logging"`
	ServiceProxyName                   string                `json:"serviceProxyName"`
	HostnameOverride                   string                `json:"hostnameOverride"`
	NodeIPOverride                     []netip.Addr          `json:"nodeIPOverride"`
	IPFamilyPolicy                     config.IPFamilyPolicy `json:"ipFamilyPolicy"`
	HealthzBindAddress                 netip.AddrPort        `json:"healthzBindAddress"`
	MetricsBindAddress                 netip.AddrPort        `json:"metricsBindAddress"`
	AdminBindAddress                   string                `json:"adminBindAddress"`
	UIBindAddress                      netip.AddrPort        `json:"uiBindAddress"`
	BindAddressHardFail                bool                  `json:"bindAddressHardFail"`
	ConfigHardFail                     bool                  `json:"configHardFail"`
	EnableProfiling                    bool                  `json:"enableProfiling"`
	ShowHiddenMetricsForVersion        string                `json:"showHiddenMetricsForVersion"`
	Mode                               config.Mode           `json:"mode"`
	AllowModeFallback                  bool                  `json:"allowModeFallback"`
	DetectLocalMode                    config.LocalMode      `json:"detectLocalMode"`
	DetectLocal                        DetectLocal           `json:"detectLocal"`
	NodePortAddresses                  []string              `json:"nodePortAddresses"`
	ResetConnectionsToRemovedEndpoints bool                  `json:"resetConnectionsToRemovedEndpoints"`
	Services                           Services              `json:"services"`
	ConfigSyncPeriod                   config.Duration       `json:"configSyncPeriod"`
	SyncPeriod                         config.Duration       `json:"syncPeriod"`
	MinSyncPeriod                      config.Duration       `json:"minSyncPeriod"`

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
	Kubeconfig         string  `json:"kubeconfig"`
	AcceptContentTypes string  `json:"acceptContentTypes"`
	ContentType        string  `json:"contentType"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

// Logging is the section logging.
type Logging struct {
	Format         string          `json:"format"`
	FlushFrequency config.Duration `json:"flushFrequency"`
	Verbosity      int32           `json:"verbosity"`
	VModule        []VModule       `json:"vmodule,omitempty"`
	Options        LogOptions      `json:"options"`
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
	SplitStream    bool              `json:"splitStream"`
	InfoBufferSize resource.Quantity `json:"infoBufferSize"`
}

// DetectLocal is the section detectLocal.
type DetectLocal struct {
	ClusterCIDRs        []netip.Prefix `json:"clusterCIDRs"`
	BridgeInterface     string         `json:"bridgeInterface"`
	InterfaceNamePrefix string         `json:"interfaceNamePrefix"`
}

// Services is the section services.
type Services struct {
	AllowedExternalIPs     []netip.Prefix `json:"allowedExternalIPs"`
	NodeExternalIPs        bool           `json:"nodeExternalIPs"`
	MaxEntries             int64          `json:"maxEntries"`
	MaxEntriesPerNamespace int64          `json:"maxEntriesPerNamespace"`
	MaxEntriesPerNode      int64          `json:"maxEntriesPerNode"`
}

// Linux is the section linux.
type Linux struct {
	Conntrack     Conntrack `json:"conntrack"`
	MasqueradeAll bool      `json:"masqueradeAll"`
	OOMScoreAdj   int32     `json:"oomScoreAdj"`
}

// Conntrack is the section linux.conntrack.
type Conntrack struct {
	MaxPerCore            int32           `json:"maxPerCore"`
	Min                   int32           `json:"min"`
	TCPEstablishedTimeout config.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   config.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool            `json:"tcpBeLiberal"`
	UDPTimeout            config.Duration `json:"udpTimeout"`
	UDPStreamTimeout      config.Duration `json:"udpStreamTimeout"`
}

// Windows is the section windows.
type Windows struct {
	RunAsService bool `json:"runAsService"`
}

// API is the section api.
type API struct {
	Listen       []string `json:"listen"`
	SocketMode   string   `json:"socketMode"`
	SocketUsers  []string `json:"socketUsers"`
	TLSCertFile  string   `json:"tlsCertFile"`
	TLSKeyFile   string   `json:"tlsKeyFile"`
	ClientCAFile string   `json:"clientCAFile"`
	Names        bool     `json:"names"`
}
