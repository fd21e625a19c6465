package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/internal/configfile"
)

// kubeProxyFlags has every flag of kube-proxy with its type and default, as its documentation has them, and a value other
// than the default. With the path of v1alpha2 that the value must land in; flags without one are about the process.
var kubeProxyFlags = []struct{ name, typ, def, value, path string }{
	{"config", "string", "", "", ""},
	{"write-config-to", "string", "", "f", ""},
	{"cleanup", "bool", "false", "true", ""},
	{"init-only", "bool", "false", "true", ""},
	{"feature-gates", "mapStringBool", "", "A=true", "featureGates"},
	{"kubeconfig", "string", "", "f", "clientConnection.kubeconfig"},
	{"master", "string", "", "https://192.0.2.1", ""},
	{"kube-api-content-type", "string", "application/vnd.kubernetes.protobuf", "application/json", "clientConnection.contentType"},
	{"kube-api-burst", "int32", "10", "20", "clientConnection.burst"},
	{"kube-api-qps", "float32", "5", "20", "clientConnection.qps"},
	{"hostname-override", "string", "", "node-b", "hostnameOverride"},
	{"bind-address", "string", "0.0.0.0", "192.0.2.1", "nodeIPOverride"},
	{"healthz-bind-address", "string", "0.0.0.0:10256", "192.0.2.1:1", "healthzBindAddress"},
	{"metrics-bind-address", "string", "127.0.0.1:10249", "192.0.2.1:1", "metricsBindAddress"},
	{"healthz-port", "int32", "10256", "0", ""},
	{"metrics-port", "int32", "10249", "0", ""},
	{"bind-address-hard-fail", "bool", "false", "true", "bindAddressHardFail"},
	{"profiling", "bool", "false", "true", "enableProfiling"},
	{"show-hidden-metrics-for-version", "string", "", "1.36", "showHiddenMetricsForVersion"},
	{"proxy-mode", "string", "", "nftables", "mode"},
	{"config-sync-period", "duration", "15m0s", "1m0s", "configSyncPeriod"},
	{"oom-score-adj", "int32", "-999", "-500", "linux.oomScoreAdj"},
	{"masquerade-all", "bool", "false", "true", "linux.masqueradeAll"},
	{"nodeport-addresses", "stringSlice", "[]", "primary", "nodePortAddresses"},
	{"version", "string", "false", "true", ""},

	{"iptables-masquerade-bit", "int32", "14", "15", "iptables.masqueradeBit"},
	{"iptables-localhost-nodeports", "bool", "true", "false", "iptables.localhostNodePorts"},
	{"iptables-sync-period", "duration", "30s", "40s", "syncPeriod"},
	{"iptables-min-sync-period", "duration", "1s", "0s", "minSyncPeriod"},
	{"ipvs-sync-period", "duration", "30s", "40s", "syncPeriod"},
	{"ipvs-min-sync-period", "duration", "1s", "0s", "minSyncPeriod"},
	{"ipvs-scheduler", "string", "", "lc", "ipvs.scheduler"},
	{"ipvs-exclude-cidrs", "stringSlice", "[]", "192.0.2.0/24", "ipvs.excludeCIDRs"},
	{"ipvs-strict-arp", "bool", "false", "true", "ipvs.strictARP"},
	{"ipvs-tcp-timeout", "duration", "0s", "9s", "ipvs.tcpTimeout"},
	{"ipvs-tcpfin-timeout", "duration", "0s", "9s", "ipvs.tcpFinTimeout"},
	{"ipvs-udp-timeout", "duration", "0s", "9s", "ipvs.udpTimeout"},

	{"detect-local-mode", "string", "", "NodeCIDR", "detectLocalMode"},
	{"cluster-cidr", "string", "", "10.0.0.0/8", "detectLocal.clusterCIDRs"},
	{"pod-bridge-interface", "string", "", "cni0", "detectLocal.bridgeInterface"},
	{"pod-interface-name-prefix", "string", "", "veth", "detectLocal.interfaceNamePrefix"},

	{"conntrack-max-per-core", "int32", "32768", "0", "linux.conntrack.maxPerCore"},
	{"conntrack-min", "int32", "131072", "0", "linux.conntrack.min"},
	{"conntrack-tcp-timeout-established", "duration", "24h0m0s", "0s", "linux.conntrack.tcpEstablishedTimeout"},
	{"conntrack-tcp-timeout-close-wait", "duration", "1h0m0s", "0s", "linux.conntrack.tcpCloseWaitTimeout"},
	{"conntrack-tcp-be-liberal", "bool", "false", "true", "linux.conntrack.tcpBeLiberal"},
	{"conntrack-udp-timeout", "duration", "0s", "9s", "linux.conntrack.udpTimeout"},
	{"conntrack-udp-timeout-stream", "duration", "0s", "9s", "linux.conntrack.udpStreamTimeout"},

	{"v", "int32", "0", "4", "logging.verbosity"},
	{"vmodule", "pattern=N,...", "", "store=5", "logging.vmodule"},
	{"logging-format", "string", "text", "json", "logging.format"},
	{"log-flush-frequency", "duration", "5s", "9s", "logging.flushFrequency"},
	{"log-text-split-stream", "bool", "false", "true", "logging.options.text.splitStream"},
	{"log-text-info-buffer-size", "quantity", "0", "64Ki", "logging.options.text.infoBufferSize"},
	{"log-json-split-stream", "bool", "false", "true", "logging.options.json.splitStream"},
	{"log-json-info-buffer-size", "quantity", "0", "64Ki", "logging.options.json.infoBufferSize"},

	{"windows-service", "bool", "false", "true", "windows.runAsService"},
	{"source-vip", "string", "", "192.0.2.9", "winkernel.sourceVip"},
	{"network-name", "string", "", "vxlan0", "winkernel.networkName"},
	{"enable-dsr", "bool", "false", "true", "winkernel.enableDSR"},
	{"root-hnsendpoint-name", "string", "cbr0", "br0", "winkernel.rootHnsEndpointName"},
	{"forward-healthcheck-vip", "bool", "false", "true", "winkernel.forwardHealthCheckVip"},
}

// parse returns the flags of a command line.
func parse(t *testing.T, args ...string) *proxyFlags {
	t.Helper()
	var p proxyFlags
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	p.register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &p
}

func TestProxyFlagsAreThoseOfKubeProxy(t *testing.T) {
	known := map[string]bool{}
	for _, f := range kubeProxyFlags {
		known[f.name] = true
		flag := parse(t).flags.Lookup(f.name)
		if flag == nil {
			t.Errorf("there is no --%s", f.name)
		} else if flag.DefValue != f.def || flag.Value.Type() != f.typ {
			t.Errorf("--%s: %s with default %q, want %s with default %q", f.name, flag.Value.Type(), flag.DefValue, f.typ, f.def)
		}
	}
	// kube-proxy lets two processes program a kernel, knows no name for itself, and has no API.
	ours := []string{"take-over", "service-proxy-name", "api-listen", "admin-bind-address", "ui-bind-address", "names"}
	parse(t).flags.VisitAll(func(f *pflag.Flag) {
		if !known[f.Name] && !slices.Contains(ours, f.Name) {
			t.Errorf("kube-proxy has no --%s", f.Name)
		}
	})
}

// TestProxyFlagsLand sets each flag alone, and looks for its value in the field that it stands for.
func TestProxyFlagsLand(t *testing.T) {
	for _, f := range kubeProxyFlags {
		if f.path == "" {
			continue
		}
		args := []string{"--" + f.name + "=" + f.value}
		if strings.HasPrefix(f.name, "ipvs") {
			args = append(args, "--proxy-mode=ipvs")
		}
		before, _, err := parse(t, args[1:]...).config()
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := parse(t, args...).config()
		if err != nil {
			t.Errorf("--%s=%s: %v", f.name, f.value, err)
			continue
		}
		live, restart, none := config.Diff(before, c)
		got := slices.Concat(live, restart, none)
		if f.name == "iptables-masquerade-bit" { // a blank mode and ipvs take it from there
			got = slices.DeleteFunc(got, func(path string) bool {
				return path == "nftables.masqueradeBit" || path == "ipvs.masqueradeBit"
			})
		}
		if !slices.Equal(got, []string{f.path}) {
			t.Errorf("--%s=%s changes %v, want %s", f.name, f.value, got, f.path)
		}
		text, err := configfile.Marshal(c)
		if value, _, _ := strings.Cut(f.value, "="); err != nil || !strings.Contains(string(text), value) {
			t.Errorf("--%s=%s: the value does not arrive: %v", f.name, f.value, err)
		}
	}
}

// TestFlagNames ensures that error messages name the flag of each v1alpha1 field that a flag sets.
func TestFlagNames(t *testing.T) {
	for _, f := range kubeProxyFlags {
		if f.path == "" || f.name == "hostname-override" {
			continue
		}
		p := parse(t, "--"+f.name+"="+f.value)
		if _, _, err := p.config(); err != nil {
			t.Fatal(err)
		}
		was, is := flat(t, v1alpha1.Default()), flat(t, p.file)
		was["ipvs.minSyncPeriod"] = "1s" // the flag's default differs from the file's
		for path := range maps.Keys(is) {
			if !reflect.DeepEqual(was[path], is[path]) && flagOf(path) != "--"+f.name {
				t.Errorf("--%s sets %s, whose flag is said to be %s", f.name, path, flagOf(path))
			}
		}
	}
	for path, name := range flagNames {
		if !slices.ContainsFunc(kubeProxyFlags, func(f struct{ name, typ, def, value, path string }) bool { return f.name == name }) {
			t.Errorf("%s is said to be set by --%s, which does not exist", path, name)
		}
	}
}

// flat returns the values of a file by their paths. Feature gates and lists are one value.
func flat(t *testing.T, file *v1alpha1.KubeProxyConfiguration) map[string]any {
	t.Helper()
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	var walk func(section map[string]any, path string)
	walk = func(section map[string]any, path string) {
		for name, v := range section {
			if sub, ok := v.(map[string]any); ok && name != "featureGates" {
				walk(sub, path+name+".")
			} else {
				values[path+name] = v
			}
		}
	}
	walk(root, "")
	return values
}

// TestProxyFlagsOfOurOwn: flags that kube-proxy does not have count in addition to a file.
func TestProxyFlagsOfOurOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nserviceProxyName: file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--config", file}} {
		c, warnings, err := parse(t, append(args, "--service-proxy-name=flag", "--api-listen=unix:///run/api.sock", "--names")...).config()
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if c.ServiceProxyName != "flag" || !c.API.Names || !slices.Equal(c.API.Listen, []string{"unix:///run/api.sock"}) {
			t.Errorf("with %v, the flags lead to %q, %q and names %v", args, c.ServiceProxyName, c.API.Listen, c.API.Names)
		}
	}
	if _, _, err := parse(t, "--api-listen=here").config(); err == nil || !strings.Contains(err.Error(), "--api-listen must look like unix:///") {
		t.Errorf("an address that is none: %v", err)
	}
}

func TestProxyFlagErrors(t *testing.T) {
	_, _, err := parse(t, "--oom-score-adj=2000", "--iptables-masquerade-bit=40", "--cluster-cidr=ten", "--proxy-mode=magic",
		"--iptables-min-sync-period=1h", "--healthz-bind-address=here", "--ipvs-exclude-cidrs=x").config()
	for _, want := range []string{
		"--oom-score-adj must be from -1000 to 1000, got 2000",
		"--iptables-masquerade-bit must be the number of a bit, from 0 to 31, got 40",
		`--cluster-cidr must be a CIDR such as 10.244.0.0/16, got "ten"`,
		"--proxy-mode must be nftables,",
		"--iptables-min-sync-period must not be greater than the syncPeriod of 30s, got 1h0m0s",
		`--healthz-bind-address must be an IP address and port such as 0.0.0.0:10256 or [::]:10256, got "here"`,
		`--ipvs-exclude-cidrs must be a CIDR`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("there is no %q in:\n%v", want, err)
		}
	}
	if _, _, err := parse(t, "--hostname-override= ").config(); err == nil {
		t.Error("a blank --hostname-override is taken")
	}
}

func TestProxyFlagWarnings(t *testing.T) {
	c, warnings, err := parse(t, "--proxy-mode=ipvs", "--iptables-sync-period=10s", "--bind-address=192.0.2.1").config()
	want := []string{
		"--bind-address becomes nodeIPOverride: [192.0.2.1]",
		"--iptables-sync-period is dropped: with the mode ipvs, ipvs.syncPeriod counts",
	}
	if err != nil || !slices.Equal(warnings, want) || c.SyncPeriod.Duration != 30*time.Second {
		t.Errorf("syncPeriod %v, warnings %q, %v", c.SyncPeriod, warnings, err)
	}
	c, warnings, err = parse(t, "--proxy-mode=nftables", "--iptables-sync-period=10s", "--masquerade-all", "--metrics-bind-address=").config()
	if err != nil || len(warnings) > 0 || c.SyncPeriod.Duration != 10*time.Second || !c.Linux.MasqueradeAll || c.MetricsBindAddress.IsValid() {
		t.Errorf("%+v, warnings %q, %v", c, warnings, err)
	}
}

func TestProxyFlagsOfPorts(t *testing.T) {
	c, _, err := parse(t, "--healthz-bind-address=192.0.2.1", "--healthz-port=7", "--metrics-port=0").config()
	if err != nil || c.HealthzBindAddress.String() != "192.0.2.1:7" || c.MetricsBindAddress.IsValid() {
		t.Errorf("%v %v %v", c.HealthzBindAddress, c.MetricsBindAddress, err)
	}
	c, _, err = parse(t, "--healthz-port=7", "--metrics-bind-address=::").config()
	if err != nil || c.HealthzBindAddress.String() != "0.0.0.0:10256" || c.MetricsBindAddress.String() != "[::]:10249" {
		t.Errorf("%v %v %v", c.HealthzBindAddress, c.MetricsBindAddress, err)
	}
}

func TestProxyFlagsWithConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: a\nlogging: {vmodule: [{filePattern: brain, verbosity: 1}]}\nportRange: 1-2\n")
	c, warnings, err := parse(t, "--config="+path, "--hostname-override= Node-B ", "-v=4", "--vmodule=store=5", "--log-json-split-stream", "--cleanup", "--master=https://192.0.2.1",
		"--oom-score-adj=1", "--proxy-mode=ipvs").config()
	if err != nil {
		t.Fatal(err)
	}
	if c.HostnameOverride != "node-b" || c.Logging.Verbosity != 4 || len(c.Logging.VModule) != 2 || c.Logging.VModule[0].FilePattern != "store" || !c.Logging.Options.JSON.SplitStream {
		t.Errorf("flags do not count: %q %+v", c.HostnameOverride, c.Logging)
	}
	if c.Linux.OOMScoreAdj != -999 || c.Mode != "" {
		t.Errorf("flags count that should not: %v %q", c.Linux.OOMScoreAdj, c.Mode)
	}
	want := []string{
		path + ": portRange: is dropped: nothing uses it",
		"flags that --config overrides: --oom-score-adj, --proxy-mode; set these in " + path,
	}
	if !slices.Equal(warnings, want) {
		t.Errorf("warnings = %q", warnings)
	}
	if _, _, err := parse(t, "--config="+path, "--logging-format=xml").config(); err == nil || err.Error() != `--logging-format must be one of text, json, klog, got "xml"` {
		t.Errorf("a bad flag beside --config: %v", err)
	}
	if _, _, err := parse(t, "--config="+path+".not").config(); err == nil || !strings.HasPrefix(err.Error(), "--config: ") {
		t.Errorf("a file that is not there: %v", err)
	}
	const broken = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: magic\n"
	write(broken)
	if _, _, err := parse(t, "--config="+path).config(); err == nil || !strings.Contains(err.Error(), path+":3:7: mode: must be") {
		t.Errorf("a broken file: %v", err)
	}
	write(broken + "configHardFail: false\n")
	if c, warnings, err := parse(t, "--config="+path).config(); err != nil || len(warnings) != 2 || c.Mode != "" {
		t.Errorf("a broken file with configHardFail: false: %q %v", warnings, err)
	}
}
