package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-net/switchyard/config/v1alpha1"
)

// flagNames maps paths of v1alpha1 to the flags that set them.
var flagNames = map[string]string{
	"featureGates":                        "feature-gates",
	"clientConnection.kubeconfig":         "kubeconfig",
	"clientConnection.contentType":        "kube-api-content-type",
	"clientConnection.burst":              "kube-api-burst",
	"clientConnection.qps":                "kube-api-qps",
	"bindAddress":                         "bind-address",
	"healthzBindAddress":                  "healthz-bind-address",
	"metricsBindAddress":                  "metrics-bind-address",
	"bindAddressHardFail":                 "bind-address-hard-fail",
	"enableProfiling":                     "profiling",
	"showHiddenMetricsForVersion":         "show-hidden-metrics-for-version",
	"mode":                                "proxy-mode",
	"configSyncPeriod":                    "config-sync-period",
	"oomScoreAdj":                         "oom-score-adj",
	"iptables.masqueradeAll":              "masquerade-all",
	"nftables.masqueradeAll":              "masquerade-all",
	"nodePortAddresses":                   "nodeport-addresses",
	"iptables.masqueradeBit":              "iptables-masquerade-bit",
	"iptables.localhostNodePorts":         "iptables-localhost-nodeports",
	"iptables.syncPeriod":                 "iptables-sync-period",
	"iptables.minSyncPeriod":              "iptables-min-sync-period",
	"nftables.syncPeriod":                 "iptables-sync-period",
	"nftables.minSyncPeriod":              "iptables-min-sync-period",
	"ipvs.syncPeriod":                     "ipvs-sync-period",
	"ipvs.minSyncPeriod":                  "ipvs-min-sync-period",
	"ipvs.scheduler":                      "ipvs-scheduler",
	"ipvs.excludeCIDRs":                   "ipvs-exclude-cidrs",
	"ipvs.strictARP":                      "ipvs-strict-arp",
	"ipvs.tcpTimeout":                     "ipvs-tcp-timeout",
	"ipvs.tcpFinTimeout":                  "ipvs-tcpfin-timeout",
	"ipvs.udpTimeout":                     "ipvs-udp-timeout",
	"detectLocalMode":                     "detect-local-mode",
	"clusterCIDR":                         "cluster-cidr",
	"detectLocal.bridgeInterface":         "pod-bridge-interface",
	"detectLocal.interfaceNamePrefix":     "pod-interface-name-prefix",
	"conntrack.maxPerCore":                "conntrack-max-per-core",
	"conntrack.min":                       "conntrack-min",
	"conntrack.tcpEstablishedTimeout":     "conntrack-tcp-timeout-established",
	"conntrack.tcpCloseWaitTimeout":       "conntrack-tcp-timeout-close-wait",
	"conntrack.tcpBeLiberal":              "conntrack-tcp-be-liberal",
	"conntrack.udpTimeout":                "conntrack-udp-timeout",
	"conntrack.udpStreamTimeout":          "conntrack-udp-timeout-stream",
	"logging.verbosity":                   "v",
	"logging.vmodule":                     "vmodule",
	"logging.format":                      "logging-format",
	"logging.flushFrequency":              "log-flush-frequency",
	"logging.options.text.splitStream":    "log-text-split-stream",
	"logging.options.text.infoBufferSize": "log-text-info-buffer-size",
	"logging.options.json.splitStream":    "log-json-split-stream",
	"logging.options.json.infoBufferSize": "log-json-info-buffer-size",
	"windowsRunAsService":                 "windows-service",
	"winkernel.sourceVip":                 "source-vip",
	"winkernel.networkName":               "network-name",
	"winkernel.enableDSR":                 "enable-dsr",
	"winkernel.rootHnsEndpointName":       "root-hnsendpoint-name",
	"winkernel.forwardHealthCheckVip":     "forward-healthcheck-vip",
}

// flagOf names the flag that sets the field of v1alpha1 at path, which may lead into a list.
func flagOf(path string) string {
	list, _, _ := strings.Cut(path, "[")
	switch list {
	case "api.listen":
		return "--api-listen"
	case "adminBindAddress":
		return "--admin-bind-address"
	case "uiBindAddress":
		return "--ui-bind-address"
	}
	if name, ok := flagNames[list]; ok {
		return "--" + name
	}
	return path
}

// switches is a flag: names with true or false.
type switches map[string]bool

var _ pflag.Value = (*switches)(nil)

func (s *switches) String() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(*s)) {
		list = append(list, name+"="+strconv.FormatBool((*s)[name]))
	}
	return strings.Join(list, ",")
}

// Set adds switches to the value, and replaces switches of the same names.
func (s *switches) Set(text string) error {
	if *s == nil {
		*s = switches{}
	}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%q is not like Name=true", item)
		}
		(*s)[strings.TrimSpace(name)] = on
	}
	return nil
}

// Type names the value in the help text, as kube-proxy does.
func (s *switches) Type() string { return "mapStringBool" }

// vmodule is a flag: patterns of file names with verbosities.
type vmodule []v1alpha1.VModule

var _ pflag.Value = (*vmodule)(nil)

func (m *vmodule) String() string {
	var list []string
	for _, item := range *m {
		list = append(list, fmt.Sprintf("%s=%d", item.FilePattern, item.Verbosity))
	}
	return strings.Join(list, ",")
}

// Set adds to the value.
func (m *vmodule) Set(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		if item == "" {
			continue
		}
		pattern, number, _ := strings.Cut(item, "=")
		v, err := strconv.ParseInt(number, 10, 32)
		if pattern == "" || err != nil {
			return fmt.Errorf("%q is not like pattern=N", item)
		}
		*m = append(*m, v1alpha1.VModule{FilePattern: pattern, Verbosity: int32(v)})
	}
	return nil
}

// Type names the value in the help text, as kube-proxy does.
func (m *vmodule) Type() string { return "pattern=N,..." }

// quantity is a flag: a number of bytes such as 64Ki.
type quantity resource.Quantity

var _ pflag.Value = (*quantity)(nil)

func (q *quantity) String() string { return (*resource.Quantity)(q).String() }

// Set replaces the value.
func (q *quantity) Set(text string) error {
	v, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("%q is not a number of bytes such as 64Ki", text)
	}
	*q = quantity(v)
	return nil
}

// Type names the value in the help text, as kube-proxy does.
func (q *quantity) Type() string { return "quantity" }
