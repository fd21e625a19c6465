package v1alpha2

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-net/switchyard/config"
)

// Default returns a file with all defaults.
func Default() *KubeProxyConfiguration { return From(config.Default()) }

// Convert returns the configuration of the file, and the faults of invalid values; the fields at fault keep their
// defaults. The result shares nothing with c.
func (c *KubeProxyConfiguration) Convert() (*config.Config, []*config.FieldError) {
	nodePorts, errs := config.ParseNodePortAddresses("nodePortAddresses", c.NodePortAddresses)
	out := &config.Config{
		FeatureGates:                       maps.Clone(c.FeatureGates),
		ClientConnection:                   config.ClientConnection(c.ClientConnection),
		Logging:                            c.Logging.convert(),
		ServiceProxyName:                   c.ServiceProxyName,
		HostnameOverride:                   c.HostnameOverride,
		NodeIPOverride:                     slices.Clone(c.NodeIPOverride),
		IPFamilyPolicy:                     c.IPFamilyPolicy,
		HealthzBindAddress:                 c.HealthzBindAddress,
		MetricsBindAddress:                 c.MetricsBindAddress,
		AdminBindAddress:                   c.AdminBindAddress,
		UIBindAddress:                      c.UIBindAddress,
		BindAddressHardFail:                c.BindAddressHardFail,
		ConfigHardFail:                     c.ConfigHardFail,
		EnableProfiling:                    c.EnableProfiling,
		ShowHiddenMetricsForVersion:        c.ShowHiddenMetricsForVersion,
		Mode:                               c.Mode,
		AllowModeFallback:                  c.AllowModeFallback,
		DetectLocalMode:                    c.DetectLocalMode,
		DetectLocal:                        config.DetectLocal(c.DetectLocal),
		NodePortAddresses:                  nodePorts,
		ResetConnectionsToRemovedEndpoints: c.ResetConnectionsToRemovedEndpoints,
		Ping:                               c.Ping,
		AcceptAnnotationsOf:                slices.Clone(c.AcceptAnnotationsOf),
		Ejection:                           config.Ejection(c.Ejection),
		NodeHealth:                         config.NodeHealth(c.NodeHealth),
		Edge:                               c.Edge,
		Services:                           config.Services(c.Services),
		ConfigSyncPeriod:                   c.ConfigSyncPeriod,
		SyncPeriod:                         c.SyncPeriod,
		MinSyncPeriod:                      c.MinSyncPeriod,
		Linux: config.Linux{
			Conntrack: config.Conntrack(c.Linux.Conntrack), MasqueradeAll: c.Linux.MasqueradeAll, OOMScoreAdj: c.Linux.OOMScoreAdj,
		},
		Windows:   config.Windows(c.Windows),
		NFTables:  c.NFTables,
		IPTables:  c.IPTables,
		IPVS:      c.IPVS,
		EBPF:      c.EBPF,
		Userspace: c.Userspace,
		Winkernel: c.Winkernel,
		API:       config.API(c.API),
	}
	out.Edge.Frontends, out.Edge.Interfaces = slices.Clone(c.Edge.Frontends), slices.Clone(c.Edge.Interfaces)
	out.Services.AllowedExternalIPs = slices.Clone(c.Services.AllowedExternalIPs)
	out.DetectLocal.ClusterCIDRs = slices.Clone(c.DetectLocal.ClusterCIDRs)
	out.IPVS.ExcludeCIDRs = slices.Clone(c.IPVS.ExcludeCIDRs)
	out.API.Listen, out.API.SocketUsers = slices.Clone(c.API.Listen), slices.Clone(c.API.SocketUsers)
	return out, errs
}

// From returns the file that has the settings of c. It shares no memory with c.
func From(c *config.Config) *KubeProxyConfiguration {
	out := &KubeProxyConfiguration{
		APIVersion:                         APIVersion,
		Kind:                               Kind,
		FeatureGates:                       maps.Clone(c.FeatureGates),
		ClientConnection:                   ClientConnection(c.ClientConnection),
		Logging:                            fromLogging(c.Logging),
		ServiceProxyName:                   c.ServiceProxyName,
		HostnameOverride:                   c.HostnameOverride,
		NodeIPOverride:                     clone(c.NodeIPOverride),
		IPFamilyPolicy:                     c.IPFamilyPolicy,
		HealthzBindAddress:                 c.HealthzBindAddress,
		MetricsBindAddress:                 c.MetricsBindAddress,
		AdminBindAddress:                   c.AdminBindAddress,
		UIBindAddress:                      c.UIBindAddress,
		BindAddressHardFail:                c.BindAddressHardFail,
		ConfigHardFail:                     c.ConfigHardFail,
		EnableProfiling:                    c.EnableProfiling,
		ShowHiddenMetricsForVersion:        c.ShowHiddenMetricsForVersion,
		Mode:                               c.Mode,
		AllowModeFallback:                  c.AllowModeFallback,
		DetectLocalMode:                    c.DetectLocalMode,
		DetectLocal:                        DetectLocal(c.DetectLocal),
		NodePortAddresses:                  c.NodePortAddresses.Strings(),
		ResetConnectionsToRemovedEndpoints: c.ResetConnectionsToRemovedEndpoints,
		Ping:                               c.Ping,
		AcceptAnnotationsOf:                clone(c.AcceptAnnotationsOf),
		Ejection:                           Ejection(c.Ejection),
		NodeHealth:                         NodeHealth(c.NodeHealth),
		Edge:                               c.Edge,
		Services:                           Services(c.Services),
		ConfigSyncPeriod:                   c.ConfigSyncPeriod,
		SyncPeriod:                         c.SyncPeriod,
		MinSyncPeriod:                      c.MinSyncPeriod,
		Linux: Linux{
			Conntrack: Conntrack(c.Linux.Conntrack), MasqueradeAll: c.Linux.MasqueradeAll, OOMScoreAdj: c.Linux.OOMScoreAdj,
		},
		Windows:   Windows(c.Windows),
		NFTables:  c.NFTables,
		IPTables:  c.IPTables,
		IPVS:      c.IPVS,
		EBPF:      c.EBPF,
		Userspace: c.Userspace,
		Winkernel: c.Winkernel,
		API:       API(c.API),
	}
	out.Edge.Frontends, out.Edge.Interfaces = clone(c.Edge.Frontends), clone(c.Edge.Interfaces)
	out.Services.AllowedExternalIPs = clone(c.Services.AllowedExternalIPs)
	out.DetectLocal.ClusterCIDRs = clone(c.DetectLocal.ClusterCIDRs)
	out.IPVS.ExcludeCIDRs = clone(c.IPVS.ExcludeCIDRs)
	out.Userspace.Listen = clone(c.Userspace.Listen)
	out.API.Listen, out.API.SocketUsers = clone(c.API.Listen), clone(c.API.SocketUsers)
	return out
}

// clone copies a list. One that is not there becomes an empty one: files show [] rather than null.
func clone[T any](list []T) []T { return append([]T{}, list...) }

func (l *Logging) convert() config.Logging {
	out := config.Logging{
		Format: l.Format, FlushFrequency: l.FlushFrequency, Verbosity: l.Verbosity,
		Options: config.LogOptions{Text: l.Options.Text.convert(), JSON: l.Options.JSON.convert()},
	}
	for _, m := range l.VModule {
		out.VModule = append(out.VModule, config.VModule(m))
	}
	return out
}

func (o *LogOutput) convert() config.LogOutput {
	return config.LogOutput{SplitStream: o.SplitStream, InfoBufferSize: o.InfoBufferSize.Value()}
}

func fromLogging(l config.Logging) Logging {
	out := Logging{
		Format: l.Format, FlushFrequency: l.FlushFrequency, Verbosity: l.Verbosity,
		Options: LogOptions{Text: fromOutput(l.Options.Text), JSON: fromOutput(l.Options.JSON)},
	}
	for _, m := range l.VModule {
		out.VModule = append(out.VModule, VModule(m))
	}
	return out
}

func fromOutput(o config.LogOutput) LogOutput {
	return LogOutput{SplitStream: o.SplitStream, InfoBufferSize: *resource.NewQuantity(o.InfoBufferSize, resource.BinarySI)}
}
