//go:build linux

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/randcluster"
	"github.com/switchyard-net/switchyard/test/topology"
)

const (
	// steps is the number of states of each history.
	steps = 20
	// defaultSeeds make a run of about one and a half minutes.
	defaultSeeds = 16
)

// samples is how many packets are sent in each state at most, by the verdict of the oracle. Most of the relevant packets are refused or
// ignored, but most errors are possible in forwarding.
var samples = map[probe.Outcome]int{probe.Forward: 60, probe.Reject: 20, probe.Drop: 25, probe.Pass: 15}

// servedPorts are where every host that may be an endpoint serves.
var servedPorts = []uint16{53, 8080, 8081}

// RunHistories runs the random histories only. A failure names its seed; [Dataplane.FirstSeed] repeats it.
func RunHistories(t *testing.T, d Dataplane) {
	netnstest.Need(t)
	d = d.tracked(t)
	first := cmp.Or(d.FirstSeed, 1)
	for seed := first; seed < first+uint64(cmp.Or(d.Seeds, defaultSeeds)); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			t.Parallel()
			runHistory(t, d, seed)
		})
	}
}

// walk is a history that is being tried with real packets.
type walk struct {
	*cluster
	history *randcluster.History
	rng     *rand.Rand
	senders map[netip.Addr]*topology.Host
	owners  map[netip.Addr]*topology.Host // of all addresses that exist
	port    uint16
	visits  map[visitor]*visits // of this step
	// refused is the weight of what all Services with weights refuse, 0 for nothing.
	refused uint32
	mu      sync.Mutex // guards the rest
	// hashed are the servers that clients were led to by hashes.
	hashed map[hashedClient]string
	// expected is how many connections should have been refused, and seen is how many were.
	expected float64
	seen     int
}

// hashedClient is a client whose connections are hashed, and the endpoints with their weights. Nothing else counts.
type hashedClient struct {
	client  netip.Addr
	choices string
}

// visitor is a client and the Service port that it stays with an endpoint of.
type visitor struct {
	client netip.Addr
	port   string
}

// visits are the servers that have answered a visitor. It connects once at a time: two first connections at once may go to two
// endpoints.
type visits struct {
	mu      sync.Mutex
	servers []string
}

func runHistory(t *testing.T, d Dataplane, seed uint64) {
	err := tryHistory(t.Context(), d, seed, func(c *cluster) { checkHost(t, c) })
	if err != nil {
		t.Fatal(err)
	}
}

// tryHistory plays a history, and returns what went wrong in it. A history that goes well ends with a look at the host, if end is not nil.
func tryHistory(ctx context.Context, d Dataplane, seed uint64, end func(*cluster)) (err error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var o clusterOptions
	o.masqueradeAll = rng.IntN(4) == 0
	if rng.IntN(4) > 0 {
		o.detector = state.LocalDetector{ClusterCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48"),
		}}
	}
	o.nodePorts.Primary = rng.IntN(2) == 0
	if seed%2 == 1 { // as if each service were large
		o.partEntries = 1 + int(seed/2)%4
	}
	c, err := newCluster(ctx, d, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	defer func() {
		if err == nil && end != nil {
			end(c)
		}
	}()
	w := &walk{
		cluster: c, rng: rng, senders: map[netip.Addr]*topology.Host{}, owners: map[netip.Addr]*topology.Host{}, port: 20000, hashed: map[hashedClient]string{},
	}
	options, err := w.populate(d.Edge && seed%2 == 0)
	if err != nil {
		return err
	}
	options.DetectLocal, options.MasqueradeAll = o.detector.Enabled(), o.masqueradeAll
	options.NodePortAddrs = func(addr netip.Addr) bool { return slices.Contains(c.lab.Node().Addrs, addr) }
	options.Annotations = seed%4 < 2
	if seed%4 == 1 {
		w.refused = 65535 // so that a few packets show it, next to any weights
		for _, name := range randcluster.ServiceNames() {
			c.refuse(name, w.refused)
		}
	}
	w.history = randcluster.New(seed, options)
	for step := range steps {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := c.update(w.history.Step()); err != nil {
			return fmt.Errorf("seed %d, step %d: %w\n%s", seed, step, err, c.output)
		}
		if wrong := w.try(ctx); len(wrong) > 0 {
			return fmt.Errorf("seed %d, step %d: %d packets went wrong:\n%s\n%s%s", seed, step, len(wrong), strings.Join(wrong, "\n"), c.recorder.Explain(), c.output)
		}
	}
	// Less than one in a billion histories refuses nothing then, if it draws at random. For hashes, the seed decides.
	if c.programs(state.Weights) && w.expected > 21 && w.seen == 0 {
		return fmt.Errorf("seed %d: none of the connections were refused, want about %.0f", seed, w.expected)
	}
	return nil
}

// populate starts pods and servers, and returns the options for random clusters of them. If here is set, all endpoints are on the node under test: the edge
// takes each port that it can then.
func (w *walk) populate(here bool) (randcluster.Options, error) {
	node, other, client := w.lab.Node(), w.lab.OtherNode(), w.lab.Client()
	o := randcluster.Options{
		Nodes:           []randcluster.Node{{Name: node.Name, Addresses: node.Addrs}, {Name: other.Name, Addresses: other.Addrs}},
		FixedNodes:      true,
		ServiceCIDRs:    w.lab.Options().ServiceCIDRs,
		ClusterIPs:      addrs("10.96.0.1", "10.96.0.2", "10.96.0.3", "10.98.0.1", "fd00:10:96::1", "fd00:10:96::2", "fd00:10:98::1"),
		LoadBalancerIPs: addrs("203.0.113.1", "203.0.113.2", "2001:db8:113::1", "2001:db8:113::2"),
		ExternalIPs:     addrs("203.0.113.9", "203.0.113.1", "2001:db8:113::9", "2001:db8:113::1"),
		SourceRanges:    w.sourceRanges(),
		NodePorts:       []uint16{30080, 30081, 30082},
		Protocols:       []state.Protocol{state.TCP, state.UDP},
		OutsideClients:  client.Addrs,
		Foreign:         addrs("198.51.100.200", "2001:db8:51::200"),
	}
	if topology.HasSCTP() {
		o.Protocols = append(o.Protocols, state.SCTP)
	}
	for _, host := range []*topology.Host{node, other, client} {
		w.own(host, host != other)
	}
	endpoints := []*topology.Host{node}
	if !here {
		endpoints = append(endpoints, other)
	}
	onOther := map[*topology.Host]bool{other: true}
	for i := range 6 {
		pod, err := w.lab.AddPod(topology.PodOptions{Name: fmt.Sprintf("pod-%d", i), OtherNode: i%2 == 1 && !here})
		if err != nil {
			return o, err
		}
		w.own(pod, i%2 == 0 || here)
		onOther[pod] = i%2 == 1 && !here
		endpoints = append(endpoints, pod)
	}
	bystander, err := w.lab.AddPod(topology.PodOptions{Name: "bystander"})
	if err != nil {
		return o, err
	}
	w.own(bystander, true)
	o.PodClients = bystander.Addrs
	for _, host := range endpoints {
		on := node
		if onOther[host] {
			on = other
		}
		for _, addr := range host.Addrs {
			for _, port := range servedPorts {
				endpoint := netip.AddrPortFrom(addr, port)
				o.Endpoints = append(o.Endpoints, randcluster.Endpoint{Addr: endpoint, Node: on.Name})
				for _, proto := range o.Protocols {
					if err := host.Serve(proto, endpoint, endpoint.String()); err != nil {
						return o, err
					}
				}
			}
		}
	}
	return o, nil
}

// own notes whose addresses a host's are, and whether packets that it sends to services pass the node under test.
func (w *walk) own(host *topology.Host, sends bool) {
	for _, addr := range host.Addrs {
		w.owners[addr] = host
		if sends {
			w.senders[addr] = host
		}
	}
}

// sourceRanges are some that clients are in, and some that they are not in.
func (w *walk) sourceRanges() []netip.Prefix {
	list := slices.Concat(w.lab.Options().Underlay, w.lab.Options().NodePodCIDRs)
	for _, host := range []*topology.Host{w.lab.Node(), w.lab.Client()} {
		for _, addr := range host.Addrs {
			list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	for _, text := range []string{"0.0.0.0/0", "::/0", "198.51.100.0/24", "2001:db8:51::/64", "203.0.113.0/24"} {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// try sends a sample of the packets that are worth it, all at once, and describes those that went wrong.
func (w *walk) try(ctx context.Context) []string {
	world := w.history.World()
	packets := slices.DeleteFunc(w.history.Packets(), func(p probe.Packet) bool { return w.senders[p.Src] == nil })
	w.rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	var mu sync.Mutex
	var wrong []string
	var wg sync.WaitGroup
	taken := map[probe.Outcome]int{}
	w.visits = map[visitor]*visits{}
	for _, p := range packets {
		want := world.Ask(p)
		if taken[want.Outcome] == samples[want.Outcome] {
			continue
		}
		taken[want.Outcome]++
		ports := []uint16{w.nextPort(), w.nextPort(), w.nextPort()}
		send := w.send
		if v := (visitor{p.Src, want.Affinity}); want.Affinity != "" {
			if w.visits[v] == nil {
				w.visits[v] = &visits{}
			}
			send = w.visits[v].send(w)
		}
		wg.Go(func() {
			if err := send(ctx, p, want, ports); err != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, fmt.Sprintf("%v: %v; the oracle says %+v", p, err, want))
			}
		})
	}
	wg.Wait()
	return wrong
}

// nextPort returns a source port that this history has not used: the node may remember the flows of the others.
func (w *walk) nextPort() uint16 {
	w.port++
	return w.port
}

// send sends a packet and compares.
func (w *walk) send(ctx context.Context, p probe.Packet, want probe.Answer, ports []uint16) error {
	_, err := w.sendOnce(ctx, p, want, ports[0])
	return err
}

// sendOnce also returns the server that answered, if one did.
func (w *walk) sendOnce(ctx context.Context, p probe.Packet, want probe.Answer, port uint16) (server string, err error) {
	options := topology.ProbeOptions{Source: p.Src, SourcePort: port, Timeout: answerTimeout}
	if w.mayBeSilent(p, want) || w.lacks(p.Protocol, p.Dst) {
		options.Timeout = silence
	}
	share := w.refusedShare(want)
	if share > 0 && w.losesRefusal(p) {
		options.Timeout = silence
	}
	got := w.senders[p.Src].Probe(ctx, p.Protocol, p.Dst, options)
	if got.Outcome == topology.Answered {
		server = got.Server
	}
	if refused := got.Outcome == topology.Refused || w.losesRefusal(p) && got.Outcome == lostRefusal(p.Protocol); share > 0 {
		w.noteShare(share, refused, want)
		if refused {
			return server, w.compareHash(p, want, "nobody")
		}
	}
	err = w.compare(p, want, got)
	if err == nil && server != "" {
		err = w.compareHash(p, want, server)
	}
	return server, err
}

// losesRefusal reports whether the dataplane cannot refuse as others do.
func (w *walk) losesRefusal(p probe.Packet) bool {
	return slices.Contains(w.dataplane.Limits, EndpointRefusalLost) && p.Protocol != state.SCTP
}

// refusedShare is the share of connections that are refused next to the weights of endpoints.
func (w *walk) refusedShare(want probe.Answer) float64 {
	sum := float64(w.refused)
	for _, c := range want.Choices {
		if c.Weight == 0 {
			return 0
		}
		sum += float64(c.Weight)
	}
	if weighted, _ := w.mayProgram(state.Weights); !weighted || len(want.Choices) == 0 {
		return 0
	}
	return float64(w.refused) / sum
}

// noteShare notes a connection of which a share is refused. A client with affinity makes three connections, and is not refused once it has an endpoint.
func (w *walk) noteShare(share float64, refused bool, want probe.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if want.Affinity != "" {
		share /= 3
	}
	w.expected += share
	if refused {
		w.seen++
	}
}

// compareHash checks that a client whose connections are hashed has one server for the same endpoints: in all steps, and at all Services.
func (w *walk) compareHash(p probe.Packet, want probe.Answer, server string) error {
	if want.Balance != state.HashClient || !w.programs(state.Balances) {
		return nil
	}
	key := hashedClient{client: p.Src}
	for _, c := range want.Choices {
		key.choices += fmt.Sprintf("%v=%d ", c.Endpoint, c.Weight)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if was := w.hashed[key]; was != "" && was != server {
		return fmt.Errorf("answered by %s, and the hash of the client led to %s before", server, was)
	}
	w.hashed[key] = server
	return nil
}

// send returns a function that sends a packet several times, and checks whether the client stays with its endpoint. This is the last
// endpoint that answered the client, through any frontend of the Service port. If the last one had not all frontends, earlier endpoints are
// also accepted.
func (v *visits) send(w *walk) func(context.Context, probe.Packet, probe.Answer, []uint16) error {
	return func(ctx context.Context, p probe.Packet, want probe.Answer, ports []uint16) error {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, port := range ports {
			server, err := w.sendOnce(ctx, p, want, port)
			if err != nil {
				return err
			}
			if server == "" {
				v.servers = nil // it has an endpoint now that we do not know
				continue
			}
			if n := len(v.servers); n > 0 && !slices.Contains(v.servers, server) && offers(want, v.servers[n-1]) {
				return fmt.Errorf("answered by %s after %v in spite of affinity", server, v.servers)
			}
			v.servers = append(v.servers, server)
		}
		return nil
	}
}

// offers reports whether a server is among the choices.
func offers(want probe.Answer, server string) bool {
	return slices.ContainsFunc(want.Choices, func(c probe.Choice) bool { return c.Endpoint.String() == server })
}

// mayBeSilent reports whether it can be right that no answer comes.
func (w *walk) mayBeSilent(p probe.Packet, want probe.Answer) bool {
	switch want.Outcome {
	case probe.Reject:
		return false
	case probe.Forward:
		return slices.ContainsFunc(want.Choices, func(c probe.Choice) bool { return w.bypassed(p, c) })
	case probe.Pass:
		return w.owners[p.Dst.Addr()] == nil
	}
	return true
}

// bypassed reports whether the endpoint's answer goes to the client past the node under test. The node then cannot
// give it the source address that the client expects.
func (w *walk) bypassed(p probe.Packet, c probe.Choice) bool {
	owner := w.owners[c.Endpoint.Addr()]
	return !c.Masquerade && w.senders[p.Src] == w.lab.Client() && owner != nil && w.senders[c.Endpoint.Addr()] == nil
}

func (w *walk) compare(p probe.Packet, want probe.Answer, got topology.Answer) error {
	if want.Outcome != probe.Pass && w.lacks(p.Protocol, p.Dst) {
		return w.checkLacking(want.Outcome == probe.Forward, got)
	}
	outcome := topology.TimedOut
	switch want.Outcome {
	case probe.Reject:
		outcome = topology.Refused
	case probe.Forward:
		if got.Outcome == topology.Answered {
			return w.compareChoice(p, want, got)
		}
		if got.Outcome == topology.TimedOut && w.mayBeSilent(p, want) {
			return nil
		}
		outcome = topology.Answered
	case probe.Pass:
		outcome = w.untouched(p)
	}
	if got.Outcome != outcome {
		return fmt.Errorf("%v by %q (%v), want it %v", got.Outcome, got.Server, got.Err, outcome)
	}
	return nil
}

func (w *walk) compareChoice(p probe.Packet, want probe.Answer, got topology.Answer) error {
	for _, c := range want.Choices {
		if c.Endpoint.String() != got.Server {
			continue
		}
		source := got.Source.Addr()
		if w.owners[c.Endpoint.Addr()] == w.lab.Node() {
			return nil // what the node delivers to itself does not pass the place where sources are changed
		}
		if isHairpin(p, c) && w.dataplane.allows(HairpinSourceKept, source == p.Src) {
			return nil
		}
		if node := w.lab.Node().Addrs; !c.Masquerade && w.dataplane.losesSource(p.Protocol, []netip.Addr{p.Src}, node) {
			if !w.dataplane.allows(ClientSourceLost, slices.Contains(node, source)) {
				return fmt.Errorf("%s saw the source %v, which the limit %s does not allow", got.Server, source, ClientSourceLost)
			}
			return nil
		}
		if c.Masquerade && w.handsOver(w.senders[p.Src], p.Protocol, p.Dst) {
			c.Masquerade = false
		}
		if c.Masquerade && !slices.Contains(w.lab.Node().Addrs, source) || !c.Masquerade && source != p.Src {
			return fmt.Errorf("%s saw the source %v", got.Server, source)
		}
		return nil
	}
	return fmt.Errorf("answered by %s", got.Server)
}

// isHairpin reports whether a client reaches itself over TCP.
func isHairpin(p probe.Packet, c probe.Choice) bool {
	return p.Protocol == state.TCP && c.Endpoint.Addr() == p.Src
}

// untouched is the outcome of a packet that the dataplane leaves alone.
func (w *walk) untouched(p probe.Packet) topology.Outcome {
	owner := w.owners[p.Dst.Addr()]
	switch {
	case owner == nil:
		return topology.TimedOut
	case owner != w.lab.Client() && slices.Contains(servedPorts, p.Dst.Port()):
		return topology.Answered
	}
	return topology.Refused
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}
