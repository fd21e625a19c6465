package node

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/internal/winkernel"
	"github.com/switchyard-net/switchyard/state"
)

// TestSelectMode: a mode without a dataplane is an error with a remedy, unless nftables may take its place.
func TestSelectMode(t *testing.T) {
	for _, tt := range []struct {
		goos  string
		mode  config.Mode
		allow bool
		want  config.Mode
		err   string
	}{
		{"linux", "", false, config.ModeNFTables, ""},
		{"linux", config.ModeNFTables, false, config.ModeNFTables, ""},
		{"linux", config.ModeIPTables, true, config.ModeIPTables, ""},
		{"linux", config.ModeIPVS, true, config.ModeIPVS, ""},
		{"linux", config.ModeIPTables, false, config.ModeIPTables, ""},
		{"linux", config.ModeIPVS, false, config.ModeIPVS, ""},
		{"linux", config.ModeEBPF, false, config.ModeEBPF, ""},
		{"linux", config.ModeUserspace, false, config.ModeUserspace, ""},
		{"linux", config.ModeKernelspace, true, "", "mode kernelspace has no dataplane on linux: leave mode blank, or set it to one of nftables, ipvs"},
		{"darwin", config.ModeEBPF, true, "", "dataplanes need Linux or Windows"},
		{"windows", "", true, config.ModeKernelspace, ""},
		{"windows", config.ModeKernelspace, false, config.ModeKernelspace, ""},
		{"windows", config.ModeNFTables, false, "", "mode nftables has no dataplane on windows: leave mode blank, or set it to one of kernelspace, userspace"},
		{"windows", config.ModeUserspace, false, config.ModeUserspace, ""},
		{"darwin", "", true, "", "dataplanes need Linux or Windows"},
	} {
		c := config.Default()
		c.Mode, c.AllowModeFallback = tt.mode, tt.allow
		got, err := SelectMode(c, tt.goos)
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s, mode %q, fallback %v: got %q, %v, want %q and %q", tt.goos, tt.mode, tt.allow, got, err, tt.want, tt.err)
		}
	}
}

// TestFallbackKeepsTheBit: where nftables replaces a mode, it marks packets as the mode would.
func TestFallbackKeepsTheBit(t *testing.T) {
	c := config.Default()
	c.Mode, c.IPTables.MasqueradeBit, c.NFTables.MasqueradeBit = config.ModeIPTables, 7, 9
	if bit := *nftablesOptions(c, DataplaneOptions{}).MasqueradeBit; bit != 7 {
		t.Errorf("the bit is %d, want 7", bit)
	}
	was := settingsOf(c)
	c.IPTables.MasqueradeBit = 8
	if settingsOf(c).bit == was.bit {
		t.Error("a change of the bit goes unnoticed")
	}
}

// TestIPVSGoesByItsSection: every field reaches IPVS, and a change of one is one of the dataplane in mode ipvs only.
func TestIPVSGoesByItsSection(t *testing.T) {
	c := config.Default()
	c.Mode, c.ResetConnectionsToRemovedEndpoints = config.ModeIPVS, true
	second := config.Duration{Duration: time.Second}
	c.IPVS = config.IPVS{
		MasqueradeBit: 7, Scheduler: "lc", ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, StrictARP: true,
		TCPTimeout: second, TCPFinTimeout: second, UDPTimeout: second,
	}
	o := ipvsOptions(c, DataplaneOptions{TCPLingers: true})
	if *o.MasqueradeBit != 7 || o.Scheduler != "lc" || !slices.Equal(o.ExcludeCIDRs, c.IPVS.ExcludeCIDRs) || !o.StrictARP ||
		o.TCPTimeout != time.Second || o.TCPFinTimeout != time.Second || o.UDPTimeout != time.Second || !o.ResetRemoved {
		t.Errorf("the options are %+v", o)
	}
	for mode, want := range map[config.Mode]bool{config.ModeIPVS: true, config.ModeNFTables: false} {
		c.Mode, c.IPVS.Scheduler = mode, "lc"
		was := settingsOf(c)
		c.IPVS.Scheduler = "sh"
		if changed := !reflect.DeepEqual(was, settingsOf(c)); changed != want {
			t.Errorf("mode %s: a change of ipvs.scheduler is one of the dataplane: %v, want %v", mode, changed, want)
		}
	}
}

// TestRelayGoesByItsSection: what the section userspace says reaches the relay, and a change of it is one of the dataplane in mode userspace only.
func TestRelayGoesByItsSection(t *testing.T) {
	c := config.Default()
	c.Mode, c.Userspace.Policy, c.Userspace.MaxConnections, c.ResetConnectionsToRemovedEndpoints = config.ModeUserspace, "LeastConnections", 7, true
	o := relayOptions(c, DataplaneOptions{TCPLingers: true})
	if o.Policy != userspace.LeastConnections || o.MaxConnections != 7 || !o.ResetRemoved {
		t.Errorf("the options are %+v", o)
	}
	for mode, want := range map[config.Mode]bool{config.ModeUserspace: true, config.ModeNFTables: false} {
		c.Mode, c.Userspace.ProxyProtocol = mode, false
		was := settingsOf(c)
		c.Userspace.ProxyProtocol = true
		if changed := !reflect.DeepEqual(was, settingsOf(c)); changed != want {
			t.Errorf("mode %s: a change of userspace.proxyProtocol is one of the dataplane: %v, want %v", mode, changed, want)
		}
	}
}

// TestHNSGoesByItsSection: what the section winkernel says reaches the dataplane, with the port of /healthz, and a change of either is one of the
// dataplane in mode kernelspace only.
func TestHNSGoesByItsSection(t *testing.T) {
	c := config.Default()
	c.Mode, c.HealthzBindAddress = config.ModeKernelspace, netip.MustParseAddrPort("0.0.0.0:7")
	c.Winkernel = config.Winkernel{NetworkName: "vxlan0", SourceVIP: netip.MustParseAddr("192.0.2.9"), EnableDSR: true, RootHNSEndpointName: "root", ForwardHealthCheckVIP: true}
	if o := winkernelOptions(c, DataplaneOptions{}); o.Config != winkernel.Config(c.Winkernel) || o.HealthzPort != 7 {
		t.Errorf("the options are %+v", o)
	}
	for mode, want := range map[config.Mode]bool{config.ModeKernelspace: true, config.ModeNFTables: false} {
		c.Mode = mode
		for _, change := range []func(){
			func() { c.Winkernel.EnableDSR = !c.Winkernel.EnableDSR },
			func() {
				c.HealthzBindAddress = netip.AddrPortFrom(c.HealthzBindAddress.Addr(), c.HealthzBindAddress.Port()+1)
			},
		} {
			was := settingsOf(c)
			change()
			if changed := !reflect.DeepEqual(was, settingsOf(c)); changed != want {
				t.Errorf("mode %s: a change is one of the dataplane: %v, want %v", mode, changed, want)
			}
		}
	}
}

// TestHNSFailuresAreCounted: a call that HNS has refused is counted under kube-proxy's name for the operation.
func TestHNSFailuresAreCounted(t *testing.T) {
	for _, op := range []winkernel.Operation{winkernel.Create, winkernel.Update, winkernel.Delete} {
		n := &Node{registry: metrics.New(metrics.Options{Mode: metrics.ModeKernelspace, Families: families})}
		n.countHNSFailure(winkernel.Failure{Operation: op, Family: state.IPv6, Kind: state.ExternalIP, Err: errors.New("refused")})
		w := httptest.NewRecorder()
		n.registry.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		want := fmt.Sprintf(`kubeproxy_sync_proxy_rules_winkernel_lb_%v_failures_total{error="other",ip_family="IPv6",lb_type="externalip"} 1`, op)
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%v: there is no %s", op, want)
		}
	}
}

// TestHooksGoByTheirSection: what the section ebpf says reaches the hooks, and a change of it is one of the dataplane in mode ebpf only.
func TestHooksGoByTheirSection(t *testing.T) {
	c := config.Default()
	c.Mode, c.EBPF.CgroupPath, c.EBPF.Pods, c.EBPF.MeshPorts = config.ModeEBPF, "/cgroup", false, []int32{15001, 4140}
	o := (&ebpfDataplane{}).hooks(c)
	if o.CgroupPath != "/cgroup" || !o.NodeOnly || !slices.Equal(o.MeshPorts, []uint16{15001, 4140}) || o.Namespaces != nil {
		t.Errorf("the options are %+v", o)
	}
	if c.NFTables.Counters = true; o.Counters || !(&ebpfDataplane{}).hooks(c).Counters || !nftablesOptions(c, DataplaneOptions{}).Counters {
		t.Error("nftables.counters does not reach both layers")
	}
	for mode, want := range map[config.Mode]bool{config.ModeEBPF: true, config.ModeNFTables: false} {
		c.Mode, c.EBPF.Pods = mode, false
		was := settingsOf(c)
		c.EBPF.Pods = true
		if changed := !reflect.DeepEqual(was, settingsOf(c)); changed != want {
			t.Errorf("mode %s: a change of ebpf.pods is one of the dataplane: %v, want %v", mode, changed, want)
		}
	}
}
