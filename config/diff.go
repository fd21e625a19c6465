package config

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Diff returns the sorted paths of the fields that differ between two configurations, in three groups. The first can be
// applied while the process runs, the second needs a restart, and the third has no effect in this release.
func Diff(old, new *Config) (live, restart, none []string) {
	values := map[string]reflect.Value{}
	leaves(reflect.ValueOf(old).Elem(), "", func(path string, v reflect.Value) { values[path] = v })
	leaves(reflect.ValueOf(new).Elem(), "", func(path string, v reflect.Value) {
		if same(values[path], v) {
			return
		}
		switch name := canonical()[strings.ToLower(path)]; effects[name] {
		case effectLive:
			live = append(live, name)
		case effectRestart:
			restart = append(restart, name)
		case effectNone:
			none = append(none, name)
		}
	})
	slices.Sort(live)
	slices.Sort(restart)
	slices.Sort(none)
	return live, restart, none
}

// WithoutEffect returns the sorted paths of the fields of c that are not at their defaults and have no effect in this
// release. For featureGates, it names the gates that turn off a feature that is always on here.
func (c *Config) WithoutEffect() []string {
	_, _, none := Diff(Default(), c)
	for path, bit := range map[string]int32{
		"nftables.masqueradeBit": c.NFTables.MasqueradeBit,
		"iptables.masqueradeBit": c.IPTables.MasqueradeBit,
		"ipvs.masqueradeBit":     c.IPVS.MasqueradeBit,
	} {
		if bit != c.MasqueradeBit() && bit != Default().MasqueradeBit() {
			none = append(none, path)
		}
	}
	for _, name := range alwaysOn {
		if on, set := c.FeatureGates[name]; set && !on {
			none = append(none, "featureGates."+name)
		}
	}
	slices.Sort(none)
	return none
}

// same compares values. There is no difference between lists or maps that are empty and those that are not there.
func same(a, b reflect.Value) bool {
	if k := a.Kind(); (k == reflect.Slice || k == reflect.Map) && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// effect says when a changed field takes effect.
type effect uint8

const (
	// effectLive fields are applied while the process runs. Some are applied at once. Others replace a part of the
	// process, and the new part takes over the state in the kernel.
	effectLive effect = iota + 1
	// effectRestart fields take effect when the process is started again.
	effectRestart
	// effectNone fields are only read, checked and converted. They are about other platforms, about dataplanes that are
	// not part of this release, or about features that Switchyard does not have.
	effectNone
)

// effects has every field. A test ensures that none is missing.
var effects = map[string]effect{
	"featureGates": effectLive,

	"clientConnection.kubeconfig":         effectLive,
	"clientConnection.acceptContentTypes": effectLive,
	"clientConnection.contentType":        effectLive,
	"clientConnection.qps":                effectLive,
	"clientConnection.burst":              effectLive,

	"logging.format":                      effectRestart,
	"logging.flushFrequency":              effectNone,
	"logging.verbosity":                   effectLive,
	"logging.vmodule":                     effectLive,
	"logging.options.text.splitStream":    effectRestart,
	"logging.options.text.infoBufferSize": effectNone,
	"logging.options.json.splitStream":    effectRestart,
	"logging.options.json.infoBufferSize": effectNone,

	"serviceProxyName":            effectLive,
	"hostnameOverride":            effectLive,
	"nodeIPOverride":              effectLive,
	"ipFamilyPolicy":              effectLive,
	"healthzBindAddress":          effectLive,
	"metricsBindAddress":          effectLive,
	"adminBindAddress":            effectLive,
	"uiBindAddress":               effectLive,
	"bindAddressHardFail":         effectLive,
	"configHardFail":              effectLive,
	"enableProfiling":             effectLive,
	"showHiddenMetricsForVersion": effectNone,

	"mode":                               effectLive,
	"allowModeFallback":                  effectLive,
	"detectLocalMode":                    effectLive,
	"detectLocal.clusterCIDRs":           effectLive,
	"detectLocal.bridgeInterface":        effectLive,
	"detectLocal.interfaceNamePrefix":    effectLive,
	"nodePortAddresses":                  effectLive,
	"resetConnectionsToRemovedEndpoints": effectLive,
	"ping":                               effectLive,
	"acceptAnnotationsOf":                effectLive,
	"ejection.enabled":                   effectLive,
	"ejection.probeTimeout":              effectLive,
	"nodeHealth.enabled":                 effectLive,
	"nodeHealth.notReadyAfter":           effectLive,
	"nodeHealth.ignoreAbovePercent":      effectLive,
	"edge.mode":                          effectLive,
	"edge.frontends":                     effectLive,
	"edge.services":                      effectLive,
	"edge.interfaces":                    effectLive,
	"edge.port":                          effectLive,
	"edge.markBit":                       effectLive,
	"edge.mtu":                           effectLive,
	"edge.tableSize":                     effectLive,
	"edge.maxSlots":                      effectLive,
	"edge.trustNetwork":                  effectLive,
	"edge.drain":                         effectLive,
	"services.allowedExternalIPs":        effectLive,
	"services.nodeExternalIPs":           effectLive,
	"services.maxEntries":                effectLive,
	"services.maxEntriesPerNamespace":    effectLive,
	"services.maxEntriesPerNode":         effectLive,
	"configSyncPeriod":                   effectLive,
	"syncPeriod":                         effectLive,
	"minSyncPeriod":                      effectLive,

	"linux.conntrack.maxPerCore":            effectLive,
	"linux.conntrack.min":                   effectLive,
	"linux.conntrack.tcpEstablishedTimeout": effectLive,
	"linux.conntrack.tcpCloseWaitTimeout":   effectLive,
	"linux.conntrack.tcpBeLiberal":          effectLive,
	"linux.conntrack.udpTimeout":            effectLive,
	"linux.conntrack.udpStreamTimeout":      effectLive,
	"linux.masqueradeAll":                   effectLive,
	"linux.oomScoreAdj":                     effectLive,
	"windows.runAsService":                  effectRestart,

	"nftables.masqueradeBit":          effectLive,
	"nftables.maxAffinityClients":     effectLive,
	"nftables.counters":               effectLive,
	"iptables.masqueradeBit":          effectLive,
	"iptables.localhostNodePorts":     effectLive,
	"ipvs.masqueradeBit":              effectLive,
	"ipvs.scheduler":                  effectLive,
	"ipvs.excludeCIDRs":               effectLive,
	"ipvs.strictARP":                  effectLive,
	"ipvs.tcpTimeout":                 effectLive,
	"ipvs.tcpFinTimeout":              effectLive,
	"ipvs.udpTimeout":                 effectLive,
	"ebpf.cgroupPath":                 effectLive,
	"ebpf.pods":                       effectLive,
	"ebpf.meshPorts":                  effectLive,
	"ebpf.namespaceMap":               effectRestart,
	"userspace.policy":                effectLive,
	"userspace.dialTimeout":           effectLive,
	"userspace.dialAttempts":          effectLive,
	"userspace.ejectAfterFailures":    effectLive,
	"userspace.ejectionTime":          effectLive,
	"userspace.proxyProtocol":         effectLive,
	"userspace.udpIdleTimeout":        effectLive,
	"userspace.maxConnections":        effectLive,
	"userspace.maxUDPFlows":           effectLive,
	"userspace.maxAffinityClients":    effectLive,
	"userspace.drainTimeout":          effectLive,
	"userspace.listen":                effectRestart,
	"winkernel.networkName":           effectLive,
	"winkernel.sourceVip":             effectLive,
	"winkernel.enableDSR":             effectLive,
	"winkernel.rootHnsEndpointName":   effectLive,
	"winkernel.forwardHealthCheckVip": effectLive,

	"api.listen":       effectLive,
	"api.socketMode":   effectLive,
	"api.socketUsers":  effectLive,
	"api.tlsCertFile":  effectLive,
	"api.tlsKeyFile":   effectLive,
	"api.clientCAFile": effectLive,
	"api.names":        effectLive,
}

// canonical maps paths in lower case to how files spell them.
var canonical = sync.OnceValue(func() map[string]string {
	names := make(map[string]string, len(effects))
	for name := range effects {
		names[strings.ToLower(name)] = name
	}
	return names
})
