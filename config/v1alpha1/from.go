package v1alpha1

import (
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-net/switchyard/config"
)

// From returns the file of this version that is closest to c, which must be valid, and a note for each lost value. A
// note has the path in v1alpha2 and the value that the file means instead. The file shares nothing with c.
//
// The settings that this version has once for each dataplane are written into the section for the mode of c.
func From(c *config.Config) (*KubeProxyConfiguration, []config.Note) {
	out := &KubeProxyConfiguration{
		APIVersion:                  APIVersion,
		Kind:                        Kind,
		FeatureGates:                maps.Clone(c.FeatureGates),
		ClientConnection:            ClientConnection(c.ClientConnection),
		Logging:                     fromLogging(c.Logging),
		HostnameOverride:            c.HostnameOverride,
		BindAddressHardFail:         c.BindAddressHardFail,
		EnableProfiling:             c.EnableProfiling,
		ShowHiddenMetricsForVersion: c.ShowHiddenMetricsForVersion,
		Mode:                        string(c.Mode),
		DetectLocalMode:             string(c.DetectLocalMode),
		DetectLocal: DetectLocal{
			BridgeInterface: c.DetectLocal.BridgeInterface, InterfaceNamePrefix: c.DetectLocal.InterfaceNamePrefix,
		},
		ClusterCIDR:         strings.Join(texts(c.DetectLocal.ClusterCIDRs), ","),
		NodePortAddresses:   c.NodePortAddresses.Strings(),
		OOMScoreAdj:         &c.Linux.OOMScoreAdj,
		Conntrack:           fromConntrack(c.Linux.Conntrack),
		ConfigSyncPeriod:    c.ConfigSyncPeriod,
		WindowsRunAsService: c.Windows.RunAsService,
	}
	if len(c.NodeIPOverride) > 0 {
		out.BindAddress = c.NodeIPOverride[0].String()
	}
	if c.HealthzBindAddress.IsValid() {
		out.HealthzBindAddress = c.HealthzBindAddress.String()
	}
	if c.MetricsBindAddress.IsValid() {
		out.MetricsBindAddress = c.MetricsBindAddress.String()
	}
	out.fromDataplanes(c)
	out = out.DeepCopy()
	out.SetDefaults()
	if out.lendsBit() { // which is plainer when it is written
		*out.NFTables.MasqueradeBit = *out.IPTables.MasqueradeBit
	}

	back, _, _ := out.Convert()
	var notes []config.Note
	live, restart, none := config.Diff(c, back)
	for _, paths := range [][]string{live, restart, none} {
		for _, path := range paths {
			notes = append(notes, config.Note{Path: path, Text: "is lost: it is " + c.Text(path) + ", and a file of v1alpha1 means " + back.Text(path)})
		}
	}
	return out, notes
}

func (c *KubeProxyConfiguration) fromDataplanes(from *config.Config) {
	c.IPTables.MasqueradeBit, c.IPTables.LocalhostNodePorts = &from.IPTables.MasqueradeBit, &from.IPTables.LocalhostNodePorts
	c.NFTables.MasqueradeBit = &from.NFTables.MasqueradeBit
	if from.Mode == config.ModeIPVS {
		c.IPTables.MasqueradeBit = &from.IPVS.MasqueradeBit
	}
	c.IPVS = IPVS{
		Scheduler: from.IPVS.Scheduler, ExcludeCIDRs: texts(from.IPVS.ExcludeCIDRs), StrictARP: from.IPVS.StrictARP,
		TCPTimeout: from.IPVS.TCPTimeout, TCPFinTimeout: from.IPVS.TCPFinTimeout, UDPTimeout: from.IPVS.UDPTimeout,
	}
	c.Winkernel = Winkernel{
		NetworkName: from.Winkernel.NetworkName, EnableDSR: from.Winkernel.EnableDSR,
		RootHnsEndpointName: from.Winkernel.RootHNSEndpointName, ForwardHealthCheckVip: from.Winkernel.ForwardHealthCheckVIP,
	}
	if vip := from.Winkernel.SourceVIP; vip.IsValid() {
		c.Winkernel.SourceVip = vip.String()
	}
	periods, masquerade := c.selected()
	switch periods {
	case "nftables":
		c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod = from.SyncPeriod, from.MinSyncPeriod
	case "ipvs":
		c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod = from.SyncPeriod, from.MinSyncPeriod
	case "iptables":
		c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod = from.SyncPeriod, from.MinSyncPeriod
	}
	c.NFTables.MasqueradeAll = masquerade == "nftables" && from.Linux.MasqueradeAll
	c.IPTables.MasqueradeAll = masquerade == "iptables" && from.Linux.MasqueradeAll
}

func fromConntrack(c config.Conntrack) Conntrack {
	return Conntrack{
		MaxPerCore: &c.MaxPerCore, Min: &c.Min,
		TCPEstablishedTimeout: &c.TCPEstablishedTimeout, TCPCloseWaitTimeout: &c.TCPCloseWaitTimeout,
		TCPBeLiberal: c.TCPBeLiberal, UDPTimeout: c.UDPTimeout, UDPStreamTimeout: c.UDPStreamTimeout,
	}
}

func fromLogging(l config.Logging) Logging {
	out := Logging{
		Format: l.Format, FlushFrequency: DurationOrNanoseconds{Duration: l.FlushFrequency.Duration}, Verbosity: l.Verbosity,
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

// texts returns the text of each item. A list that is not there becomes an empty one: files show [] rather than null.
func texts[T interface{ String() string }](list []T) []string {
	out := []string{}
	for _, item := range list {
		out = append(out, item.String())
	}
	return out
}
