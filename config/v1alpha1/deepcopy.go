package v1alpha1

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
	out.IPTables.MasqueradeBit = clone(c.IPTables.MasqueradeBit)
	out.IPTables.LocalhostNodePorts = clone(c.IPTables.LocalhostNodePorts)
	out.IPVS.ExcludeCIDRs = slices.Clone(c.IPVS.ExcludeCIDRs)
	out.NFTables.MasqueradeBit = clone(c.NFTables.MasqueradeBit)
	out.NodePortAddresses = slices.Clone(c.NodePortAddresses)
	out.OOMScoreAdj = clone(c.OOMScoreAdj)
	out.Conntrack.MaxPerCore = clone(c.Conntrack.MaxPerCore)
	out.Conntrack.Min = clone(c.Conntrack.Min)
	out.Conntrack.TCPEstablishedTimeout = clone(c.Conntrack.TCPEstablishedTimeout)
	out.Conntrack.TCPCloseWaitTimeout = clone(c.Conntrack.TCPCloseWaitTimeout)
}

// clone returns a pointer to a copy of what p points to.
func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}
