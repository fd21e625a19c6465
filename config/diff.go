package config

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Diff returns the paths of the fields that differ between two configurations, sorted: those that can be applied while the
// process runs, and those that need a restart.
func Diff(old, new *Config) (live, restart []string) {
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
		}
	})
	slices.Sort(live)
	slices.Sort(restart)
	return live, restart
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
	// effectLive fields are applied while the process runs: at once, or by replacing a part of the process, which takes over
	// what the kernel holds.
	effectLive effect = iota + 1
	// effectRestart fields take effect when the process is started again.
	effectRestart
)

// effects has every field. A test sees to it that none is forgotten.
var effects = map[string]effect{
	"featureGates": effectRestart,

	"clientConnection.kubeconfig":         effectLive,
	"clientConnection.acceptContentTypes": effectLive,
	"clientConnection.contentType":        effectLive,
	"clientConnection.qps":                effectLive,
	"clientConnection.burst":              effectLive,

	"logging.format":                      effectRestart,
	"logging.flushFrequency":              effectRestart,
	"logging.verbosity":                   effectLive,
	"logging.vmodule":                     effectLive,
	"logging.options.text.splitStream":    effectRestart,
	"logging.options.text.infoBufferSize": effectRestart,
	"logging.options.json.splitStream":    effectRestart,
	"logging.options.json.infoBufferSize": effectRestart,

	"hostnameOverride":            effectLive,
	"nodeIPOverride":              effectLive,
	"ipFamilyPolicy":              effectLive,
	"healthzBindAddress":          effectLive,
	"metricsBindAddress":          effectLive,
	"bindAddressHardFail":         effectLive,
	"configHardFail":              effectLive,
	"enableProfiling":             effectLive,
	"showHiddenMetricsForVersion": effectRestart,

	"mode":                            effectRestart,
	"detectLocalMode":                 effectLive,
	"detectLocal.clusterCIDRs":        effectLive,
	"detectLocal.bridgeInterface":     effectLive,
	"detectLocal.interfaceNamePrefix": effectLive,
	"nodePortAddresses":               effectLive,
	"configSyncPeriod":                effectLive,
	"syncPeriod":                      effectLive,
	"minSyncPeriod":                   effectLive,

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
	"iptables.masqueradeBit":          effectRestart,
	"iptables.localhostNodePorts":     effectLive,
	"ipvs.masqueradeBit":              effectRestart,
	"ipvs.scheduler":                  effectRestart,
	"ipvs.excludeCIDRs":               effectRestart,
	"ipvs.strictARP":                  effectRestart,
	"ipvs.tcpTimeout":                 effectRestart,
	"ipvs.tcpFinTimeout":              effectRestart,
	"ipvs.udpTimeout":                 effectRestart,
	"ebpf.cgroupPath":                 effectRestart,
	"ebpf.pinPath":                    effectRestart,
	"userspace.udpIdleTimeout":        effectRestart,
	"winkernel.networkName":           effectRestart,
	"winkernel.sourceVip":             effectRestart,
	"winkernel.enableDSR":             effectRestart,
	"winkernel.rootHnsEndpointName":   effectRestart,
	"winkernel.forwardHealthCheckVip": effectRestart,

	"api.listen":       effectRestart,
	"api.socketMode":   effectRestart,
	"api.tlsCertFile":  effectRestart,
	"api.tlsKeyFile":   effectRestart,
	"api.clientCAFile": effectRestart,
}

// canonical maps paths in lower case to how files spell them.
var canonical = sync.OnceValue(func() map[string]string {
	names := make(map[string]string, len(effects))
	for name := range effects {
		names[strings.ToLower(name)] = name
	}
	return names
})
