package config

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

var compareNets = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func TestDefaultIsValid(t *testing.T) {
	for _, platform := range []string{"", "linux", "windows", "darwin"} {
		if errs := Default().Validate(platform); len(errs) > 0 {
			t.Errorf("%q: %v", platform, errs)
		}
	}
}

// withoutDefault are fields that another one demands, and that have no default.
var withoutDefault = []string{"detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix", "api.clientCAFile"}

// TestFaults injects one fault each, and expects it to be found at its path, and nothing else.
func TestFaults(t *testing.T) {
	minus := duration(-time.Second)
	cidr := netip.MustParsePrefix
	tests := []struct {
		path   string
		inject func(c *Config)
	}{
		{"mode", func(c *Config) { c.Mode = "magic" }},
		{"clientConnection.burst", func(c *Config) { c.ClientConnection.Burst = -1 }},
		{"logging.format", func(c *Config) { c.Logging.Format = "xml" }},
		{"logging.flushFrequency", func(c *Config) { c.Logging.FlushFrequency = minus }},
		{"logging.verbosity", func(c *Config) { c.Logging.Verbosity = -1 }},
		{"logging.vmodule[1].filePattern", func(c *Config) { c.Logging.VModule = []VModule{{"a", 1}, {"[", 1}} }},
		{"logging.vmodule[0].verbosity", func(c *Config) { c.Logging.VModule = []VModule{{"a", -1}} }},
		{"logging.options.json.infoBufferSize", func(c *Config) { c.Logging.Options.JSON.InfoBufferSize = -1 }},
		{"showHiddenMetricsForVersion", func(c *Config) { c.ShowHiddenMetricsForVersion = "v1" }},
		{"ipFamilyPolicy", func(c *Config) { c.IPFamilyPolicy = "Both" }},
		{"configSyncPeriod", func(c *Config) { c.ConfigSyncPeriod = Duration{} }},
		{"syncPeriod", func(c *Config) { c.SyncPeriod, c.MinSyncPeriod = Duration{}, Duration{} }},
		{"minSyncPeriod", func(c *Config) { c.MinSyncPeriod = minus }},
		{"minSyncPeriod", func(c *Config) { c.MinSyncPeriod = duration(time.Hour) }},
		{"healthzBindAddress", func(c *Config) { c.HealthzBindAddress = netip.MustParseAddrPort("0.0.0.0:0") }},
		{"adminBindAddress", func(c *Config) { c.AdminBindAddress = "tcp://127.0.0.1:1" }},
		{"adminBindAddress", func(c *Config) { c.AdminBindAddress = "unix://admin.sock" }},
		{"uiBindAddress", func(c *Config) { c.UIBindAddress = netip.MustParseAddrPort("127.0.0.1:0") }},
		{"uiBindAddress", func(c *Config) { c.UIBindAddress = netip.MustParseAddrPort("[::]:10270") }},
		{"metricsBindAddress", func(c *Config) { c.MetricsBindAddress = netip.MustParseAddrPort("[::]:0") }},
		{"nodeIPOverride[0]", func(c *Config) { c.NodeIPOverride = []netip.Addr{{}} }},
		{"nodeIPOverride[0]", func(c *Config) { c.NodeIPOverride = []netip.Addr{netip.IPv6Loopback()} }},
		{"nodeIPOverride[1]", func(c *Config) {
			c.NodeIPOverride = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
		}},
		{"nodeIPOverride", func(c *Config) {
			c.IPFamilyPolicy, c.NodeIPOverride = RequireDualStack, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}},
		{"nodePortAddresses", func(c *Config) { c.NodePortAddresses.CIDRs = []netip.Prefix{{}} }},
		{"detectLocalMode", func(c *Config) { c.DetectLocalMode = "Guess" }},
		{"detectLocal.bridgeInterface", func(c *Config) { c.DetectLocalMode = LocalModeBridgeInterface }},
		{"detectLocal.interfaceNamePrefix", func(c *Config) { c.DetectLocalMode = LocalModeInterfaceNamePrefix }},
		{"detectLocal.interfaceNamePrefix", func(c *Config) {
			c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = LocalModeInterfaceNamePrefix, "veth\x00"
		}},
		{"detectLocal.bridgeInterface", func(c *Config) { c.DetectLocal.BridgeInterface = "a-name-that-is-too-long" }},
		{"detectLocal.clusterCIDRs", func(c *Config) {
			c.DetectLocal.ClusterCIDRs = []netip.Prefix{cidr("10.0.0.0/8"), cidr("fd00::/8"), cidr("fd01::/16")}
		}},
		{"detectLocal.clusterCIDRs", func(c *Config) { c.DetectLocal.ClusterCIDRs = []netip.Prefix{cidr("fd00::/8"), cidr("fd01::/16")} }},
		{"detectLocal.clusterCIDRs[0]", func(c *Config) { c.DetectLocal.ClusterCIDRs = []netip.Prefix{{}} }},
		{"acceptAnnotationsOf[1]", func(c *Config) { c.AcceptAnnotationsOf = []string{"cilium.io", "example.com"} }},
		{"acceptAnnotationsOf[1]", func(c *Config) { c.AcceptAnnotationsOf = []string{"cilium.io", "cilium.io"} }},
		{"ejection.probeTimeout", func(c *Config) { c.Ejection.ProbeTimeout = minus }},
		{"nodeHealth.notReadyAfter", func(c *Config) { c.NodeHealth.NotReadyAfter = minus }},
		{"nodeHealth.notReadyAfter", func(c *Config) { c.NodeHealth.NotReadyAfter = Duration{Duration: 25 * time.Hour} }},
		{"nodeHealth.ignoreAbovePercent", func(c *Config) { c.NodeHealth.IgnoreAbovePercent = 0 }},
		{"nodeHealth.ignoreAbovePercent", func(c *Config) { c.NodeHealth.IgnoreAbovePercent = 101 }},
		{"edge.mode", func(c *Config) { c.Edge.Mode = "bgp" }},
		{"edge.frontends", func(c *Config) { c.Edge.Frontends = nil }},
		{"edge.frontends[1]", func(c *Config) { c.Edge.Frontends = []string{"NodePort", "ClusterIP"} }},
		{"edge.frontends[1]", func(c *Config) { c.Edge.Frontends = []string{"NodePort", "NodePort"} }},
		{"edge.services", func(c *Config) { c.Edge.Services = "some" }},
		{"edge.interfaces[0]", func(c *Config) { c.Edge.Interfaces = []string{"a-name-that-is-too-long"} }},
		{"edge.interfaces[1]", func(c *Config) { c.Edge.Interfaces = []string{"eth0", "eth0"} }},
		{"edge.port", func(c *Config) { c.Edge.Port = 0 }},
		{"edge.port", func(c *Config) { c.Edge.Port = 65536 }},
		{"edge.markBit", func(c *Config) { c.Edge.MarkBit = 32 }},
		{"edge.mtu", func(c *Config) { c.Edge.MTU = 1335 }},
		{"edge.mtu", func(c *Config) { c.Edge.MTU = 65536 }},
		{"edge.tableSize", func(c *Config) { c.Edge.TableSize = 1000 }},
		{"edge.maxSlots", func(c *Config) { c.Edge.MaxSlots = 1020 }},
		{"edge.maxSlots", func(c *Config) { c.Edge.MaxSlots = greatestEdgeSlots + 1 }},
		{"edge.drain", func(c *Config) { c.Edge.Drain = minus }},
		{"services.allowedExternalIPs[0]", func(c *Config) { c.Services.AllowedExternalIPs = []netip.Prefix{{}} }},
		{"services.maxEntries", func(c *Config) { c.Services.MaxEntries = -2 }},
		{"services.maxEntries", func(c *Config) { c.Services.MaxEntries = brain.MaxEntries + 1 }},
		{"services.maxEntriesPerNamespace", func(c *Config) { c.Services.MaxEntriesPerNamespace = -2 }},
		{"services.maxEntriesPerNode", func(c *Config) { c.Services.MaxEntriesPerNode = -2 }},
		{"linux.conntrack.maxPerCore", func(c *Config) { c.Linux.Conntrack.MaxPerCore = -1 }},
		{"linux.conntrack.min", func(c *Config) { c.Linux.Conntrack.Min = -1 }},
		{"linux.conntrack.tcpEstablishedTimeout", func(c *Config) { c.Linux.Conntrack.TCPEstablishedTimeout = minus }},
		{"linux.conntrack.tcpCloseWaitTimeout", func(c *Config) { c.Linux.Conntrack.TCPCloseWaitTimeout = minus }},
		{"linux.conntrack.udpTimeout", func(c *Config) { c.Linux.Conntrack.UDPTimeout = minus }},
		{"linux.conntrack.udpStreamTimeout", func(c *Config) { c.Linux.Conntrack.UDPStreamTimeout = minus }},
		{"linux.oomScoreAdj", func(c *Config) { c.Linux.OOMScoreAdj = -1001 }},
		{"api.listen[0]", func(c *Config) { c.API.Listen = []string{"unix://api.sock"} }},
		{"api.listen[0]", func(c *Config) { c.API.Listen = []string{"tcp://192.0.2.1:0"} }},
		{"api.listen[0]", func(c *Config) { c.API.Listen = []string{"127.0.0.1:0"} }},
		{"api.listen[0]", func(c *Config) { c.API.Listen = []string{"npipe:////./pipe/"} }},
		{"api.listen[0]", func(c *Config) { c.API.Listen = []string{"http://192.0.2.1:80"} }},
		{"api.socketMode", func(c *Config) { c.API.SocketMode = "rw" }},
		{"api.socketMode", func(c *Config) { c.API.SocketMode = "1777" }},
		{"api.socketUsers[1]", func(c *Config) { c.API.SocketUsers = []string{"0", ""} }},
		{"api.clientCAFile", func(c *Config) {
			c.API = API{Listen: []string{"tcp://192.0.2.1:1"}, SocketMode: "0600", TLSCertFile: "c", TLSKeyFile: "k"}
		}},
		{"nftables.masqueradeBit", func(c *Config) { c.NFTables.MasqueradeBit = 32 }},
		{"nftables.maxAffinityClients", func(c *Config) { c.NFTables.MaxAffinityClients = 0 }},
		{"iptables.masqueradeBit", func(c *Config) { c.IPTables.MasqueradeBit = 32 }},
		{"ipvs.masqueradeBit", func(c *Config) { c.IPVS.MasqueradeBit = 32 }},
		{"ebpf.cgroupPath", func(c *Config) { c.EBPF.CgroupPath = "kubepods" }},
		{"userspace.policy", func(c *Config) { c.Userspace.Policy = "Best" }},
		{"userspace.dialTimeout", func(c *Config) { c.Userspace.DialTimeout = minus }},
		{"userspace.dialAttempts", func(c *Config) { c.Userspace.DialAttempts = 0 }},
		{"userspace.ejectAfterFailures", func(c *Config) { c.Userspace.EjectAfterFailures = -1 }},
		{"userspace.ejectionTime", func(c *Config) { c.Userspace.EjectionTime = minus }},
		{"userspace.udpIdleTimeout", func(c *Config) { c.Userspace.UDPIdleTimeout = minus }},
		{"userspace.maxConnections", func(c *Config) { c.Userspace.MaxConnections = 0 }},
		{"userspace.drainTimeout", func(c *Config) { c.Userspace.DrainTimeout = minus }},
		{"userspace.listen[0]", func(c *Config) { c.Userspace.Listen = []string{"127.0.0.1:80"} }},
		{"winkernel.rootHnsEndpointName", func(c *Config) { c.Winkernel.RootHNSEndpointName = "" }},
	}
	all := Default()
	for _, tt := range tests {
		c := Default()
		tt.inject(c)
		tt.inject(all)
		errs := c.Validate("linux")
		if len(errs) != 1 || errs[0].Path != tt.path {
			t.Errorf("a fault in %s is reported as %v", tt.path, errs)
		}
		c.ResetInvalid(errs, Default())
		if slices.Contains(withoutDefault, tt.path) && len(c.Validate("linux")) > 0 {
			continue
		}
		live, restart, none := Diff(Default(), c)
		if len(c.Validate("linux")) > 0 || slices.Contains(slices.Concat(live, restart, none), strings.Split(tt.path, "[")[0]) {
			t.Errorf("%s is not reset: %v", tt.path, c.Validate("linux"))
		}
	}
	if n := len(all.Validate("linux")); n < 30 {
		t.Errorf("of all faults at once only %d are reported", n)
	}
}

// TestListenWithoutScheme: an IP address and a port are TCP, in plain on loopback only.
func TestListenWithoutScheme(t *testing.T) {
	for listen, faults := range map[string]int{"127.0.0.1:12345": 0, "[::1]:12345": 0, "192.0.2.1:12345": 3, "127.0.0.1": 1, "localhost:12345": 1} {
		c := Default()
		c.API.Listen = []string{listen}
		if got := c.Validate("linux"); len(got) != faults {
			t.Errorf("%s: %v, want %d faults", listen, got, faults)
		}
	}
}

// TestEveryFieldHasAnEffect ensures that Diff knows about each field, and that its list has no others.
func TestEveryFieldHasAnEffect(t *testing.T) {
	forgotten := maps.Clone(effects)
	leaves(reflect.ValueOf(Default()).Elem(), "", func(path string, _ reflect.Value) {
		name := canonical()[strings.ToLower(path)]
		if effects[name] == 0 {
			t.Errorf("%s is not in effects", path)
		}
		delete(forgotten, name)
	})
	for name := range forgotten {
		t.Errorf("effects has %s, which is not a field", name)
	}
}

// TestDiffSeesEveryField changes each field alone.
func TestDiffSeesEveryField(t *testing.T) {
	changed := Default()
	leaves(reflect.ValueOf(changed).Elem(), "", func(path string, v reflect.Value) {
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		change(t, path, v)
		live, restart, none := Diff(Default(), changed)
		if got := slices.Concat(live, restart, none); len(got) != 1 || !strings.EqualFold(got[0], path) {
			t.Errorf("a change of %s is seen as %v", path, got)
		}
		v.Set(before)
	})
}

func change(t *testing.T, path string, v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.IPv6LinkLocalAllNodes()))
		return
	case netip.AddrPort:
		other := netip.AddrPort{}
		if v.IsZero() {
			other = netip.MustParseAddrPort("127.0.0.1:1")
		}
		v.Set(reflect.ValueOf(other))
		return
	case Duration:
		v.Set(reflect.ValueOf(duration(17 * time.Second)))
		return
	case NodePortAddresses:
		v.Set(reflect.ValueOf(NodePortAddresses{Localhost: true}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float32:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]bool{"x": true}))
	default:
		t.Fatalf("%s: cannot change a %v", path, v.Type())
	}
}

func TestDiff(t *testing.T) {
	old, now := Default(), Default()
	now.Mode, now.Linux.MasqueradeAll, now.SyncPeriod = ModeIPVS, true, duration(time.Minute)
	now.IPVS.ExcludeCIDRs = []netip.Prefix{} // the same as none
	now.IPVS.Scheduler, now.ShowHiddenMetricsForVersion, now.Logging.Format = "lc", "1.36", "json"
	live, restart, none := Diff(old, now)
	if !slices.Equal(none, []string{"showHiddenMetricsForVersion"}) || !slices.Equal(live, []string{"ipvs.scheduler", "linux.masqueradeAll", "mode", "syncPeriod"}) || !slices.Equal(restart, []string{"logging.format"}) {
		t.Errorf("Diff = %v, %v, %v", live, restart, none)
	}
}

func TestNodePorts(t *testing.T) {
	cidrs := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	all := cidrs("0.0.0.0/0", "::/0")
	tests := []struct {
		name      string
		mode      Mode
		localhost bool
		list      []string
		want      state.NodePortAddresses
	}{
		{"nftables takes the primary ones", ModeNFTables, true, nil, state.NodePortAddresses{Primary: true}},
		{"so does ebpf", ModeEBPF, true, nil, state.NodePortAddresses{Primary: true}},
		{"a blank mode takes what iptables takes", "", true, nil, state.NodePortAddresses{CIDRs: append(all[:2:2], localhost[0])}},
		{"localhost can be switched off", "", false, nil, state.NodePortAddresses{CIDRs: all}},
		{"ipvs never serves localhost", ModeIPVS, true, nil, state.NodePortAddresses{CIDRs: all}},
		{"a list is all there is", "", true, []string{"primary", "192.0.2.7/24"}, state.NodePortAddresses{Primary: true, CIDRs: cidrs("192.0.2.0/24")}},
		{"keywords", ModeNFTables, true, []string{"all", "localhost"}, state.NodePortAddresses{CIDRs: append(all[:2:2], localhost...)}},
	}
	for _, tt := range tests {
		c := Default()
		c.Mode, c.IPTables.LocalhostNodePorts = tt.mode, tt.localhost
		var errs []*FieldError
		if c.NodePortAddresses, errs = ParseNodePortAddresses("", tt.list); len(errs) > 0 {
			t.Fatal(errs)
		}
		if diff := cmp.Diff(tt.want, c.NodePorts(), compareNets); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestLocalDetector(t *testing.T) {
	c := Default()
	c.DetectLocal = DetectLocal{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, BridgeInterface: "cni0", InterfaceNamePrefix: "veth"}
	byRange := state.LocalDetector{ClusterCIDRs: c.DetectLocal.ClusterCIDRs}
	for mode, want := range map[LocalMode]state.LocalDetector{
		"": byRange, LocalModeClusterCIDR: byRange, LocalModeNodeCIDR: {NodeCIDR: true},
		LocalModeBridgeInterface: {BridgeInterface: "cni0"}, LocalModeInterfaceNamePrefix: {InterfacePrefix: "veth"},
	} {
		c.DetectLocalMode = mode
		if diff := cmp.Diff(want, c.LocalDetector(), compareNets); diff != "" {
			t.Errorf("mode %q (-want +got):\n%s", mode, diff)
		}
	}
}

func TestCommitInterval(t *testing.T) {
	for period, want := range map[time.Duration]time.Duration{0: 0, time.Second: 0, 2 * time.Second: 2 * time.Second} {
		c := Default()
		c.MinSyncPeriod = duration(period)
		if got := c.CommitInterval(); got != want {
			t.Errorf("minSyncPeriod %v: %v between commits, want %v", period, got, want)
		}
	}
}

func TestNodeIPs(t *testing.T) {
	list := func(text string) (addrs []netip.Addr) {
		for a := range strings.FieldsSeq(text) {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs
	}
	tests := []struct {
		policy               IPFamilyPolicy
		node, override, want string
		fault                bool
	}{
		{"", "10.0.0.1 fd00::1", "", "10.0.0.1 fd00::1", false},
		{"", "10.0.0.1 fd00::1", "fd00::2", "fd00::2", false},
		{PreferDualStack, "10.0.0.1", "", "10.0.0.1", false},
		{PreferDualStack, "10.0.0.1 fd00::1", "", "10.0.0.1 fd00::1", false},
		{SingleStack, "fd00::1 10.0.0.1 fd00::2", "", "fd00::1 fd00::2", false},
		{SingleStack, "fd00::1", "10.0.0.1 fd00::1", "10.0.0.1", false},
		{SingleStack, "", "", "", false},
		{RequireDualStack, "10.0.0.1 fd00::1", "", "10.0.0.1 fd00::1", false},
		{RequireDualStack, "10.0.0.1", "", "10.0.0.1", true},
		{RequireDualStack, "fd00::1 fd00::2", "", "fd00::1 fd00::2", true},
		{RequireDualStack, "10.0.0.1", "10.0.0.1 fd00::1", "10.0.0.1 fd00::1", false},
		{RequireDualStack, "", "", "", false},
	}
	for _, tt := range tests {
		c := Default()
		c.IPFamilyPolicy, c.NodeIPOverride = tt.policy, list(tt.override)
		node := list(tt.node)
		got := c.NodeIPs(node)
		if !slices.Equal(got, list(tt.want)) || !slices.Equal(node, list(tt.node)) {
			t.Errorf("%+v: got %v", tt, got)
		}
		if err := c.CheckNodeIPs(got); (err != nil) != tt.fault {
			t.Errorf("%+v: CheckNodeIPs = %v", tt, err)
		}
	}
}

func TestWithoutEffect(t *testing.T) {
	c := Default()
	if got := slices.Concat(c.WithoutEffect(), c.UnknownGates()); len(got) > 0 {
		t.Errorf("defaults without effect are named: %v", got)
	}
	c.SyncPeriod, c.Mode, c.AllowModeFallback = duration(time.Minute), ModeIPVS, true // have an effect
	c.ShowHiddenMetricsForVersion = "1.36"
	c.FeatureGates = map[string]bool{"AllBeta": true, "KubeletFrob": true, "NFTablesProxyMode": true, "PreferSameTrafficDistribution": false}
	c.IPTables.MasqueradeBit, c.NFTables.MasqueradeBit, c.IPVS.MasqueradeBit = 5, 5, 6
	want := []string{"featureGates.PreferSameTrafficDistribution", "iptables.masqueradeBit", "nftables.masqueradeBit", "showHiddenMetricsForVersion"}
	if got := c.WithoutEffect(); !slices.Equal(got, want) {
		t.Errorf("named are %v, want %v", got, want)
	}
	if got := c.UnknownGates(); !slices.Equal(got, []string{"KubeletFrob"}) {
		t.Errorf("unknown are %v, want KubeletFrob", got)
	}
	for _, name := range alwaysOn {
		if !gateDefaults()[name] {
			t.Errorf("%s is not a feature gate that is on by default", name)
		}
	}
}

// TestGates: the file's value counts, else the default of the release.
func TestGates(t *testing.T) {
	c := Default()
	for name, want := range map[string]bool{GateExternalIPs: true, GateIPVS: true, "AllAlpha": false, "Frob": false} {
		if got := c.Gate(name); got != want {
			t.Errorf("gate %s is %v by default, want %v", name, got, want)
		}
	}
	c.FeatureGates = map[string]bool{GateExternalIPs: false, "AllAlpha": true}
	if c.Gate(GateExternalIPs) || !c.Gate("AllAlpha") {
		t.Error("the gates are not as they are set")
	}
	if got := c.WithoutEffect(); len(got) > 0 {
		t.Errorf("named as without effect: %v", got)
	}
	for mode, wrong := range map[Mode]bool{ModeIPVS: true, ModeNFTables: false, "": false} {
		c.Mode, c.FeatureGates = mode, map[string]bool{GateIPVS: false}
		if errs := c.Validate("linux"); (len(errs) > 0) != wrong {
			t.Errorf("mode %q with gate %s off: %v", mode, GateIPVS, errs)
		}
		c.FeatureGates[GateIPVS] = true
		if errs := c.Validate("linux"); len(errs) > 0 {
			t.Errorf("mode %q with gate %s on: %v", mode, GateIPVS, errs)
		}
	}
}

// TestMasqueradeBit: the bit comes from the section of the mode, even where nftables replaces the mode.
func TestMasqueradeBit(t *testing.T) {
	c := Default()
	c.NFTables.MasqueradeBit, c.IPTables.MasqueradeBit, c.IPVS.MasqueradeBit = 1, 2, 3
	for mode, want := range map[Mode]int32{"": 1, ModeNFTables: 1, ModeIPTables: 2, ModeIPVS: 3, ModeEBPF: 1} {
		if c.Mode = mode; c.MasqueradeBit() != want {
			t.Errorf("mode %q: bit %d, want %d", mode, c.MasqueradeBit(), want)
		}
	}
}
