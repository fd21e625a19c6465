package rules

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// packetOf is the first packet of the connection that a question is about.
func packetOf(q *recordtest.Question) *Packet {
	return &Packet{
		Protocol: q.Frontend.Protocol, Dst: netip.AddrPortFrom(q.Dst, q.Frontend.Port), Src: q.Source,
		FromNode: q.Node, FromPod: !q.Node && !q.Outside, ToNode: !q.Frontend.Addr.IsValid(),
	}
}

// checkTraced returns how the outcome of a packet differs from a record.
func checkTraced(h *Held, q *recordtest.Question) string {
	traced := h.Trace(q.Frontend.Family, packetOf(q))
	return q.Check(backend.Held{Verdict: traced.Verdict, Endpoints: traced.Endpoints, Objects: traced.Objects})
}

// TestTrace lets Services come, change and go at random, with all detectors. Each connection ends where its record says. Without one of the chains
// that it passes, it does not.
func TestTrace(t *testing.T) {
	pods := map[state.Family]netip.Addr{state.IPv4: recordtest.Addr("10.244.1.77"), state.IPv6: recordtest.Addr("fd00:10:244:1::77")}
	for _, detector := range []state.LocalDetector{
		{}, {ClusterCIDRs: recordtest.PodCIDRs(state.IPv4, state.IPv6)}, {NodeCIDR: true}, {BridgeInterface: "cni0"}, {InterfacePrefix: "veth"},
	} {
		for _, f := range recordtest.Families {
			settings := *someSettings
			settings.Detector, settings.PodCIDRs, settings.ServiceCIDRs = detector, recordtest.Node().PodCIDRs, recordtest.Node().ServiceCIDRs
			settings.NodePorts = []netip.Addr{recordtest.NodeAddr(f)}
			tables := New(f, &settings)
			rng := rand.New(rand.NewPCG(uint64(f), 1))
			current := map[state.ServiceName]*state.Service{}
			for round := range 6 {
				next := map[state.ServiceName]*state.Service{}
				for n := 1; n < 20; n++ {
					if round > 0 && rng.IntN(3) > 0 {
						continue
					}
					svc := recordtest.EveryKind(fmt.Sprintf("s%d", n), n, rng.IntN(25)*rng.IntN(2), time.Duration(rng.IntN(2))*time.Hour)
					if next[svc.Name] = svc; rng.IntN(5) == 0 {
						next[svc.Name] = nil
					}
				}
				maps.Copy(current, next)
				maps.DeleteFunc(current, func(_ state.ServiceName, svc *state.Service) bool { return svc == nil })
				tables.Change(next)
				tables.Plan().Commit(nil)
				for _, q := range recordtest.Questions(slices.Collect(maps.Values(current))...) {
					if q.Frontend.Family != f {
						continue
					}
					if difference := checkTraced(&Held{tables.held}, &q); difference != "" {
						t.Fatalf("%v, round %d: %s", detector, round, difference)
					}
					if pod := pods[f]; q.Node && detector.Enabled() && len(q.Route.Endpoints) > 0 && isOpen(current[q.Service], q.Frontend) {
						q.Node, q.Source = false, pod
						if difference := checkTraced(&Held{tables.held}, &q); difference != "" {
							t.Fatalf("%v, round %d, from a pod: %s", detector, round, difference)
						}
					}
				}
			}
			q := recordtest.Questions(recordtest.EveryKind("s1", 1, 3, 0))[0]
			if q.Frontend.Family != f {
				continue
			}
			tables.Change(map[state.ServiceName]*state.Service{q.Service: recordtest.EveryKind("s1", 1, 3, 0)})
			tables.Plan().Commit(nil)
			for _, object := range (&Held{tables.held}).Trace(f, packetOf(&q)).Objects {
				name, ok := strings.CutSuffix(strings.TrimPrefix(object, "chain "), " of table nat")
				if !ok {
					continue
				}
				id := ChainID{NAT, name}
				content := tables.held.chains[id]
				if strings.HasPrefix(content, "-j MARK") || id.Name == chainMarkUnlessPod {
					continue // makes no difference here
				}
				for _, other := range []string{"", "-j RETURN\n" + content, "-s 0.0.0.0/0 -p tcp -j DNAT --to-destination 192.0.2.99:1\n" + content} {
					tables.held.chains[id] = other
					if checkTraced(&Held{tables.held}, &q) == "" {
						t.Errorf("chain %s is another one, and that does not show", name)
					}
				}
				tables.held.chains[id] = content
			}
			jumps := tables.held.jumps
			tables.held.jumps = jumps[1:]
			if checkTraced(&Held{tables.held}, &q) == "" {
				t.Error("a jump is missing, and that does not show")
			}
			tables.held.jumps = jumps
		}
	}
}

// isOpen reports whether everybody may connect to a frontend.
func isOpen(s *state.Service, key state.FrontendKey) bool {
	for i := range s.Ports {
		for j := range s.Ports[i].Frontends {
			if f := &s.Ports[i].Frontends[j]; s.Ports[i].Key(f) == key {
				return !f.Restricted
			}
		}
	}
	return false
}
