package config

import (
	"maps"
	"slices"
)

// DeepCopy returns a copy that shares nothing with c, nil for nil.
func (c *Config) DeepCopy() *Config {
	if c == nil {
		return nil
	}
	out := new(Config)
	c.DeepCopyInto(out)
	return out
}

// DeepCopyInto makes out a copy that shares nothing with c.
func (c *Config) DeepCopyInto(out *Config) {
	*out = *c
	out.FeatureGates = maps.Clone(c.FeatureGates)
	out.Logging.VModule = slices.Clone(c.Logging.VModule)
	out.NodeIPOverride = slices.Clone(c.NodeIPOverride)
	out.DetectLocal.ClusterCIDRs = slices.Clone(c.DetectLocal.ClusterCIDRs)
	out.NodePortAddresses.CIDRs = slices.Clone(c.NodePortAddresses.CIDRs)
	out.AcceptAnnotationsOf = slices.Clone(c.AcceptAnnotationsOf)
	out.Edge.Frontends, out.Edge.Interfaces = slices.Clone(c.Edge.Frontends), slices.Clone(c.Edge.Interfaces)
	out.Services.AllowedExternalIPs = slices.Clone(c.Services.AllowedExternalIPs)
	out.IPVS.ExcludeCIDRs = slices.Clone(c.IPVS.ExcludeCIDRs)
	out.EBPF.MeshPorts = slices.Clone(c.EBPF.MeshPorts)
	out.Userspace.Listen = slices.Clone(c.Userspace.Listen)
	out.API.Listen = slices.Clone(c.API.Listen)
	out.API.SocketUsers = slices.Clone(c.API.SocketUsers)
}
