//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/randcluster"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Soaked is what came of a soak.
type Soaked struct {
	Result
	// Samples are of the process under test, at equal distances. The first one is taken after a minute.
	Samples []Sample
	// Asked is the number of packets that were sent at the end and had the outcome that the oracle expects.
	Asked int
}

// Sample is what a process uses at some moment.
type Sample struct {
	At time.Duration
	// RSS is its resident memory in bytes.
	RSS   int64
	Files int
}

// How much more a process may use at the end than at the beginning: a collector of garbage is not precise.
const (
	mayGrow      = 1.25
	mayGrowBytes = 8 << 20
	mayGrowFiles = 2
)

// String renders the soak, with twenty samples of the memory or somewhat fewer: two would not distinguish growth from chance.
func (s *Soaked) String() string {
	first, last := s.Samples[0], s.Samples[len(s.Samples)-1]
	var memory []string
	for i := 0; i < len(s.Samples); i += (len(s.Samples) + 19) / 20 {
		memory = append(memory, fmt.Sprintf("%.1f after %v", mib(s.Samples[i].RSS), s.Samples[i].At.Round(time.Second)))
	}
	return fmt.Sprintf("%v\n  memory %.1f MiB at first, %.1f MiB at the end; open files %d and %d; at the end %d packets had the outcome that the oracle expects\n  memory in MiB: %s",
		&s.Result, mib(first.RSS), mib(last.RSS), first.Files, last.Files, s.Asked, strings.Join(memory, ", "))
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// Soak lets a random history change a cluster for so long, as fast as the proxy takes the changes over, while the load goes on.
func Soak(ctx context.Context, o Options, long time.Duration) (*Soaked, error) {
	if _, err := o.fill(); err != nil {
		return nil, err
	}
	soaked := &Soaked{}
	st := scenario{name: "soak", feed: fromStore, background: 300, run: func(ctx context.Context, s *stage) (string, error) {
		return s.soak(ctx, long, soaked)
	}}
	r, err := runScenario(ctx, &o, newBuilder(&o), &st, nil)
	if err != nil {
		return nil, err
	}
	soaked.Result = *r
	first, last := soaked.Samples[0], soaked.Samples[len(soaked.Samples)-1]
	if float64(last.RSS) > mayGrow*float64(first.RSS)+mayGrowBytes {
		soaked.Wrong = append(soaked.Wrong, fmt.Sprintf("memory grew from %d to %d bytes", first.RSS, last.RSS))
	}
	if last.Files > first.Files+mayGrowFiles {
		soaked.Wrong = append(soaked.Wrong, fmt.Sprintf("open files grew from %d to %d", first.Files, last.Files))
	}
	return soaked, nil
}

func (s *stage) soak(ctx context.Context, long time.Duration, soaked *Soaked) (string, error) {
	f := s.subject.(*switchyard).feed.(*storeFeed)
	h, err := s.newHistory()
	if err != nil {
		return "", err
	}
	began := time.Now()
	next := began.Add(min(time.Minute, long/5))
	steps := 0
	for ; time.Since(began) < long; steps++ {
		f.sink.Update(h.Step())
		if steps%20 == 0 {
			s.shuffle()
			if err := s.change(ctx); err != nil {
				return "", err
			}
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return "", err
		}
		if now := time.Now(); now.After(next) {
			sample, err := sampleOf(s.subject.PID())
			if err != nil {
				return "", err
			}
			sample.At = now.Sub(began)
			soaked.Samples = append(soaked.Samples, sample)
			next = now.Add(min(time.Minute, long/5))
		}
	}
	if err := s.change(ctx); err != nil {
		return "", err
	}
	soaked.Asked, err = s.compare(ctx, h)
	return fmt.Sprintf("%d steps of a random history", steps), err
}

// sampleOf looks at a process.
func sampleOf(pid int) (Sample, error) {
	var s Sample
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return s, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		return s, err
	}
	s.RSS = pages * int64(os.Getpagesize())
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	s.Files = len(files)
	return s, err
}

// newHistory invents services in addition to the services of the load. Their endpoints are the load's pods, at a port
// of their own.
func (s *stage) newHistory() (*randcluster.History, error) {
	const port = 8081
	node, other := s.lab.Node(), s.lab.OtherNode()
	o := randcluster.Options{
		Nodes:      []randcluster.Node{{Name: node.Name, Addresses: node.Addrs}, {Name: other.Name, Addresses: other.Addrs}},
		FixedNodes: true, FixedServiceCIDRs: true, ServiceCIDRs: s.lab.Options().ServiceCIDRs, DetectLocal: true,
		ClusterIPs:      addrs("10.96.1.1", "10.96.1.2", "10.96.1.3", "fd00:10:96::101", "fd00:10:96::102"),
		LoadBalancerIPs: addrs("203.0.113.101", "203.0.113.102", "2001:db8:113::101", "2001:db8:113::102"),
		ExternalIPs:     addrs("203.0.113.109", "203.0.113.101", "2001:db8:113::109", "2001:db8:113::101"),
		SourceRanges:    slices.Concat(s.lab.Options().Underlay, s.lab.Options().NodePodCIDRs),
		NodePorts:       []uint16{31080, 31081, 31082},
		Protocols:       []state.Protocol{state.TCP, state.UDP},
		PodClients:      s.client.Addrs, OutsideClients: s.lab.Client().Addrs, Foreign: addrs("198.51.100.200", "2001:db8:51::200"),
		NodePortAddrs: func(a netip.Addr) bool { return slices.Contains(node.Addrs, a) },
	}
	for _, m := range s.members {
		for _, a := range m.Addrs {
			at := netip.AddrPortFrom(a, port)
			o.Endpoints = append(o.Endpoints, randcluster.Endpoint{Addr: at, Node: m.node})
			for _, proto := range o.Protocols {
				if err := m.Serve(proto, at, at.String()); err != nil {
					return nil, err
				}
			}
		}
	}
	return randcluster.New(s.Seed, o), nil
}

// asked is how many packets are sent at the end at most.
const asked = 400

// compare sends packets, and returns how many. All must have the outcome that the oracle expects. Those that the proxy has nothing to do
// with, and those whose answer would go to the client past the node, are left out.
func (s *stage) compare(ctx context.Context, h *randcluster.History) (int, error) {
	world := h.World()
	packets := h.Packets()
	rng := rand.New(rand.NewPCG(s.Seed, 1))
	rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	senders := map[netip.Addr]*topology.Host{}
	for _, host := range []*topology.Host{s.client.Host, s.lab.Node(), s.lab.Client()} {
		for _, a := range host.Addrs {
			senders[a] = host
		}
	}
	n := 0
	var errs []error
	for _, p := range packets {
		want := world.Ask(p)
		if n == asked || senders[p.Src] == nil || want.Outcome == probe.Pass || s.bypassed(p, want) {
			continue
		}
		n++
		options := topology.ProbeOptions{Source: p.Src}
		if want.Outcome == probe.Drop {
			options.Timeout = 200 * time.Millisecond
		}
		got := senders[p.Src].Probe(ctx, p.Protocol, p.Dst, options)
		if err := fits(want, got); err != nil {
			errs = append(errs, fmt.Errorf("at the end, %v: %w", p, err))
		}
	}
	if n == 0 {
		errs = append(errs, errors.New("at the end there is no packet to compare"))
	}
	return n, errors.Join(errs...)
}

// bypassed reports whether an endpoint on the other node may get a packet of the client outside that is not masqueraded.
func (s *stage) bypassed(p probe.Packet, want probe.Answer) bool {
	return slices.Contains(s.lab.Client().Addrs, p.Src) && slices.ContainsFunc(want.Choices, func(c probe.Choice) bool {
		return !c.Masquerade && slices.ContainsFunc(s.members, func(m member) bool {
			return m.node != s.lab.Node().Name && slices.Contains(m.Addrs, c.Endpoint.Addr())
		})
	})
}

// fits returns an error if a packet has the wrong fate.
func fits(want probe.Answer, got topology.Answer) error {
	ok := false
	switch want.Outcome {
	case probe.Forward:
		ok = got.Outcome == topology.Answered && slices.ContainsFunc(want.Choices, func(c probe.Choice) bool { return c.Endpoint.String() == got.Server })
	case probe.Reject:
		ok = got.Outcome == topology.Refused
	case probe.Drop:
		ok = got.Outcome == topology.TimedOut
	}
	if ok {
		return nil
	}
	return fmt.Errorf("%v by %q, and the oracle expects %+v", got.Outcome, got.Server, want)
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}
