package v1alpha1

import (
	"maps"
	"net/netip"
	"strings"

	"github.com/switchyard-net/switchyard/config"
)

// Convert returns the configuration of c, which has its defaults. It also returns notes about fields that moved or got
// lost, and the faults of invalid values. Fields at fault keep the defaults of v1alpha2. Paths are paths of this
// version. The result shares nothing with c.
//
// This version has some settings once for each dataplane, and v1alpha2 has them once. The section of the selected mode
// gives the value. The section iptables gives it for the empty mode and for modes without a section. Other values are
// noted, unless they are equal or are the default.
func (c *KubeProxyConfiguration) Convert() (*config.Config, []config.Note, []*config.FieldError) {
	v := converter{in: c, out: config.Default()}
	v.general()
	v.addresses()
	v.detectLocal()
	v.linux()
	v.dataplanes()
	v.sharedByMode()
	return v.out, v.notes, v.errs
}

type converter struct {
	in    *KubeProxyConfiguration
	out   *config.Config
	notes []config.Note
	errs  config.FieldErrors
}

func (v *converter) note(path, text string) {
	v.notes = append(v.notes, config.Note{Path: path, Text: text})
}

func (v *converter) general() {
	in, out := v.in, v.out
	out.FeatureGates = maps.Clone(in.FeatureGates)
	out.ClientConnection = config.ClientConnection(in.ClientConnection)
	out.Logging = config.Logging{
		Format: in.Logging.Format, Verbosity: in.Logging.Verbosity,
		FlushFrequency: config.Duration{Duration: in.Logging.FlushFrequency.Duration},
		Options: config.LogOptions{
			Text: in.Logging.Options.Text.convert(), JSON: in.Logging.Options.JSON.convert(),
		},
	}
	for _, m := range in.Logging.VModule {
		out.Logging.VModule = append(out.Logging.VModule, config.VModule(m))
	}
	out.HostnameOverride = in.HostnameOverride
	out.BindAddressHardFail = in.BindAddressHardFail
	out.EnableProfiling = in.EnableProfiling
	out.ShowHiddenMetricsForVersion = in.ShowHiddenMetricsForVersion
	out.Mode, out.AllowModeFallback = config.Mode(in.Mode), true
	out.ConfigSyncPeriod = in.ConfigSyncPeriod
	// kube-proxy routes them, and clusters on bare metal rely on it.
	out.Services.NodeExternalIPs = true
	out.Windows.RunAsService = in.WindowsRunAsService
	if in.PortRange != "" {
		v.note("portRange", "is dropped: nothing uses it")
	}
}

func (o *LogOutput) convert() config.LogOutput {
	return config.LogOutput{SplitStream: o.SplitStream, InfoBufferSize: o.InfoBufferSize.Value()}
}

func (v *converter) addresses() {
	bind, err := netip.ParseAddr(v.in.BindAddress)
	switch {
	case err != nil:
		v.errs.Add("bindAddress", "must be an IP address such as 192.0.2.10, or 0.0.0.0 for the Node object's addresses, got %q", v.in.BindAddress)
	case !bind.IsUnspecified():
		v.out.NodeIPOverride = []netip.Addr{bind.Unmap()}
		v.note("bindAddress", "becomes nodeIPOverride: ["+bind.Unmap().String()+"]")
	case bind.Is6():
		v.note("bindAddress", "is dropped: it names no address, and the node's addresses come from the Node object")
	}
	v.addrPort("healthzBindAddress", v.in.HealthzBindAddress, &v.out.HealthzBindAddress)
	v.addrPort("metricsBindAddress", v.in.MetricsBindAddress, &v.out.MetricsBindAddress)
	ports, errs := config.ParseNodePortAddresses("nodePortAddresses", v.in.NodePortAddresses)
	v.out.NodePortAddresses = ports
	v.errs = append(v.errs, errs...)
}

// addrPort reads an address that may be empty.
func (v *converter) addrPort(path, text string, to *netip.AddrPort) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil && text != "" {
		v.errs.Add(path, "must be an IP address and port such as 0.0.0.0:10256 or [::]:10256, got %q", text)
		return
	}
	*to = addr
}

func (v *converter) detectLocal() {
	v.out.DetectLocalMode = config.LocalMode(v.in.DetectLocalMode)
	v.out.DetectLocal.BridgeInterface = v.in.DetectLocal.BridgeInterface
	v.out.DetectLocal.InterfaceNamePrefix = v.in.DetectLocal.InterfaceNamePrefix
	if v.in.ClusterCIDR == "" {
		return
	}
	for item := range strings.SplitSeq(v.in.ClusterCIDR, ",") {
		if p, ok := v.cidr("clusterCIDR", strings.TrimSpace(item)); ok {
			v.out.DetectLocal.ClusterCIDRs = append(v.out.DetectLocal.ClusterCIDRs, p)
		}
	}
}

func (v *converter) cidr(path, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		v.errs.Add(path, "must be a CIDR such as 10.244.0.0/16, got %q", text)
	}
	return p, err == nil
}

func (v *converter) linux() {
	in := &v.in.Conntrack
	v.out.Linux.OOMScoreAdj = *v.in.OOMScoreAdj
	v.out.Linux.Conntrack = config.Conntrack{
		MaxPerCore: *in.MaxPerCore, Min: *in.Min,
		TCPEstablishedTimeout: *in.TCPEstablishedTimeout, TCPCloseWaitTimeout: *in.TCPCloseWaitTimeout,
		TCPBeLiberal: in.TCPBeLiberal, UDPTimeout: in.UDPTimeout, UDPStreamTimeout: in.UDPStreamTimeout,
	}
}

func (v *converter) dataplanes() {
	in, out := v.in, v.out
	out.IPTables = config.IPTables{MasqueradeBit: *in.IPTables.MasqueradeBit, LocalhostNodePorts: *in.IPTables.LocalhostNodePorts}
	out.NFTables = config.Default().NFTables
	out.NFTables.MasqueradeBit = *in.NFTables.MasqueradeBit
	if in.lendsBit() {
		out.NFTables.MasqueradeBit = *in.IPTables.MasqueradeBit
		v.note("iptables.masqueradeBit", "is also nftables.masqueradeBit: the empty mode, iptables in kube-proxy, stands for nftables here")
	}
	out.IPVS = config.IPVS{
		MasqueradeBit: *in.IPTables.MasqueradeBit, Scheduler: in.IPVS.Scheduler, StrictARP: in.IPVS.StrictARP,
		TCPTimeout: in.IPVS.TCPTimeout, TCPFinTimeout: in.IPVS.TCPFinTimeout, UDPTimeout: in.IPVS.UDPTimeout,
	}
	for i, text := range in.IPVS.ExcludeCIDRs {
		if p, ok := v.cidr(config.IndexPath("ipvs.excludeCIDRs", i), text); ok {
			out.IPVS.ExcludeCIDRs = append(out.IPVS.ExcludeCIDRs, p)
		}
	}
	out.Winkernel = config.Winkernel{
		NetworkName: in.Winkernel.NetworkName, EnableDSR: in.Winkernel.EnableDSR,
		RootHNSEndpointName: in.Winkernel.RootHnsEndpointName, ForwardHealthCheckVIP: in.Winkernel.ForwardHealthCheckVip,
	}
	if vip := in.Winkernel.SourceVip; vip != "" {
		addr, err := netip.ParseAddr(vip)
		if err != nil {
			v.errs.Add("winkernel.sourceVip", "must be an IP address such as 192.0.2.10, got %q", vip)
		}
		out.Winkernel.SourceVIP = addr
	}
}

// lendsBit reports whether iptables.masqueradeBit counts for nftables: with the empty mode, if only it is set.
func (c *KubeProxyConfiguration) lendsBit() bool {
	unset := *Default().NFTables.MasqueradeBit
	return c.Mode == "" && *c.NFTables.MasqueradeBit == unset && *c.IPTables.MasqueradeBit != unset
}

// selected returns the section with the sync periods, and the section with masqueradeAll.
func (c *KubeProxyConfiguration) selected() (periods, masquerade string) {
	switch config.Mode(c.Mode) {
	case config.ModeNFTables:
		return "nftables", "nftables"
	case config.ModeIPVS:
		return "ipvs", "iptables"
	}
	return "iptables", "iptables"
}

// sharedByMode fills in what v1alpha2 has once.
func (v *converter) sharedByMode() {
	in, unset := v.in, Default()
	periods, masquerade := in.selected()
	sections := []struct {
		name                         string
		sync, minSync                config.Duration
		unsetSync, unsetMin          config.Duration
		hasMasquerade, masqueradeAll bool
	}{
		{"iptables", in.IPTables.SyncPeriod, in.IPTables.MinSyncPeriod, unset.IPTables.SyncPeriod, unset.IPTables.MinSyncPeriod, true, in.IPTables.MasqueradeAll},
		{"ipvs", in.IPVS.SyncPeriod, in.IPVS.MinSyncPeriod, unset.IPVS.SyncPeriod, unset.IPVS.MinSyncPeriod, false, false},
		{"nftables", in.NFTables.SyncPeriod, in.NFTables.MinSyncPeriod, unset.NFTables.SyncPeriod, unset.NFTables.MinSyncPeriod, true, in.NFTables.MasqueradeAll},
	}
	for _, s := range sections {
		if s.name == periods {
			v.out.SyncPeriod, v.out.MinSyncPeriod = s.sync, s.minSync
		}
		if s.name == masquerade {
			v.out.Linux.MasqueradeAll = s.masqueradeAll
		}
	}
	dropped := func(path, by string) { v.note(path, "is dropped: with the mode "+in.modeName()+", "+by+" counts") }
	for _, s := range sections {
		if s.sync != s.unsetSync && s.sync != v.out.SyncPeriod {
			dropped(s.name+".syncPeriod", periods+".syncPeriod")
		}
		if s.minSync != s.unsetMin && s.minSync != v.out.MinSyncPeriod {
			dropped(s.name+".minSyncPeriod", periods+".minSyncPeriod")
		}
		if s.hasMasquerade && s.masqueradeAll && !v.out.Linux.MasqueradeAll {
			dropped(s.name+".masqueradeAll", masquerade+".masqueradeAll")
		}
	}
}

func (c *KubeProxyConfiguration) modeName() string {
	if c.Mode == "" {
		return `""`
	}
	return c.Mode
}

// Path returns the path in c of the field that became the one at path in v1alpha2, for errors found after the conversion.
func (c *KubeProxyConfiguration) Path(path string) string {
	periods, masquerade := c.selected()
	switch path {
	case "syncPeriod", "minSyncPeriod":
		return periods + "." + path
	case "linux.masqueradeAll":
		return masquerade + ".masqueradeAll"
	case "windows.runAsService":
		return "windowsRunAsService"
	case "ipvs.masqueradeBit":
		return "iptables.masqueradeBit"
	case "nftables.masqueradeBit":
		if c.lendsBit() {
			return "iptables.masqueradeBit"
		}
	}
	if strings.HasPrefix(path, "nodeIPOverride") {
		return "bindAddress"
	}
	if strings.HasPrefix(path, "detectLocal.clusterCIDRs") {
		return "clusterCIDR"
	}
	return strings.TrimPrefix(path, "linux.")
}
