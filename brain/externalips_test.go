package brain_test

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// TestExternalIPs: CVE-2020-8554. It checks which externalIPs of a service are routed, and the reasons for the others.
func TestExternalIPs(t *testing.T) {
	holder := func(a netip.Addr) (h brain.Holder) {
		switch {
		case slices.Contains(addrs("172.16.0.1 fd16::1 192.0.2.200"), a):
			h.Is = "the address of a node"
		case slices.Contains(addrs("192.0.2.66"), a): // the service has port 80
			h = brain.Holder{Is: "an address of the API server", Ports: []uint16{6443, 80}}
		case slices.Contains(addrs("192.0.2.67"), a):
			h = brain.Holder{Is: "an address of the API server", Ports: []uint16{6443}}
		}
		return h
	}
	const off = " is ignored because feature gate AllowServiceExternalIPs is false"
	for _, c := range []struct {
		name      string
		allowed   string
		nodes     bool
		externals string
		routed    string
		refused   string // the reasons, of each address
	}{
		{"none", "", false, "", "", ""},
		{"any address", "", false, "192.0.2.1 8.8.8.8", "192.0.2.1 8.8.8.8", ""},
		{"special", "", false, "127.0.0.1 192.0.2.1 0.0.0.0 169.254.169.254 239.1.1.1 255.255.255.255", "192.0.2.1", "127.0.0.1 is a loopback address, " +
			"0.0.0.0 is unspecified, 169.254.169.254 is a link-local address, 239.1.1.1 is a multicast address, 255.255.255.255 is the broadcast address"},
		{"of nodes", "", false, "172.16.0.1 192.0.2.1 172.16.0.2", "192.0.2.1 172.16.0.2", "172.16.0.1 is the address of a node"},
		{"of nodes, allowed", "", true, "172.16.0.1 192.0.2.1", "172.16.0.1 192.0.2.1", ""},
		{"in ranges", "192.0.2.0/25 fd01::/64", false, "192.0.2.127 192.0.2.128", "192.0.2.127", "192.0.2.128 is not in the ranges that the operator allows"},
		{"in ranges with nodes in them", "192.0.2.0/24", false, "192.0.2.1 192.0.2.200", "192.0.2.1", "192.0.2.200 is the address of a node"},
		{"in ranges, and those of nodes allowed", "192.0.2.0/24", true, "192.0.2.200 172.16.0.1", "192.0.2.200",
			"172.16.0.1 is not in the ranges that the operator allows"},
		{"of the API server", "", false, "192.0.2.66 192.0.2.67 192.0.2.1", "192.0.2.1", "192.0.2.66 is an address of the API server, which listens on TCP port 80, " +
			"192.0.2.67 is an address of the API server"},
		{"of the API server, and those of nodes allowed", "192.0.2.0/24", true, "192.0.2.66 192.0.2.67", "192.0.2.67",
			"192.0.2.66 is an address of the API server, which listens on TCP port 80"},
		{"gate off", "", false, "192.0.2.1 127.0.0.1", "", "192.0.2.1" + off + ", 127.0.0.1" + off},
		{"gate off, in ranges with those of nodes", "192.0.2.0/24", true, "192.0.2.200", "", "192.0.2.200" + off},
		{"special ones in ranges", "0.0.0.0/0", true, "127.0.0.1 8.8.8.8", "8.8.8.8", "127.0.0.1 is a loopback address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, svc := config(), service()
			cfg.ExternalIPs, cfg.NodeExternalIPs = prefixes(c.allowed), c.nodes
			cfg.IgnoreExternalIPs = strings.HasPrefix(c.name, "gate off")
			svc.ExternalIPs = addrs(c.externals)
			admitted, refusals := brain.AdmitExternalIPs(cfg, svc, holder)
			var reasons []string
			for _, r := range refusals {
				reasons = append(reasons, r.Addr.String()+" "+r.Why)
				if r.Remedy == "" {
					t.Errorf("no remedy for %v", r.Addr)
				}
			}
			if got := strings.Join(reasons, ", "); got != c.refused {
				t.Errorf("refused: %s\nwant: %s", got, c.refused)
			}
			if !slices.Equal(admitted.ExternalIPs, addrs(c.routed)) || c.refused == "" && admitted != svc {
				t.Errorf("admitted %v, want %v", admitted.ExternalIPs, c.routed)
			}
			if !slices.Equal(svc.ExternalIPs, addrs(c.externals)) {
				t.Error("the service was modified")
			}
			// Compute applies all rules but the one about holders by itself.
			if !strings.Contains(c.refused, "node") && !strings.Contains(c.refused, "API server") {
				if a, b := compute(t, cfg, thisNode(), svc), compute(t, cfg, thisNode(), admitted); !a.Equal(b) {
					t.Errorf("got\n%s\nwant\n%s", showFrontends(a), showFrontends(b))
				}
			}
		})
	}
	if svc, refusals := brain.AdmitExternalIPs(config(), nil, nil); svc != nil || refusals != nil {
		t.Error("no service has externalIPs")
	}
}

// TestConfigEqual changes each field of a configuration.
func TestConfigEqual(t *testing.T) {
	full := func() *brain.Config {
		return &brain.Config{NodeName: "n", ServiceProxyName: "p", ExternalIPs: prefixes("192.0.2.0/24")}
	}
	if !full().Equal(full()) {
		t.Error("a configuration does not equal itself")
	}
	fields := reflect.TypeFor[brain.Config]()
	for i := range fields.NumField() {
		c := full()
		switch f := reflect.ValueOf(c).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("other")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int64:
			f.SetInt(7)
		default:
			switch f.Interface().(type) {
			case state.LocalDetector:
				c.LocalDetector.BridgeInterface = "cni0"
			case state.NodePortAddresses:
				c.NodePorts.CIDRs = prefixes("192.0.2.0/25")
			case []netip.Prefix:
				c.ExternalIPs = prefixes("192.0.2.0/25")
			case []string:
				c.AcceptAnnotationsOf = []string{"cilium.io"}
			case []brain.Young:
				c.Young = []brain.Young{{Addr: netip.MustParseAddr("192.0.2.1"), Age: 3}}
			case brain.NodeHealth:
				c.NodeHealth.IgnoreAbove = 7
			case brain.Edge:
				c.Edge.Kinds = state.KindsOf(state.NodePort)
			case []netip.Addr:
				c.NoRanges = addrs("192.0.2.1")
			default:
				t.Fatalf("the test cannot change %s", fields.Field(i).Name)
			}
		}
		if c.Equal(full()) || full().Equal(c) {
			t.Errorf("a change of %s makes no difference", fields.Field(i).Name)
		}
	}
}
