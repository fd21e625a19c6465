package v1alpha2

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/config"
)

// InstanceKind is the kind of a document with the settings that differ between nodes.
const InstanceKind = "KubeProxyInstanceConfiguration"

// KubeProxyInstanceConfiguration has the settings of one node, in addition to a [KubeProxyConfiguration] that many
// nodes share. The fields have the same names and meanings in both. A field that is missing or null sets nothing.
type KubeProxyInstanceConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	HostnameOverride   *string         `json:"hostnameOverride,omitzero"`
	NodeIPOverride     []netip.Addr    `json:"nodeIPOverride,omitzero"`
	HealthzBindAddress *netip.AddrPort `json:"healthzBindAddress,omitzero"`
	MetricsBindAddress *netip.AddrPort `json:"metricsBindAddress,omitzero"`
	API                InstanceAPI     `json:"api,omitzero"`
}

// InstanceAPI is the section api of a [KubeProxyInstanceConfiguration].
type InstanceAPI struct {
	Listen []string `json:"listen,omitzero"`
}

// Apply gives to the settings of c, and returns the paths of the fields that c sets. They share nothing afterwards.
func (c *KubeProxyInstanceConfiguration) Apply(to *config.Config) (paths []string) {
	if c.HostnameOverride != nil {
		to.HostnameOverride, paths = *c.HostnameOverride, append(paths, "hostnameOverride")
	}
	if c.NodeIPOverride != nil {
		to.NodeIPOverride, paths = slices.Clone(c.NodeIPOverride), append(paths, "nodeIPOverride")
	}
	if c.HealthzBindAddress != nil {
		to.HealthzBindAddress, paths = *c.HealthzBindAddress, append(paths, "healthzBindAddress")
	}
	if c.MetricsBindAddress != nil {
		to.MetricsBindAddress, paths = *c.MetricsBindAddress, append(paths, "metricsBindAddress")
	}
	if c.API.Listen != nil {
		to.API.Listen, paths = slices.Clone(c.API.Listen), append(paths, "api.listen")
	}
	return paths
}
