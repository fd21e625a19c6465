package node

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/state"
)

// fixedFeed has one state, of one node.
type fixedFeed struct{ node *state.Node }

func (f fixedFeed) Next(context.Context, state.Revision) (*state.Update, error) {
	return &state.Update{Revision: 1, Full: true, Node: f.node}, nil
}

func newAgreement(c *config.Config, n *state.Node) (*agreement, *bytes.Buffer) {
	var log bytes.Buffer
	return &agreement{Feed: fixedFeed{n}, log: slog.New(slog.NewTextHandler(&log, nil)), fieldName: func(path string) string { return "--" + path }, config: c}, &log
}

func TestAgreement(t *testing.T) {
	cidr := netip.MustParsePrefix("10.244.0.0/16")
	bridge, everywhere := &state.LocalDetector{BridgeInterface: "cni0"}, &state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	own := func(c *config.Config) {
		c.DetectLocal.ClusterCIDRs, c.NodePortAddresses.Primary = []netip.Prefix{cidr}, true
	}
	for name, c := range map[string]struct {
		configure   func(*config.Config)
		api         state.Node
		detector    string
		nodePorts   string
		log         string
		inDisregard int
	}{
		"the API says it":             {nil, state.Node{LocalDetector: bridge, NodePorts: everywhere}, "BridgeInterface cni0", "0.0.0.0/0", "", 0},
		"the API says none":           {nil, state.Node{LocalDetector: &state.LocalDetector{}, NodePorts: everywhere}, "none", "0.0.0.0/0", "", 0},
		"an earlier server":           {own, state.Node{}, "ClusterCIDR 10.244.0.0/16", "primary", "", 0},
		"an earlier server, no own":   {nil, state.Node{}, "none", "primary", "upgrade the server, or this process if it is the older of the two, or set --detectLocal", 0},
		"both say the same":           {own, state.Node{LocalDetector: &state.LocalDetector{ClusterCIDRs: []netip.Prefix{cidr}}, NodePorts: &state.NodePortAddresses{Primary: true}}, "ClusterCIDR 10.244.0.0/16", "primary", "", 0},
		"both say, and not the same":  {own, state.Node{LocalDetector: bridge, NodePorts: everywhere}, "ClusterCIDR 10.244.0.0/16", "primary", "--detectLocal is ClusterCIDR 10.244.0.0/16 here and BridgeInterface cni0 at the server", 2},
		"the API says none, own some": {own, state.Node{LocalDetector: &state.LocalDetector{}, NodePorts: &state.NodePortAddresses{}}, "ClusterCIDR 10.244.0.0/16", "primary", "--nodePortAddresses is primary here and all at the server", 2},
	} {
		t.Run(name, func(t *testing.T) {
			configured := config.Default()
			configured.Mode = config.ModeNFTables
			if c.configure != nil {
				c.configure(configured)
			}
			before := c.api
			a, log := newAgreement(configured, &c.api)
			u, err := a.Next(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if d, p := u.Node.LocalDetector.String(), u.Node.NodePorts.String(); d != c.detector || p != c.nodePorts {
				t.Errorf("pods by %q, NodePorts on %q, want %q and %q", d, p, c.detector, c.nodePorts)
			}
			if got := log.String(); c.log == "" && got != "" || !strings.Contains(got, c.log) {
				t.Errorf("logged %q, want %q", got, c.log)
			}
			if got := a.problems(); len(got) != c.inDisregard {
				t.Errorf("problems %v, want %d", got, c.inDisregard)
			}
			if !c.api.Equal(&before) {
				t.Error("the node of the API was modified")
			}
			log.Reset()
			if again, _ := a.Next(t.Context(), 0); again.Node != u.Node || log.Len() > 0 {
				t.Errorf("the same node again is another one, and logged %q", log)
			}
		})
	}
}

// TestAgreementFollowsTheConfiguration: an override comes and goes with it.
func TestAgreementFollowsTheConfiguration(t *testing.T) {
	a, _ := newAgreement(config.Default(), &state.Node{LocalDetector: &state.LocalDetector{NodeCIDR: true}, NodePorts: &state.NodePortAddresses{}})
	next := func() string {
		u, err := a.Next(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return u.Node.LocalDetector.String()
	}
	if got := next(); got != "NodeCIDR" {
		t.Errorf("at first %s", got)
	}
	own := config.Default()
	own.DetectLocalMode, own.DetectLocal.InterfaceNamePrefix = config.LocalModeInterfaceNamePrefix, "veth"
	a.set(own)
	if got := next(); got != "InterfaceNamePrefix veth" || len(a.problems()) != 1 {
		t.Errorf("with an override %s, problems %v", got, a.problems())
	}
	a.set(config.Default())
	if got := next(); got != "NodeCIDR" || len(a.problems()) != 0 {
		t.Errorf("without it %s, problems %v", got, a.problems())
	}
}

// TestFallbackConfig: a brain that stands in for a relay decides as that did, but for what is set here.
func TestFallbackConfig(t *testing.T) {
	last := &state.Node{LocalDetector: &state.LocalDetector{BridgeInterface: "cni0"}, NodePorts: &state.NodePortAddresses{Primary: true}}
	c := config.Default()
	if b := FallbackConfig(c, "n", last); !b.LocalDetector.Equal(*last.LocalDetector) || !b.NodePorts.Equal(*last.NodePorts) {
		t.Errorf("without own settings %v, %v", b.LocalDetector, b.NodePorts)
	}
	c.DetectLocalMode, c.NodePortAddresses.All = config.LocalModeNodeCIDR, true
	if b := FallbackConfig(c, "n", last); !b.LocalDetector.NodeCIDR || !b.NodePorts.Equal(c.NodePorts()) {
		t.Errorf("with own settings %v, %v", b.LocalDetector, b.NodePorts)
	}
	if b := FallbackConfig(config.Default(), "n", &state.Node{}); b.LocalDetector.Enabled() {
		t.Errorf("without a relay %v", b.LocalDetector)
	}
}
