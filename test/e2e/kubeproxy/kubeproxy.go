//go:build linux

// Package kubeproxy runs upstream kube-proxy on a node of a lab.
package kubeproxy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
)

// Options are kube-proxy's configuration.
type Options struct {
	// Dir is for its configuration and log. Required.
	Dir string
	// Kubeconfig is how to reach the API server from the node. Required.
	Kubeconfig string
	// Node is the node's name. Required.
	Node string
	// Mode is nftables or iptables. Default: nftables.
	Mode string
	// ClusterCIDRs are how it detects pods. Default: it does not.
	ClusterCIDRs  []netip.Prefix
	MasqueradeAll bool
	// NodePortAddresses is a list of CIDRs, or primary. Default: primary.
	NodePortAddresses []string
	// FeatureGates are features to switch on or off.
	FeatureGates map[string]bool
	// MinSyncPeriod is the least time between two syncs. Default: kube-proxy's own, one second.
	MinSyncPeriod time.Duration
}

// MetricsAddress is where kube-proxy serves its metrics, inside the node's namespace.
const MetricsAddress = "127.0.0.1:10249"

// config leaves the settings of connection tracking alone: they are the whole machine's.
var config = template.Must(template.New("").Funcs(template.FuncMap{"join": strings.Join}).Parse(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: "{{.Kubeconfig}}", qps: 1000, burst: 1000}
mode: {{.Mode}}
hostnameOverride: "{{.Node}}"
bindAddress: 0.0.0.0
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: ` + MetricsAddress + `
oomScoreAdj: 0
featureGates: { {{- range $name, $on := .FeatureGates}}{{$name}}: {{$on}}, {{end -}} }
nodePortAddresses: [{{join .NodePortAddresses ", "}}]
detectLocalMode: ClusterCIDR
clusterCIDR: "{{range $i, $c := .ClusterCIDRs}}{{if $i}},{{end}}{{$c}}{{end}}"
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {masqueradeAll: {{.MasqueradeAll}}{{if .MinSyncPeriod}}, minSyncPeriod: {{.MinSyncPeriod}}{{end}}}
iptables: {localhostNodePorts: false, masqueradeAll: {{.MasqueradeAll}}{{if .MinSyncPeriod}}, minSyncPeriod: {{.MinSyncPeriod}}{{end}}}
`))

// Start starts upstream kube-proxy inside a namespace. It does not wait until anything is programmed.
func Start(ns interface{ Do(func() error) error }, o Options) (*controlplane.Process, error) {
	program, err := controlplane.Binary()
	if err != nil {
		return nil, err
	}
	return StartProgram(ns, program, "kube-proxy", o)
}

// StartProgram starts a program in kube-proxy's place: command is its first argument, the others are kube-proxy's
// arguments, followed by more of its own.
func StartProgram(ns interface{ Do(func() error) error }, program, command string, o Options, more ...string) (*controlplane.Process, error) {
	if o.Mode == "" {
		o.Mode = "nftables"
	}
	if o.NodePortAddresses == nil {
		o.NodePortAddresses = []string{"primary"}
	}
	path := filepath.Join(o.Dir, "kube-proxy.yaml")
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := config.Execute(file, o); err != nil {
		return nil, fmt.Errorf("configure kube-proxy: %w", err)
	}
	args := append([]string{command, "--config=" + path, "--hostname-override=" + o.Node}, more...)
	return controlplane.Run(ns, o.Dir, command, program, args...)
}
