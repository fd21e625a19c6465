package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// proxyFlags are the flags of kube-proxy, with the names, types and defaults of kube-proxy 1.37. Settings are kept as
// a v1alpha1 file, whose shape they have; [proxyFlags.config] makes a configuration of them.
type proxyFlags struct {
	files            configFiles     // --config
	writeConfigTo    string          // --write-config-to
	cleanup          bool            // --cleanup
	takeOver         time.Duration   // --take-over
	initOnly         bool            // --init-only
	master           string          // --master: address of the API server, instead of the kubeconfig's
	hostnameOverride string          // --hostname-override
	serviceProxyName string          // --service-proxy-name
	apiListen        []string        // --api-listen
	admin            string          // --admin-bind-address
	ui               cli.PageAddress // --ui-bind-address
	names            bool            // --names
	version          string          // --version: "true" or "raw" to print the version

	file          *v1alpha1.KubeProxyConfiguration
	masqueradeAll bool
	// healthzPort and metricsPort complete addresses without a port; 0 serves nowhere.
	healthzPort, metricsPort int32
	flags                    *pflag.FlagSet
}

// These flags count in addition to --config.
var beside = map[string]bool{
	"config": true, "hostname-override": true, "service-proxy-name": true, "api-listen": true, "admin-bind-address": true, "ui-bind-address": true, "names": true, "master": true, "cleanup": true, "take-over": true, "init-only": true, "write-config-to": true,
	"version": true, "v": true, "vmodule": true, "logging-format": true, "log-flush-frequency": true,
	"log-text-split-stream": true, "log-text-info-buffer-size": true, "log-json-split-stream": true, "log-json-info-buffer-size": true,
}

// register adds the flags to fs.
func (p *proxyFlags) register(fs *pflag.FlagSet) {
	p.file, p.flags = v1alpha1.Default(), fs
	p.registerGeneral(fs)
	p.registerDataplanes(fs)
	p.registerLocalTraffic(fs)
	p.registerConntrack(fs)
	p.registerLogging(fs)
	p.registerWindows(fs)
}

func (p *proxyFlags) registerGeneral(fs *pflag.FlagSet) {
	c := p.file
	p.files.dataplanes = configfile.DataplaneKinds()
	fs.Var((*fileNames)(&p.files.paths), "config", "configuration file, or - for standard input; may be repeated, with one file for all nodes and others for this one; most other flags are then ignored")
	fs.StringVar(&p.writeConfigTo, "write-config-to", "", "write the configuration to this file, in the latest version and without comments, and exit")
	fs.BoolVar(&p.cleanup, "cleanup", false, "remove all rules from the kernel, including kube-proxy's, and exit")
	takeOverFlag(fs, &p.takeOver)
	fs.BoolVar(&p.initOnly, "init-only", false, "do what needs full root rights, and exit; CAP_NET_ADMIN is enough afterwards")
	fs.StringVar(&p.version, "version", "false", "print the version and exit")
	fs.Lookup("version").NoOptDefVal = "true"
	fs.Var((*switches)(&c.FeatureGates), "feature-gates", "features to switch on or off: A=true,B=false")
	fs.StringVar(&c.ClientConnection.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server")
	fs.StringVar(&p.master, "master", "", "address of the API server, instead of the kubeconfig's")
	fs.StringVar(&c.ClientConnection.ContentType, "kube-api-content-type", c.ClientConnection.ContentType, "encoding to ask the API server for")
	fs.Int32Var(&c.ClientConnection.Burst, "kube-api-burst", c.ClientConnection.Burst, "requests to the API server at once")
	fs.Float32Var(&c.ClientConnection.QPS, "kube-api-qps", c.ClientConnection.QPS, "requests to the API server a second")
	fs.StringVar(&p.hostnameOverride, "hostname-override", "", "name of this Node, instead of the host's name")
	fs.StringSliceVar(&p.apiListen, "api-listen", nil, "where to serve the node-local API: unix:///PATH or tcp://IP:PORT; may be repeated")
	fs.StringVar(&p.admin, "admin-bind-address", config.DefaultAdminAddress, adminUsage)
	fs.Var(&p.ui, "ui-bind-address", uiUsage)
	fs.BoolVar(&p.names, "names", false, namesUsage)
	fs.StringVar(&p.serviceProxyName, "service-proxy-name", "", serviceProxyNameUsage)
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "primary IP of this node; nothing is bound to it")
	fs.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "IP and port of /healthz and /livez; empty for none")
	fs.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "IP and port of /metrics; empty for none")
	fs.Int32Var(&p.healthzPort, "healthz-port", config.HealthzPort, "port of /healthz, if its address has none; 0 for none")
	fs.Int32Var(&p.metricsPort, "metrics-port", config.MetricsPort, "port of /metrics, if its address has none; 0 for none")
	fs.Lookup("healthz-port").Deprecated = "use --healthz-bind-address"
	fs.Lookup("metrics-port").Deprecated = "use --metrics-bind-address"
	fs.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "exit when an address cannot be bound")
	fs.BoolVar(&c.EnableProfiling, "profiling", false, "serve /debug/pprof where /metrics is served")
	fs.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "minor version of Kubernetes whose hidden metrics to show")
	fs.StringVar(&c.Mode, "proxy-mode", "", "dataplane; empty for the best one")
	fs.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "how long a watch of the API server lasts at least, before it is opened again from where it ended")
	fs.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "the process's oom_score_adj, from -1000 to 1000")
	fs.BoolVar(&p.masqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "where to serve node ports: CIDRs, or the keywords primary, localhost and all")
}

func (p *proxyFlags) registerDataplanes(fs *pflag.FlagSet) {
	c := p.file
	fs.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit, "bit of packet marks for masquerading, from 0 to 31")
	fs.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", *c.IPTables.LocalhostNodePorts, "serve node ports on loopback addresses, too")
	duration(fs, &c.IPTables.SyncPeriod.Duration, "iptables-sync-period", "how often to compare the kernel with what it should hold, in all modes but ipvs")
	duration(fs, &c.IPTables.MinSyncPeriod.Duration, "iptables-min-sync-period", "shortest time between two commits to the kernel, in all modes but ipvs")
	duration(fs, &c.IPVS.SyncPeriod.Duration, "ipvs-sync-period", "how often to compare the kernel with what it should hold, in ipvs mode")
	fs.DurationVar(&c.IPVS.MinSyncPeriod.Duration, "ipvs-min-sync-period", time.Second, "shortest time between two commits to the kernel, in ipvs mode")
	fs.StringVar(&c.IPVS.Scheduler, "ipvs-scheduler", "", "scheduler in ipvs mode")
	fs.StringSliceVar(&c.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "virtual servers to leave alone in ipvs mode")
	fs.BoolVar(&c.IPVS.StrictARP, "ipvs-strict-arp", false, "set arp_ignore to 1 and arp_announce to 2 in ipvs mode")
	duration(fs, &c.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", "timeout of idle TCP connections in ipvs mode; 0 leaves it as it is")
	duration(fs, &c.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", "timeout of TCP connections after a FIN in ipvs mode; 0 leaves it as it is")
	duration(fs, &c.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", "timeout of UDP flows in ipvs mode; 0 leaves it as it is")
}

func (p *proxyFlags) registerLocalTraffic(fs *pflag.FlagSet) {
	c := p.file
	fs.StringVar(&c.DetectLocalMode, "detect-local-mode", "", "how to distinguish connections of pods from others: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", "", "addresses of all pods: a CIDR, or one of each family with a comma between them")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "bridge of the pods, for BridgeInterface")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "start of the names of pods' interfaces, for InterfaceNamePrefix")
}

func (p *proxyFlags) registerConntrack(fs *pflag.FlagSet) {
	c := &p.file.Conntrack
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore, "connections to track for each CPU; 0 leaves the limit as it is")
	fs.Int32Var(c.Min, "conntrack-min", *c.Min, "connections to track at least")
	duration(fs, &c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", "timeout of idle TCP connections; 0 leaves it as it is")
	duration(fs, &c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", "timeout of TCP connections in CLOSE_WAIT; 0 leaves it as it is")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "take packets outside the TCP window for valid ones")
	duration(fs, &c.UDPTimeout.Duration, "conntrack-udp-timeout", "timeout of UDP flows without an answer; 0 leaves it as it is")
	duration(fs, &c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", "timeout of UDP flows with answers; 0 leaves it as it is")
}

func (p *proxyFlags) registerLogging(fs *pflag.FlagSet) {
	l := &p.file.Logging
	fs.Int32VarP(&l.Verbosity, "v", "v", 0, cli.VerbosityUsage)
	fs.Var((*vmodule)(&l.VModule), "vmodule", "verbosity of single source files: pattern=N,...")
	fs.StringVar(&l.Format, "logging-format", l.Format, cli.LogFormatUsage)
	duration(fs, &l.FlushFrequency.Duration, "log-flush-frequency", "how long a log line may be held back")
	for format, o := range map[string]*v1alpha1.LogOutput{"text": &l.Options.Text, "json": &l.Options.JSON} {
		fs.BoolVar(&o.SplitStream, "log-"+format+"-split-stream", false, "in "+format+" format, log errors to stderr and the rest to stdout")
		fs.Var((*quantity)(&o.InfoBufferSize), "log-"+format+"-info-buffer-size", "in "+format+" format with split streams, how many bytes to hold back")
	}
}

func (p *proxyFlags) registerWindows(fs *pflag.FlagSet) {
	c := p.file
	fs.BoolVar(&c.WindowsRunAsService, "windows-service", false, "run as a Windows service")
	fs.StringVar(&c.Winkernel.SourceVip, "source-vip", "", "address from which packets to remote endpoints come, on Windows")
	fs.StringVar(&c.Winkernel.NetworkName, "network-name", "", "name of the HNS network, on Windows")
	fs.BoolVar(&c.Winkernel.EnableDSR, "enable-dsr", false, "let answers go to clients directly, on Windows")
	fs.StringVar(&c.Winkernel.RootHnsEndpointName, "root-hnsendpoint-name", c.Winkernel.RootHnsEndpointName, "HNS endpoint of the root namespace, on Windows")
	fs.BoolVar(&c.Winkernel.ForwardHealthCheckVip, "forward-healthcheck-vip", false, "serve health check ports on load balancer addresses, on Windows")
}

// duration adds a flag whose default is the value that it has.
func duration(fs *pflag.FlagSet, v *time.Duration, name, usage string) {
	fs.DurationVar(v, name, *v, usage)
}

// config returns the configuration of the parsed flags and the file of --config. It also returns warnings about
// settings that are ignored or have an unexpected effect. The error joins all faults.
func (p *proxyFlags) config() (*config.Config, []string, error) {
	if len(p.files.paths) > 0 {
		return p.fromFile()
	}
	if p.flags.Changed("masquerade-all") {
		p.file.IPTables.MasqueradeAll, p.file.NFTables.MasqueradeAll = p.masqueradeAll, p.masqueradeAll
	}
	if p.flags.Changed("iptables-sync-period") {
		p.file.NFTables.SyncPeriod = p.file.IPTables.SyncPeriod
	}
	if p.flags.Changed("iptables-min-sync-period") {
		p.file.NFTables.MinSyncPeriod = p.file.IPTables.MinSyncPeriod
	}
	p.file.HealthzBindAddress = completed(p.file.HealthzBindAddress, p.healthzPort)
	p.file.MetricsBindAddress = completed(p.file.MetricsBindAddress, p.metricsPort)
	c, notes, faults := p.file.Convert()
	var errs []error
	for _, f := range append(faults, c.Validate(runtime.GOOS)...) {
		errs = append(errs, fmt.Errorf("%s %s", flagOf(p.file.Path(f.Path)), f.Problem))
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	var warnings []string
	for _, n := range notes {
		flag := flagOf(n.Path)
		warning := flag + " " + n.Text
		if p.flags.Changed(strings.TrimPrefix(flag, "--")) && !slices.Contains(warnings, warning) {
			warnings = append(warnings, warning)
		}
	}
	return c, warnings, p.override(c)
}

// completed returns an address with a port, or none if the port is 0.
func completed(addr string, port int32) string {
	if port == 0 {
		return ""
	}
	return v1alpha1.WithPort(addr, int(port))
}

// fromFile reads the file of --config, and applies the flags that count in addition to it.
func (p *proxyFlags) fromFile() (*config.Config, []string, error) {
	c, warnings, err := p.files.load()
	if err != nil {
		return nil, nil, err
	}
	var ignored []string
	p.flags.Visit(func(f *pflag.Flag) {
		if !beside[f.Name] {
			ignored = append(ignored, "--"+f.Name)
		}
	})
	if len(ignored) > 0 {
		warnings = append(warnings, "flags that --config overrides: "+strings.Join(ignored, ", ")+"; set these in "+strings.Join(p.files.paths, " or "))
	}
	return c, warnings, p.override(c)
}

// override gives c the values of the flags that count more than anything else.
func (p *proxyFlags) override(c *config.Config) error {
	if p.flags.Changed("hostname-override") {
		name := strings.ToLower(strings.TrimSpace(p.hostnameOverride))
		if name == "" && p.hostnameOverride != "" {
			return errors.New("--hostname-override must not be blank: give the name of this Node, or leave the flag out")
		}
		c.HostnameOverride = name
	}
	if p.flags.Changed("service-proxy-name") {
		c.ServiceProxyName = p.serviceProxyName
	}
	if p.flags.Changed("api-listen") {
		c.API.Listen = p.apiListen
	}
	if p.flags.Changed("admin-bind-address") {
		c.AdminBindAddress = p.admin
	}
	if p.flags.Changed("ui-bind-address") {
		c.UIBindAddress = p.ui.AddrPort
	}
	if p.flags.Changed("names") {
		c.API.Names = p.names
	}
	flags, _, _ := p.file.Convert()
	from, to := &flags.Logging, &c.Logging
	if p.flags.Changed("v") {
		to.Verbosity = from.Verbosity
	}
	if p.flags.Changed("logging-format") {
		to.Format = from.Format
	}
	if p.flags.Changed("log-flush-frequency") {
		to.FlushFrequency = from.FlushFrequency
	}
	if p.flags.Changed("vmodule") && len(p.files.paths) > 0 {
		to.VModule = slices.Concat(from.VModule, to.VModule) // the first that matches a file counts
	}
	for _, o := range []struct {
		format   string
		from, to *config.LogOutput
	}{{"text", &from.Options.Text, &to.Options.Text}, {"json", &from.Options.JSON, &to.Options.JSON}} {
		if p.flags.Changed("log-" + o.format + "-split-stream") {
			o.to.SplitStream = o.from.SplitStream
		}
		if p.flags.Changed("log-" + o.format + "-info-buffer-size") {
			o.to.InfoBufferSize = o.from.InfoBufferSize
		}
	}
	var errs []error
	for _, f := range c.Validate(runtime.GOOS) { // valid before, so only the flags can be at fault
		errs = append(errs, fmt.Errorf("%s %s", flagOf(p.file.Path(f.Path)), f.Problem))
	}
	return errors.Join(errs...)
}
