//go:build linux

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/randcluster"
	"github.com/switchyard-net/switchyard/test/recordtest"
	"github.com/switchyard-net/switchyard/test/topology"
)

var (
	seeds     = flag.Int("seeds", 2, "number of random histories of TestDifferential")
	firstSeed = flag.Uint64("first-seed", 1, "the first of them, to repeat a failure")
)

const (
	// steps is the number of states of each history that are compared.
	steps = 12
	// warmup is the number of states before them: it takes some until many slices have services.
	warmup = 12
)

// samples is how many packets are sent in each state at most, by what the oracle says of them.
var samples = map[probe.Outcome]int{probe.Forward: 50, probe.Reject: 12, probe.Drop: 14, probe.Pass: 6}

// TestDifferential lets upstream kube-proxy and Switchyard follow the same API server through random histories. The same
// packets must have the same fate with both, unless the difference is one that is meant.
func TestDifferential(t *testing.T) {
	pool := newPool(t, 2)
	for i, mode := range upstreamModes(*dataplaneName) {
		n := *seeds
		if i > 0 {
			n = (n + 3) / 4
		}
		t.Run(mode, func(t *testing.T) { runDifferential(t, pool, mode, n) })
	}
}

// upstreamModes are the modes of upstream kube-proxy that a dataplane is compared with, the first of them in most histories.
func upstreamModes(dataplane string) []string {
	switch dataplane {
	case "iptables", "ipvs":
		return []string{dataplane}
	case "userspace":
		return []string{"nftables"}
	}
	return []string{"nftables", "iptables"}
}

func runDifferential(t *testing.T, pool chan *controlplane.ControlPlane, mode string, seeds int) {
	for seed := *firstSeed; seed < *firstSeed+uint64(seeds); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			t.Parallel()
			plane := <-pool
			defer func() { pool <- plane }()
			r, err := newRace(t, plane, seed, mode, nil)
			if err != nil {
				t.Fatal(err)
			}
			wrong, err := r.run(t.Context())
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if len(wrong) > 0 {
				t.Fatalf("seed %d: %d packets have different fates:\n%s", seed, len(wrong), strings.Join(wrong, "\n"))
			}
			t.Logf("packets compared: %v; differences that are meant: %v", r.compared, r.meant)
		})
	}
}

// TestDifferentialNoticesFaults runs a dataplane of ours that does something else than it should. Not every history has a service with
// several endpoints and without affinity for it to be seen.
func TestDifferentialNoticesFaults(t *testing.T) {
	pool := newPool(t, 1)
	plane := <-pool
	noticed := 0
	for seed := uint64(1); seed <= 5 && noticed == 0; seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			r, err := newRace(t, plane, seed, "nftables", func(b backend.Backend) backend.Backend { return careless{b} })
			if err != nil {
				t.Fatal(err)
			}
			wrong, err := r.run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			noticed += len(wrong)
			t.Logf("noticed:\n%s", strings.Join(wrong, "\n"))
		})
	}
	if noticed == 0 {
		t.Error("a dataplane forgets endpoints, and drops what it should reject, and no difference was noticed")
	}
}

// careless is a dataplane that forgets the last of several endpoints, and drops what it should reject, in two namespaces.
type careless struct{ backend.Backend }

func (s careless) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	wrong := *u
	wrong.Changed = nil
	for _, service := range u.Changed {
		if !slices.Contains([]string{"blue", "green"}, service.Name.Namespace) { // whose services histories change
			wrong.Changed = append(wrong.Changed, service)
			continue
		}
		c := *service
		c.Ports = slices.Clone(service.Ports)
		for i := range c.Ports {
			p := &c.Ports[i]
			for _, route := range p.Routes() {
				switch n := len(route.Endpoints); {
				case n > 1:
					route.Endpoints = route.Endpoints[:n-1]
				case route.Verdict == state.Reject:
					route.Verdict = state.Drop
				}
			}
		}
		wrong.Changed = append(wrong.Changed, &c)
	}
	return s.Backend.Apply(ctx, &wrong)
}

// race is a history that both proxies follow.
type race struct {
	client         *apicluster.Client
	upstream, ours *node
	marks          marks
	history        *randcluster.History
	anchors        []*model.EndpointSlice
	rng            *rand.Rand
	ports          ports
	mode           string
	owners         map[model.Ref]string // the services that slices had at last

	compared map[probe.Outcome]int // packets, by what the oracle says
	meant    map[string]int        // packets with a difference that is meant, by its name
}

func newRace(t *testing.T, plane *controlplane.ControlPlane, seed uint64, mode string, wrap func(backend.Backend) backend.Backend) (*race, error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	s := settings{mode: mode, wrap: wrap, masqueradeAll: rng.IntN(4) == 0, externalIPs: rng.IntN(4) > 0, clusterCIDRs: podCIDRs}
	client, err := apicluster.NewClient(plane.Config())
	if err != nil {
		return nil, err
	}
	r := &race{client: client, rng: rng, mode: mode, marks: marks{client: client}, owners: map[model.Ref]string{},
		compared: map[probe.Outcome]int{}, meant: map[string]int{}}
	t.Cleanup(func() {
		if err := client.Wipe(context.Background()); err != nil {
			t.Error(err)
		}
	})
	// kube-proxy reads its node once, at the start.
	if r.ours, err = startOurs(t.Context(), plane, s); err != nil {
		return nil, err
	}
	t.Cleanup(func() { closeNode(t, r.ours) })
	node := &model.Node{Name: r.ours.Node().Name, Addresses: r.ours.Node().Addrs}
	if _, err := client.Set(t.Context(), node); err != nil {
		return nil, err
	}
	if r.upstream, err = startUpstream(t.Context(), plane, t.TempDir(), s); err != nil {
		return nil, err
	}
	t.Cleanup(func() { closeNode(t, r.upstream) })
	options, err := r.populate()
	if err != nil {
		return nil, err
	}
	options.DetectLocal, options.MasqueradeAll, options.IgnoreExternalIPs = true, s.masqueradeAll, !s.externalIPs
	r.history = randcluster.New(seed, options)
	r.marks.optedOut = r.optedOut
	for i, cidr := range options.ServiceCIDRs {
		if _, err := client.Set(t.Context(), &model.ServiceCIDR{Name: fmt.Sprintf("cidr-%d", i), CIDRs: []netip.Prefix{cidr}}); err != nil {
			return nil, err
		}
	}
	if err := r.marks.begin(t.Context(), r.ours); err != nil {
		return nil, err
	}
	return r, r.settle(t.Context())
}

func closeNode(t *testing.T, n *node) {
	if err := n.stop(); err != nil {
		t.Errorf("%s: %v", n.name, err)
	}
}

// populate starts pods and servers and returns what histories may make of them.
func (r *race) populate() (randcluster.Options, error) {
	l := r.ours.Lab
	node, other := l.Node(), l.OtherNode()
	o := randcluster.Options{
		Admissible:        true,
		Nodes:             []randcluster.Node{{Name: node.Name, Addresses: node.Addrs}, {Name: other.Name, Addresses: other.Addrs}},
		FixedNodes:        true,
		ServiceCIDRs:      l.Options().ServiceCIDRs,
		FixedServiceCIDRs: true,
		LoadBalancerIPs:   recordtest.Addrs("203.0.113.1", "203.0.113.2", "203.0.113.3", "2001:db8:113::1", "2001:db8:113::2", "2001:db8:113::3"),
		ExternalIPs:       recordtest.Addrs("203.0.113.9", "203.0.113.10", "203.0.113.1", "2001:db8:113::9", "2001:db8:113::10", "2001:db8:113::1"),
		SourceRanges:      sourceRanges(l),
		Protocols:         []state.Protocol{state.TCP, state.UDP},
		OutsideClients:    l.Client().Addrs,
		Foreign:           recordtest.Addrs("198.51.100.200", "2001:db8:51::200"),
	}
	for i := range 6 {
		o.ClusterIPs = append(o.ClusterIPs, netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", i+1)))
	}
	for i := range uint16(24) {
		o.NodePorts = append(o.NodePorts, 30080+i)
	}
	if topology.HasSCTP() {
		o.Protocols = append(o.Protocols, state.SCTP)
	}
	if _, err := r.upstream.populate(o.Protocols); err != nil {
		return o, err
	}
	endpoints, err := r.ours.populate(o.Protocols)
	if err != nil {
		return o, err
	}
	for host, on := range endpoints {
		for _, addr := range host.Addrs {
			for _, port := range servedPorts {
				o.Endpoints = append(o.Endpoints, randcluster.Endpoint{Addr: netip.AddrPortFrom(addr, port), Node: on.Name})
			}
		}
	}
	r.anchors = anchors(r.ours, o.Protocols)
	slices.SortFunc(o.Endpoints, func(a, b randcluster.Endpoint) int { return a.Addr.Compare(b.Addr) })
	o.PodClients = l.Pod(clientPod).Addrs
	return o, nil
}

// sourceRanges are some that clients are in, and some that they are not in.
func sourceRanges(l *topology.Lab) []netip.Prefix {
	list := slices.Concat(l.Options().Underlay, l.Options().NodePodCIDRs)
	for _, host := range []*topology.Host{l.Node(), l.Client()} {
		for _, addr := range host.Addrs {
			list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	for _, text := range []string{"0.0.0.0/0", "::/0", "198.51.100.0/24", "2001:db8:51::/64", "203.0.113.0/24"} {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// run takes the history's steps until packets have different fates, and describes those.
func (r *race) run(ctx context.Context) ([]string, error) {
	if err := r.anchor(ctx); err != nil {
		return nil, err
	}
	for range warmup {
		if err := r.change(ctx); err != nil {
			return nil, err
		}
	}
	for step := range steps {
		wrong, err := r.step(ctx)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		if len(wrong) > 0 {
			return wrong, nil
		}
	}
	return nil, nil
}

// step changes the cluster, waits until both proxies have seen it, and describes the packets whose fates differ.
func (r *race) step(ctx context.Context) ([]string, error) {
	if err := r.change(ctx); err != nil {
		return nil, err
	}
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	return r.compare(ctx), nil
}

// settle waits until both proxies have seen all changes. It is also waited for before the first: a zone that the node gets
// while kube-proxy starts is lost on it now and then, see docs/differences.md.
func (r *race) settle(ctx context.Context) error {
	if err := r.marks.change(ctx, r.ours); err != nil {
		return err
	}
	for _, n := range []*node{r.ours, r.upstream} {
		if err := r.marks.seen(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// optedOut are the namespaces that have opted out.
func (r *race) optedOut() map[string]bool {
	out := map[string]bool{}
	for _, n := range r.history.World().Namespaces {
		out[n.Name] = n.ProxyDisabled
	}
	return out
}

// change lets the history take a step.
func (r *race) change(ctx context.Context) error {
	set, deleted := r.history.Step()
	for _, ref := range deleted {
		if err := r.client.Delete(ctx, ref); err != nil {
			return err
		}
	}
	for _, obj := range set {
		if err := r.disown(ctx, obj); err != nil {
			return err
		}
		_, err := r.client.Set(ctx, obj)
		if apierrors.IsInvalid(err) {
			return fmt.Errorf("histories should only make what is admitted: %w", err)
		}
		if err != nil {
			return err
		}
		if n, ok := obj.(*model.Node); ok && n.Name == r.ours.Node().Name {
			r.marks.zone = n.Zone
		}
	}
	return nil
}

// disown deletes a slice that is about to change its service: upstream would leave its endpoints with both. See
// sliceChangesService.
func (r *race) disown(ctx context.Context, obj model.Object) error {
	slice, ok := obj.(*model.EndpointSlice)
	if !ok {
		return nil
	}
	owner, known := r.owners[slice.Ref()]
	r.owners[slice.Ref()] = slice.Service
	if !known || owner == slice.Service {
		return nil
	}
	return r.client.Delete(ctx, slice.Ref())
}

// compare sends a sample of the packets that are worth it.
func (r *race) compare(ctx context.Context) []string {
	world := r.history.World()
	world.Slices = append(world.Slices, r.anchors...)
	packets := slices.DeleteFunc(r.history.Packets(), func(p probe.Packet) bool { return r.ours.senders[p.Src] == nil })
	r.rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	var mu sync.Mutex
	var wrong []string
	var wg sync.WaitGroup
	taken := map[probe.Outcome]int{}
	// A client whose first two connections to a Service port come at once may get two endpoints.
	type visitor struct {
		client netip.Addr
		port   string
	}
	visitors := map[visitor]*sync.Mutex{}
	for _, p := range packets {
		want := world.Ask(p)
		if taken[want.Outcome] == samples[want.Outcome] {
			continue
		}
		taken[want.Outcome]++
		r.compared[want.Outcome]++
		c := comparison{r: r, packet: p, want: want, firstPort: r.ports.take(maxConnections)}
		inTurn := new(sync.Mutex)
		if v := (visitor{p.Src, want.Affinity}); want.Affinity != "" {
			if visitors[v] == nil {
				visitors[v] = inTurn
			}
			inTurn = visitors[v]
		}
		wg.Go(func() {
			inTurn.Lock()
			defer inTurn.Unlock()
			meant, text := c.run(ctx, world)
			mu.Lock()
			defer mu.Unlock()
			if meant != "" {
				r.meant[meant]++
			} else if text != "" {
				wrong = append(wrong, text)
			}
		})
	}
	wg.Wait()
	return wrong
}

// maxConnections is how many connections are made at most to see all endpoints of a frontend.
const maxConnections = 250

// comparison is one packet on both nodes.
type comparison struct {
	r         *race
	packet    probe.Packet
	want      probe.Answer
	firstPort uint16
}

// run returns the name of the difference if it is meant, or a text if it is not.
func (c *comparison) run(ctx context.Context, world *oracle.World) (meant, wrong string) {
	upstream, ours, ok := c.observe(ctx, false)
	if ok {
		return "", ""
	}
	for _, d := range differences {
		if (d.mode == "" || d.mode == c.r.mode) && d.is(world, c.packet, c.want, upstream, ours) {
			return d.name, ""
		}
	}
	c.firstPort = c.r.ports.take(maxConnections)
	if upstream, ours, ok = c.observe(ctx, true); ok {
		return "", ""
	}
	return "", fmt.Sprintf("%v:\n\tkube-proxy: %v\n\tswitchyard: %v\n\tthe oracle: %+v%s", c.packet, upstream, ours, c.want, concerned(world, c.packet))
}

// concerned prints the services that may have to do with a packet, and their slices.
func concerned(w *oracle.World, p probe.Packet) string {
	var text strings.Builder
	for _, s := range w.Services {
		hasPort := func(sp model.ServicePort) bool { return sp.NodePort == p.Dst.Port() }
		if !slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs), p.Dst.Addr()) && !slices.ContainsFunc(s.Ports, hasPort) {
			continue
		}
		fmt.Fprintf(&text, "\n\t%+v", *s)
		for _, slice := range w.Slices {
			if slice.ServiceName() == s.Name {
				fmt.Fprintf(&text, "\n\t\t%+v", *slice)
			}
		}
	}
	return text.String()
}

// observe connects on both nodes, and more often where they do not agree, to see all endpoints.
func (c *comparison) observe(ctx context.Context, patient bool) (upstream, ours observation, same bool) {
	timeout := answerTimeout
	if !patient && c.maybeSilent() {
		timeout = silence
	}
	if c.want.Affinity != "" {
		return c.observeAffinity(ctx, timeout)
	}
	choices := max(1, len(c.want.Choices))
	batch := 1
	if c.want.Outcome == probe.Forward {
		batch = min(4*choices, 40)
	}
	for done := 0; done < min(24*choices, maxConnections-batch); done += batch {
		var wg sync.WaitGroup
		port := c.firstPort + uint16(done)
		wg.Go(func() { c.r.upstream.observe(ctx, &upstream, c.packet, port, batch, timeout) })
		wg.Go(func() { c.r.ours.observe(ctx, &ours, c.packet, port, batch, timeout) })
		wg.Wait()
		if c.relayed(upstream).same(ours) {
			return upstream, ours, true
		}
		if len(upstream.others)+len(ours.others) > 0 {
			break // it does not depend on the endpoint
		}
	}
	return upstream, ours, false
}

// observeAffinity connects once: the first connection draws an endpoint, and both proxies draw for themselves.
func (c *comparison) observeAffinity(ctx context.Context, timeout time.Duration) (upstream, ours observation, same bool) {
	c.r.upstream.observe(ctx, &upstream, c.packet, c.firstPort, 2, timeout)
	c.r.ours.observe(ctx, &ours, c.packet, c.firstPort, 2, timeout)
	if c.relayed(upstream).same(ours) {
		return upstream, ours, true
	}
	for _, o := range []observation{c.relayed(upstream), ours} {
		if len(o.servers) != 1 || len(o.others) != 0 {
			return upstream, ours, false
		}
		for server, source := range o.servers {
			if !slices.ContainsFunc(c.want.Choices, func(choice probe.Choice) bool {
				return choice.Endpoint.String() == server && (c.atHome(choice) || c.isRelayed() || c.sourceOf(choice) == source)
			}) {
				return upstream, ours, false
			}
		}
	}
	return upstream, ours, true
}

// isRelayed reports whether our dataplane is a relay, whose connections come from the node. See "Mode userspace" in docs/differences.md.
func (c *comparison) isRelayed() bool {
	return *dataplaneName == "userspace" && c.packet.Protocol != state.SCTP
}

// relayed returns what is to be seen of our dataplane if something was seen of upstream.
func (c *comparison) relayed(upstream observation) observation {
	if !c.isRelayed() {
		return upstream
	}
	servers := map[string]string{}
	for server := range upstream.servers {
		servers[server] = "node"
	}
	upstream.servers = servers
	return upstream
}

// atHome reports whether an endpoint is the node itself: what the node delivers to itself does not pass the place where sources
// are changed.
func (c *comparison) atHome(choice probe.Choice) bool {
	return slices.Contains(c.r.ours.Node().Addrs, choice.Endpoint.Addr())
}

func (c *comparison) sourceOf(choice probe.Choice) string {
	if choice.Masquerade {
		return "node"
	}
	return c.r.ours.sourceKind(c.packet.Src, c.packet.Src)
}

// maybeSilent reports whether no answer is expected, or its way back leads past the node.
func (c *comparison) maybeSilent() bool {
	switch c.want.Outcome {
	case probe.Reject:
		return false
	case probe.Forward:
		return c.r.ours.senders[c.packet.Src] == c.r.ours.Client()
	}
	return true
}

func sameAnswer(a, b probe.Answer) bool {
	return a.Outcome == b.Outcome && a.Affinity == b.Affinity && slices.Equal(a.Choices, b.Choices)
}
