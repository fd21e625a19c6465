package v1alpha2

import (
	"maps"
	"slices"
)

// DeepCopy returns a copy that shares nothing with c, nil for nil.
func (c *KubeProxyConfiguration) DeepCopy() *KubeProxyConfiguration {
	if c == nil {
		return nil
	}
	out := new(KubeProxyConfiguration)
	c.DeepCopyInto(out)
	return out
}

// DeepCopyInto makes out a copy that shares nothing with c.
func (c *KubeProxyConfiguration) DeepCopyInto(out *KubeProxyConfiguration) {
	*out = *c
	out.FeatureGates = maps.Clone(c.FeatureGates)
	out.Logging.VModule = slices.Clone(c.Logging.VModule)
	out.Logging.Options.Text.InfoBufferSize = c.Logging.Options.Text.InfoBufferSize.DeepCopy()
	out.Logging.Options.JSON.InfoBufferSize = c.Logging.Options.JSON.InfoBufferSize.DeepCopy()
	out.NodeIPOverride = slices.Clone(c.NodeIPOverride)
	out.DetectLocal.ClusterCIDRs = slices.Clone(c.DetectLocal.ClusterCIDRs)
	out.NodePortAddresses = slices.Clone(c.NodePortAddresses)
	out.AcceptAnnotationsOf = slices.Clone(c.AcceptAnnotationsOf)
	out.Edge.Frontends, out.Edge.Interfaces = slices.Clone(c.Edge.Frontends), slices.Clone(c.Edge.Interfaces)
	out.Services.AllowedExternalIPs = slices.Clone(c.Services.AllowedExternalIPs)
	out.IPVS.ExcludeCIDRs = slices.Clone(c.IPVS.ExcludeCIDRs)
	out.EBPF.MeshPorts = slices.Clone(c.EBPF.MeshPorts)
	out.Userspace.Listen = slices.Clone(c.Userspace.Listen)
	out.API.Listen = slices.Clone(c.API.Listen)
	out.API.SocketUsers = slices.Clone(c.API.SocketUsers)
}

// DeepCopy returns a copy that shares nothing with c, nil for nil.
func (c *KubeProxyInstanceConfiguration) DeepCopy() *KubeProxyInstanceConfiguration {
	if c == nil {
		return nil
	}
	out := new(KubeProxyInstanceConfiguration)
	c.DeepCopyInto(out)
	return out
}

// DeepCopyInto makes out a copy that shares nothing with c.
func (c *KubeProxyInstanceConfiguration) DeepCopyInto(out *KubeProxyInstanceConfiguration) {
	*out = *c
	if c.HostnameOverride != nil {
		out.HostnameOverride = new(*c.HostnameOverride)
	}
	out.NodeIPOverride = slices.Clone(c.NodeIPOverride)
	if c.HealthzBindAddress != nil {
		out.HealthzBindAddress = new(*c.HealthzBindAddress)
	}
	if c.MetricsBindAddress != nil {
		out.MetricsBindAddress = new(*c.MetricsBindAddress)
	}
	out.API.Listen = slices.Clone(c.API.Listen)
}
