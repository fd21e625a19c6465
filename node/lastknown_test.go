package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// clusterSource is the source of a cluster, which delivers nothing by itself.
type clusterSource struct{}

func (clusterSource) Run(ctx context.Context, _ model.Sink) error {
	<-ctx.Done()
	return nil
}

func (clusterSource) NodeEligible() bool { return true }

// newClusterNode returns a node of a cluster that is not run: what is delivered is delivered by the test.
func newClusterNode(t *testing.T, role Role, change func(*config.Config)) (*Node, *bytes.Buffer) {
	t.Helper()
	return newSourceNode(t, role, clusterSource{}, change)
}

func newSourceNode(t *testing.T, role Role, src model.Source, change func(*config.Config)) (*Node, *bytes.Buffer) {
	t.Helper()
	c := config.Default()
	c.HostnameOverride, c.AdminBindAddress, c.Mode = "n", config.AdminNowhere, config.ModeNFTables
	change(c)
	var log bytes.Buffer
	n, err := New(t.Context(), Options{Config: c, Role: role, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Source: func(*config.Config, string) (model.Source, error) { return src, nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	t.Cleanup(func() { _ = n.Run(ctx) }) // closes what New has opened
	return n, &log
}

// nodeOf returns this Node as dataplanes see it.
func nodeOf(t *testing.T, n *Node) *state.Node {
	t.Helper()
	p := n.pipeline.Load()
	feed := p.feed
	if n.o.Role == Relay {
		var err error
		if feed, err = p.serve.Feed("n"); err != nil {
			t.Fatal(err)
		}
	}
	u, err := feed.Next(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return u.Node
}

// TestNodeLosesFields has NodePorts and pods stay what they are while the Node lacks its addresses and pod CIDRs, is gone, and has come back
// without them; each is reported until it is over.
func TestNodeLosesFields(t *testing.T) {
	internal, external := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")
	cidr := netip.MustParsePrefix("10.244.1.0/24")
	whole := func() *model.Node {
		return &model.Node{Name: "n", Addresses: []netip.Addr{internal, external}, Internal: 1, PodCIDRs: []netip.Prefix{cidr}}
	}
	for _, role := range []Role{Server, Relay} {
		t.Run(fmt.Sprint("role ", role), func(t *testing.T) {
			n, log := newClusterNode(t, role, func(c *config.Config) {
				c.NodePortAddresses.Primary, c.DetectLocalMode = true, config.LocalModeNodeCIDR
			})
			sink := n.pipeline.Load().sink
			sink.Update([]model.Object{whole()}, nil)
			sink.Complete()
			for _, step := range []struct {
				what    string
				set     *model.Node // nil: the Node is deleted
				problem string      // empty: none
			}{
				{"it is whole", whole(), ""},
				{"without addresses", &model.Node{Name: "n", PodCIDRs: []netip.Prefix{cidr}}, "node n: status.addresses: "},
				{"without its internal address", &model.Node{Name: "n", Addresses: []netip.Addr{external}, PodCIDRs: []netip.Prefix{cidr}}, "node n: status.addresses: "},
				{"it is whole again", whole(), ""},
				{"without pod CIDRs", &model.Node{Name: "n", Addresses: []netip.Addr{internal}, Internal: 1}, "node n: spec.podCIDRs: "},
				{"deleted", nil, "the Node has been deleted"},
				{"created again", &model.Node{Name: "n"}, "node n: status.addresses: "},
				{"complete again", whole(), ""},
			} {
				if step.set == nil {
					sink.Update(nil, []model.Ref{{Kind: model.KindNode, Name: "n"}})
				} else {
					sink.Update([]model.Object{step.set}, nil)
				}
				if step.set == nil && role == Relay {
					step.problem = "" // machines are taken away
				}
				now := nodeOf(t, n)
				if got := now.NodePorts.Select(nil, now); !slices.Equal(got, []netip.Addr{internal}) || !slices.Equal(now.PodCIDRs, []netip.Prefix{cidr}) {
					t.Errorf("%s: NodePorts are served on %v, pods have addresses in %v; want %v and %v", step.what, got, now.PodCIDRs, internal, cidr)
				}
				var problems []string
				for _, p := range n.health.Problems() {
					if p.Part == "nodes" {
						problems = append(problems, p.Message)
					}
				}
				if text := strings.Join(problems, "\n"); (step.problem == "") != (text == "") || !strings.Contains(text, step.problem) {
					t.Errorf("%s: the problems are %q, want %q", step.what, text, step.problem)
				}
				if count := n.countNodeProblems(); (count > 0) != (step.problem != "") {
					t.Errorf("%s: %d nodes have problems", step.what, count)
				}
			}
			if text := log.String(); !strings.Contains(text, "reason=NodeAddressesLost") || !strings.Contains(text, "no longer lacks a field") {
				t.Errorf("the log is\n%s", text)
			}
		})
	}
}

// TestNodeIPSettingsCount has another family policy take effect: what it takes from the Node is not lost.
func TestNodeIPSettingsCount(t *testing.T) {
	n, _ := newClusterNode(t, Server, func(c *config.Config) { c.NodePortAddresses.Primary = true })
	p := n.pipeline.Load()
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	p.sink.Update([]model.Object{&model.Node{Name: "n", Addresses: []netip.Addr{v4, v6}, Internal: 2}}, nil)
	p.sink.Complete()
	single := *n.Config()
	single.IPFamilyPolicy = config.SingleStack
	p.reconfigure(&single)
	if now := nodeOf(t, n); !slices.Equal(now.Addresses, []netip.Addr{v4}) {
		t.Errorf("the node has %v, want %v alone", now.Addresses, v4)
	}
}

// TestUndetectedPods reports a configuration by which no client is a pod, where there is a cluster.
func TestUndetectedPods(t *testing.T) {
	v6 := netip.MustParsePrefix("fd44::/48")
	for name, c := range map[string]struct {
		change func(*config.Config)
		want   string
	}{
		"none":           {func(*config.Config) {}, "detectLocal.clusterCIDRs: there are no cluster CIDRs"},
		"another family": {func(c *config.Config) { c.DetectLocal.ClusterCIDRs = []netip.Prefix{v6} }, "no cluster CIDR of IPv4"},
		"both families": {func(c *config.Config) {
			c.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), v6}
		}, ""},
		"pod CIDRs": {func(c *config.Config) { c.DetectLocalMode = config.LocalModeNodeCIDR }, "node n: spec.podCIDRs: they are missing; pods count as clients from outside"},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newClusterNode(t, Server, c.change)
			sink := n.pipeline.Load().sink
			sink.Update([]model.Object{&model.Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Internal: 1}}, nil)
			sink.Complete()
			var text strings.Builder
			for _, p := range n.health.Problems() {
				if p.Part == "nodes" {
					text.WriteString(p.Message)
				}
			}
			if (c.want == "") != (text.String() == "") || !strings.Contains(text.String(), c.want) {
				t.Errorf("the problems are %q, want %q", text.String(), c.want)
			}
		})
	}
}

// TestUndetectedFamilyIsLogged logs once that there is no cluster CIDR of the family of the Node's first address, when that is known.
func TestUndetectedFamilyIsLogged(t *testing.T) {
	n, log := newClusterNode(t, Server, func(c *config.Config) {
		c.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("fd44::/48")}
	})
	p := n.pipeline.Load()
	logged := func() int {
		return strings.Count(log.String(), "pods are not told from clients outside of the cluster")
	}
	p.sink.Update([]model.Object{&model.Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Internal: 1}}, nil)
	if logged() > 0 {
		t.Errorf("before the source is complete, the log is\n%s", log)
	}
	p.sink.Complete()
	before := logged()
	p.reconfigure(n.Config())
	if before != 1 || logged() != 1 || !strings.Contains(log.String(), "no cluster CIDR of IPv4") {
		t.Errorf("the log is\n%s", log)
	}
}

// manifests is a source that has what people wrote.
type manifests struct{}

func (manifests) Run(ctx context.Context, _ model.Sink) error {
	<-ctx.Done()
	return nil
}

// TestManifestsMeanWhatTheyDoNotSay follows a Node that loses addresses, and goes, where no cluster has it.
func TestManifestsMeanWhatTheyDoNotSay(t *testing.T) {
	n, _ := newSourceNode(t, Server, manifests{}, func(c *config.Config) { c.NodePortAddresses.Primary = true })
	sink := n.pipeline.Load().sink
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	sink.Update([]model.Object{&model.Node{Name: "n", Addresses: []netip.Addr{v4, v6}, Internal: 2}}, nil)
	sink.Complete()
	sink.Update([]model.Object{&model.Node{Name: "n", Addresses: []netip.Addr{v4}, Internal: 1}}, nil)
	if now := nodeOf(t, n); !slices.Equal(now.Addresses, []netip.Addr{v4}) {
		t.Errorf("the node has %v, want %v alone", now.Addresses, v4)
	}
	sink.Update(nil, []model.Ref{{Kind: model.KindNode, Name: "n"}})
	if now := nodeOf(t, n); len(now.Addresses) > 0 {
		t.Errorf("the node that is gone has %v", now.Addresses)
	}
	if count, problems := n.countNodeProblems(), n.nodeProblems(); count+len(problems) > 0 {
		t.Errorf("%d nodes have the problems %v", count, problems)
	}
}

// TestAgreementKeepsTheNode goes on with what the API said last of this node.
func TestAgreementKeepsTheNode(t *testing.T) {
	addrs, cidrs := []netip.Addr{netip.MustParseAddr("192.0.2.1")}, []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	a, log := newAgreement(config.Default(), nil)
	detector := &state.LocalDetector{NodeCIDR: true}
	a.node(&state.Node{Name: "n", Addresses: addrs, PodCIDRs: cidrs, LocalDetector: detector})
	now := a.node(&state.Node{Name: "n", LocalDetector: detector})
	if !slices.Equal(now.Addresses, addrs) || !slices.Equal(now.PodCIDRs, cidrs) || len(a.problems()) != 2 {
		t.Errorf("the node is %+v, with the problems %v", now, a.problems())
	}
	if !strings.Contains(log.String(), "the API has lost fields of this node") {
		t.Errorf("the log is %q", log)
	}
	if other := a.node(&state.Node{Name: "m", LocalDetector: detector}); len(other.Addresses)+len(a.problems()) > 0 {
		t.Errorf("another node is %+v, with the problems %v", other, a.problems())
	}
}

// TestAgreementKeepsFamilies goes on with the addresses of the family that the API has lost, in the order of before.
func TestAgreementKeepsFamilies(t *testing.T) {
	v4, other4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")
	for _, step := range []struct{ now, want []netip.Addr }{
		{[]netip.Addr{v4}, []netip.Addr{v6, v4}},
		{[]netip.Addr{v6}, []netip.Addr{v6, v4}},
		{[]netip.Addr{other4}, []netip.Addr{v6, other4}},
		{[]netip.Addr{other4, v6}, []netip.Addr{other4, v6}},
	} {
		a, _ := newAgreement(config.Default(), nil)
		detector := &state.LocalDetector{NodeCIDR: true}
		a.node(&state.Node{Name: "n", Addresses: []netip.Addr{v6, v4}, LocalDetector: detector})
		now := a.node(&state.Node{Name: "n", Addresses: step.now, LocalDetector: detector})
		if lost := len(step.want) > len(step.now); !slices.Equal(now.Addresses, step.want) || len(a.problems()) > 0 != lost {
			t.Errorf("with %v, the node has %v and the problems %v; want %v", step.now, now.Addresses, a.problems(), step.want)
		}
	}
}
