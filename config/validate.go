package config

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

var modes = map[string][]Mode{
	"linux":   {ModeNFTables, ModeIPTables, ModeIPVS, ModeEBPF, ModeUserspace},
	"windows": {ModeKernelspace, ModeUserspace},
	"":        {ModeNFTables, ModeIPTables, ModeIPVS, ModeEBPF, ModeUserspace, ModeKernelspace},
}

// Validate returns all faults of c for a platform, named as in runtime.GOOS. An empty platform stands for any.
func (c *Config) Validate(platform string) []*FieldError {
	var errs FieldErrors
	known, ok := modes[platform]
	if !ok {
		known = modes[""]
	}
	oneOf(&errs, "mode", c.Mode, known)
	if on, set := c.FeatureGates[GateIPVS]; c.Mode == ModeIPVS && set && !on {
		errs.Add("mode", "must not be ipvs while feature gate %s is false: choose nftables, or leave out the feature gate", GateIPVS)
	}
	c.validateGeneral(&errs)
	c.validatePeriods(&errs)
	c.validateAddresses(&errs)
	c.validateDetectLocal(&errs)
	c.validateAnnotations(&errs)
	c.Services.validate(&errs)
	if d := c.Ejection.ProbeTimeout.Duration; d < 100*time.Millisecond || d > 20*time.Second {
		errs.Add("ejection.probeTimeout", "must be from 100ms to 20s, got %v", c.Ejection.ProbeTimeout)
	}
	c.NodeHealth.validate(&errs)
	c.validateEdge(&errs, platform)
	c.Linux.validate(&errs)
	c.API.validate(&errs)
	return slices.Concat(errs,
		c.NFTables.validate("nftables"), c.IPTables.validate("iptables"), c.IPVS.validate("ipvs"),
		c.EBPF.validate("ebpf"), c.Userspace.validate("userspace"), c.Winkernel.validate("winkernel"))
}

// oneOf checks a value that is one of a few words, or empty.
func oneOf[T ~string](errs *FieldErrors, path string, v T, known []T) {
	if v == "" || slices.Contains(known, v) {
		return
	}
	var words []string
	for _, k := range known {
		words = append(words, string(k))
	}
	errs.Add(path, "must be %s or empty, got %q", strings.Join(words, ", "), v)
}

var minorVersion = regexp.MustCompile(`^\d+\.\d+$`)

func (c *Config) validateGeneral(errs *FieldErrors) {
	if c.ClientConnection.Burst < 0 {
		errs.Add("clientConnection.burst", "must not be negative, got %d", c.ClientConnection.Burst)
	}
	if f := c.Logging.Format; !slices.Contains(LogFormats, f) {
		errs.Add("logging.format", "must be one of %s, got %q", strings.Join(LogFormats, ", "), f)
	}
	errs.NotNegative("logging.flushFrequency", c.Logging.FlushFrequency)
	if c.Logging.Verbosity < 0 {
		errs.Add("logging.verbosity", "must not be negative, got %d", c.Logging.Verbosity)
	}
	for i, m := range c.Logging.VModule {
		at := IndexPath("logging.vmodule", i)
		if _, err := path.Match(m.FilePattern, ""); m.FilePattern == "" || err != nil {
			errs.Add(at+".filePattern", "must be the name of a source file without .go, or a pattern such as store*, got %q", m.FilePattern)
		}
		if m.Verbosity < 0 {
			errs.Add(at+".verbosity", "must not be negative, got %d", m.Verbosity)
		}
	}
	for _, o := range []struct {
		name string
		LogOutput
	}{{"text", c.Logging.Options.Text}, {"json", c.Logging.Options.JSON}} {
		if o.InfoBufferSize < 0 {
			errs.Add("logging.options."+o.name+".infoBufferSize", "must not be negative, got %d", o.InfoBufferSize)
		}
	}
	if v := c.ShowHiddenMetricsForVersion; v != "" && !minorVersion.MatchString(v) {
		errs.Add("showHiddenMetricsForVersion", "must be a minor version of Kubernetes such as 1.36, got %q", v)
	}
	oneOf(errs, "ipFamilyPolicy", c.IPFamilyPolicy, []IPFamilyPolicy{SingleStack, PreferDualStack, RequireDualStack})
}

func (c *Config) validatePeriods(errs *FieldErrors) {
	for _, p := range []struct {
		path  string
		value Duration
	}{{"configSyncPeriod", c.ConfigSyncPeriod}, {"syncPeriod", c.SyncPeriod}} {
		if p.value.Duration <= 0 {
			errs.Add(p.path, "must be greater than 0, got %v", p.value)
		}
	}
	errs.NotNegative("minSyncPeriod", c.MinSyncPeriod)
	if c.SyncPeriod.Duration > 0 && c.MinSyncPeriod.Duration > c.SyncPeriod.Duration {
		errs.Add("minSyncPeriod", "must not be greater than the syncPeriod of %v, got %v", c.SyncPeriod, c.MinSyncPeriod)
	}
}

func (c *Config) validateAddresses(errs *FieldErrors) {
	for _, a := range []struct {
		path  string
		value netip.AddrPort
	}{{"healthzBindAddress", c.HealthzBindAddress}, {"metricsBindAddress", c.MetricsBindAddress}} {
		if a.value.IsValid() && a.value.Port() == 0 {
			errs.Add(a.path, "must have a port from 1 to 65535, got %v", a.value)
		}
	}
	if a := c.UIBindAddress; a.IsValid() && (a.Port() == 0 || a.Addr().IsUnspecified()) {
		errs.Add("uiBindAddress", "must have a port from 1 to 65535 and one address, such as 127.0.0.1:10270, got %v; everybody who can connect may read it, so it has no wildcard", a)
	}
	if a := c.AdminBindAddress; a != "" && a != AdminNowhere {
		if p, ok := strings.CutPrefix(a, "unix://"); !ok || !path.IsAbs(p) {
			errs.Add("adminBindAddress", "must look like %s, or be %s, got %q", DefaultAdminAddress, AdminNowhere, a)
		}
	}
	for i, a := range c.NodeIPOverride {
		at := IndexPath("nodeIPOverride", i)
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast():
			errs.Add(at, "must be an address that other nodes can reach, got %v", a)
		case slices.ContainsFunc(c.NodeIPOverride[:i], func(b netip.Addr) bool { return b.Is4() == a.Is4() }):
			errs.Add(at, "is a second address of its family: give one primary address of each family, got %v", a)
		}
	}
	if c.IPFamilyPolicy == RequireDualStack && len(c.NodeIPOverride) == 1 {
		errs.Add("nodeIPOverride", "must have an address of each family with the ipFamilyPolicy RequireDualStack, got only %v", c.NodeIPOverride[0])
	}
	for i, p := range c.NodePortAddresses.CIDRs {
		if !p.IsValid() {
			errs.Add("nodePortAddresses", "range %d must be a CIDR such as 192.0.2.0/24", i+1)
		}
	}
}

func (c *Config) validateDetectLocal(errs *FieldErrors) {
	oneOf(errs, "detectLocalMode", c.DetectLocalMode,
		[]LocalMode{LocalModeClusterCIDR, LocalModeNodeCIDR, LocalModeBridgeInterface, LocalModeInterfaceNamePrefix})
	for _, i := range []struct {
		mode       LocalMode
		path, name string
	}{
		{LocalModeBridgeInterface, "detectLocal.bridgeInterface", c.DetectLocal.BridgeInterface},
		{LocalModeInterfaceNamePrefix, "detectLocal.interfaceNamePrefix", c.DetectLocal.InterfaceNamePrefix},
	} {
		switch {
		case i.name == "" && c.DetectLocalMode == i.mode:
			errs.Add(i.path, "must not be empty with the detectLocalMode %s", i.mode)
		case i.name != "" && !state.IsInterfaceName(i.name):
			errs.Add(i.path, "must be an interface's name of at most %d bytes, got %q", state.MaxInterfaceName, i.name)
		}
	}
	const at = "detectLocal.clusterCIDRs"
	cidrs := c.DetectLocal.ClusterCIDRs
	if len(cidrs) > 2 || len(cidrs) == 2 && cidrs[0].Addr().Is4() == cidrs[1].Addr().Is4() {
		errs.Add(at, "must be one CIDR, or two of different families, got %v", cidrs)
	}
	for i, p := range cidrs {
		if !p.IsValid() {
			errs.Add(IndexPath(at, i), "must be a CIDR such as 10.244.0.0/16")
		}
	}
}

func (c *Config) validateAnnotations(errs *FieldErrors) {
	const at = "acceptAnnotationsOf"
	known := brain.AnnotationDomains()
	for i, domain := range c.AcceptAnnotationsOf {
		switch {
		case !slices.Contains(known, domain):
			errs.Add(IndexPath(at, i), "must be one of %s, got %q", strings.Join(known, ", "), domain)
		case slices.Contains(c.AcceptAnnotationsOf[:i], domain):
			errs.Add(IndexPath(at, i), "must not be in the list twice, got %q", domain)
		}
	}
}

func (h *NodeHealth) validate(errs *FieldErrors) {
	if d := h.NotReadyAfter.Duration; d < time.Second || d > 24*time.Hour {
		errs.Add("nodeHealth.notReadyAfter", "must be from 1s to 24h, got %v", h.NotReadyAfter)
	}
	if p := h.IgnoreAbovePercent; p < 1 || p > 100 {
		errs.Add("nodeHealth.ignoreAbovePercent", "must be from 1 to 100, got %d", p)
	}
}

func (s *Services) validate(errs *FieldErrors) {
	for i, p := range s.AllowedExternalIPs {
		if !p.IsValid() {
			errs.Add(IndexPath("services.allowedExternalIPs", i), "must be a CIDR such as 192.0.2.0/24")
		}
	}
	if s.MaxEntries < ByMemory || s.MaxEntries > brain.MaxEntries {
		errs.Add("services.maxEntries", "must be from 0 to %d, or %d to derive it from the memory limit, got %d", brain.MaxEntries, ByMemory, s.MaxEntries)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"maxEntriesPerNamespace", s.MaxEntriesPerNamespace}, {"maxEntriesPerNode", s.MaxEntriesPerNode}} {
		if f.value < ByMemory {
			errs.Add("services."+f.name, "must be 0 or more, or %d to derive it from the memory limit, got %d", ByMemory, f.value)
		}
	}
}

func (l *Linux) validate(errs *FieldErrors) {
	const at = "linux.conntrack."
	if l.Conntrack.MaxPerCore < 0 {
		errs.Add(at+"maxPerCore", "must not be negative, got %d", l.Conntrack.MaxPerCore)
	}
	if l.Conntrack.Min < 0 {
		errs.Add(at+"min", "must not be negative, got %d", l.Conntrack.Min)
	}
	errs.NotNegative(at+"tcpEstablishedTimeout", l.Conntrack.TCPEstablishedTimeout)
	errs.NotNegative(at+"tcpCloseWaitTimeout", l.Conntrack.TCPCloseWaitTimeout)
	errs.NotNegative(at+"udpTimeout", l.Conntrack.UDPTimeout)
	errs.NotNegative(at+"udpStreamTimeout", l.Conntrack.UDPStreamTimeout)
	if l.OOMScoreAdj < -1000 || l.OOMScoreAdj > 1000 {
		errs.Add("linux.oomScoreAdj", "must be from -1000 to 1000, got %d", l.OOMScoreAdj)
	}
}

// pipes is where the named pipes of a Windows machine are, in the address of one.
const pipes = "//./pipe/"

func (a *API) validate(errs *FieldErrors) {
	tcp, exposed := false, false
	for i, l := range a.Listen {
		scheme, rest, found := strings.Cut(l, "://")
		if !found {
			scheme, rest = "tcp", l
		}
		addr, err := netip.ParseAddrPort(rest)
		switch {
		case scheme == "unix" && path.IsAbs(rest):
		case scheme == "npipe" && len(rest) > len(pipes) && strings.HasPrefix(rest, pipes):
		case scheme == "tcp" && err == nil && addr.Port() > 0:
			tcp, exposed = true, exposed || !addr.Addr().Unmap().IsLoopback()
		default:
			errs.Add(IndexPath("api.listen", i), "must look like unix:///run/switchyard/api.sock, npipe:////./pipe/switchyard (on Windows) or tcp://192.0.2.10:10250, got %q", l)
		}
	}
	if mode, err := strconv.ParseUint(a.SocketMode, 8, 32); err != nil || mode > 0o777 {
		errs.Add("api.socketMode", "must be permissions in octal such as 0600, got %q", a.SocketMode)
	}
	for i, user := range a.SocketUsers {
		if user == "" {
			errs.Add(IndexPath("api.socketUsers", i), "must be the name or number of a user, got nothing")
		}
	}
	plain := !exposed && a.TLSCertFile == "" && a.TLSKeyFile == "" && a.ClientCAFile == ""
	if !tcp || plain {
		return
	}
	for _, f := range []struct{ name, value string }{
		{"tlsCertFile", a.TLSCertFile}, {"tlsKeyFile", a.TLSKeyFile}, {"clientCAFile", a.ClientCAFile},
	} {
		if f.value == "" {
			errs.Add("api."+f.name, "must not be empty: beyond this host, the API is served only with TLS and clients' certificates, which take all three files")
		}
	}
}
