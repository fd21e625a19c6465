package randcluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

var compareAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// What Step hands out leads from one world to the next.
func TestStepsLeadToWorld(t *testing.T) {
	for seed := range uint64(50) {
		h := New(seed, Options{})
		held := make(map[model.Ref]model.Object)
		for step := range 20 {
			set, deleted := h.Step()
			for _, obj := range set {
				if slices.Contains(deleted, obj.Ref()) {
					t.Fatalf("seed %d, step %d: %v is both set and deleted", seed, step, obj.Ref())
				}
				held[obj.Ref()] = obj
			}
			for _, ref := range deleted {
				delete(held, ref)
			}
			want := objects(h.World())
			if len(held) != len(want) {
				t.Fatalf("seed %d, step %d: the steps lead to %d objects, the world has %d", seed, step, len(held), len(want))
			}
			for _, obj := range want {
				if diff := cmp.Diff(obj, held[obj.Ref()], compareAddrs); diff != "" {
					t.Fatalf("seed %d, step %d: the world (-) and the steps (+) differ:\n%s", seed, step, diff)
				}
			}
		}
	}
}

// A seed says all there is to say, and nothing that was handed out is modified by later steps, nor does it matter what the
// owner of the objects does with them.
func TestSameSeedSameHistory(t *testing.T) {
	for seed := range uint64(20) {
		a, b := New(seed, Options{}), New(seed, Options{})
		var worlds []*oracle.World
		var texts []string
		for step := range 20 {
			a.Step()
			set, _ := b.Step()
			for _, obj := range set {
				spoil(obj)
			}
			if diff := cmp.Diff(objects(a.World()), objects(b.World()), compareAddrs); diff != "" {
				t.Fatalf("seed %d, step %d: two runs differ:\n%s", seed, step, diff)
			}
			if !slices.Equal(a.Packets(), b.Packets()) {
				t.Fatalf("seed %d, step %d: the packets of two runs differ", seed, step)
			}
			worlds, texts = append(worlds, a.World()), append(texts, text(a.World()))
		}
		for step, w := range worlds {
			if text(w) != texts[step] {
				t.Fatalf("seed %d: the world of step %d was modified later", seed, step)
			}
		}
	}
}

// spoil modifies all that an object shares with others.
func spoil(obj model.Object) {
	switch o := obj.(type) {
	case *model.Service:
		o.Type = model.TypeExternalName
		clear(o.Annotations)
		clear(o.Ports)
		clear(o.ClusterIPs)
		clear(o.ExternalIPs)
		clear(o.LoadBalancerIPs)
		clear(o.SourceRanges)
	case *model.EndpointSlice:
		for _, ep := range o.Endpoints {
			clear(ep.ZoneHints)
			clear(ep.NodeHints)
		}
		clear(o.Ports)
		clear(o.Endpoints)
	case *model.Node:
		clear(o.Addresses)
	case *model.ServiceCIDR:
		clear(o.CIDRs)
	case *model.Namespace:
		o.ProxyDisabled = !o.ProxyDisabled
	}
}

// situations are what histories must bring about, or they test less than they seem to.
var situations = map[string]func(*oracle.World, probe.Packet, probe.Answer) bool{
	"pass":    func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Outcome == probe.Pass },
	"reject":  func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Outcome == probe.Reject },
	"drop":    func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Outcome == probe.Drop },
	"forward": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Outcome == probe.Forward },
	"affinity": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool {
		return a.Affinity != "" && len(a.Choices) > 1
	},
	"masquerade": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool {
		return a.Outcome == probe.Forward && masqueraded(a) == len(a.Choices)
	},
	"hairpin only": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool {
		return masqueraded(a) == 1 && len(a.Choices) > 1
	},
	"client address kept": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool {
		return a.Outcome == probe.Forward && masqueraded(a) == 0
	},
	"weights": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool {
		return slices.ContainsFunc(a.Choices, func(c probe.Choice) bool { return c.Weight > 0 })
	},
	"endpoints without weight left out": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return a.Outcome == probe.Forward && len(a.Choices) < len(changed(w, func(s *model.EndpointSlice) { s.Weight = "" }).Ask(p).Choices)
	},
	"hash of the client":     func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Balance == state.HashClient },
	"hash of the connection": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Balance == state.HashConnection },
	"least connections":      func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Balance == state.LeastConnections },
	"ejection":               func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Ejection },
	"deadline":               func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.DrainSeconds > 0 },
	"range of ports": func(_ *oracle.World, p probe.Packet, a probe.Answer) bool {
		return a.Outcome == probe.Forward && p.Dst.Port() == inRanges
	},
	"ping": func(_ *oracle.World, _ probe.Packet, a probe.Answer) bool { return a.Ping },
	"zone hints used": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return forwardsElse(w, p, a, func(ep *model.Endpoint) { ep.ZoneHints = nil })
	},
	"node hints used": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return forwardsElse(w, p, a, func(ep *model.Endpoint) { ep.NodeHints = nil })
	},
	"terminating endpoints used": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return a.Outcome == probe.Forward && !sameAnswer(a, changed(w, func(s *model.EndpointSlice) {
			s.Endpoints = slices.DeleteFunc(s.Endpoints, func(ep model.Endpoint) bool { return ep.Terminating && !ep.Ready })
		}).Ask(p))
	},
	"two twins, one terminating": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return a.Outcome == probe.Forward && !sameAnswer(a, changed(w, func(s *model.EndpointSlice) {
			twin := func(ep model.Endpoint) bool { return !ep.Terminating && terminatesElsewhere(w, s, ep) }
			s.Endpoints = slices.DeleteFunc(s.Endpoints, twin)
		}).Ask(p))
	},
	"node's own connection through a load balancer": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		nobody := *w
		nobody.Nodes = nil
		return p.Src == p.Dst.Addr() && a.Outcome == probe.Forward && nobody.Ask(p).Outcome == probe.Drop
	},
	"conflict over a cluster IP": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return claims(w, p, func(s *model.Service) []netip.Addr { return s.ClusterIPs }) > 1
	},
	"conflict over an external IP": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return claims(w, p, func(s *model.Service) []netip.Addr { return s.ExternalIPs }) > 1
	},
	"conflict that age decides": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return !sameAnswer(a, changedServices(w, func(s *model.Service) { s.Created = time.Time{} }).Ask(p))
	},
	"conflict that the kind decides against age": func(w *oracle.World, p probe.Packet, a probe.Answer) bool {
		return !sameAnswer(a, changedServices(w, func(s *model.Service) {
			if slices.Contains(s.LoadBalancerIPs, p.Dst.Addr()) {
				s.ExternalIPs, s.LoadBalancerIPs, s.SourceRanges = s.LoadBalancerIPs, nil, nil
			}
		}).Ask(p)) && claims(w, p, func(s *model.Service) []netip.Addr { return slices.Concat(s.LoadBalancerIPs, s.ExternalIPs) }) > 1
	},
}

func TestSituations(t *testing.T) {
	const enough = 5
	seen := make(map[string]int)
	rare := len(situations)
	for seed := uint64(0); seed < 600 && rare > 0; seed++ {
		h := New(seed, Options{DetectLocal: seed%3 > 0, MasqueradeAll: seed%4 == 0, Annotations: seed%2 == 0, Ranges: seed%4 == 0})
		for range 10 {
			h.Step()
		}
		w := h.World()
		for _, p := range h.Packets() {
			a := w.Ask(p)
			for name, is := range situations {
				if is(w, p, a) {
					if seen[name]++; seen[name] == enough {
						rare--
					}
				}
			}
		}
	}
	for name := range situations {
		t.Logf("%s: %d", name, seen[name])
		if seen[name] < enough {
			t.Errorf("%s: came up %d times in 600 histories, want at least %d", name, seen[name], enough)
		}
	}
}

// Options that a caller fixes stay fixed, and nothing but the given pools is used.
func TestPools(t *testing.T) {
	o := Options{
		Nodes:             []Node{{"here", addrs("192.168.0.1")}, {"there", addrs("192.168.0.2")}},
		FixedNodes:        true,
		Endpoints:         []Endpoint{{netip.MustParseAddrPort("10.1.0.1:80"), "here"}, {netip.MustParseAddrPort("10.1.0.2:81"), "there"}},
		ServiceCIDRs:      prefixes("10.2.0.0/24"),
		FixedServiceCIDRs: true,
		ClusterIPs:        addrs("10.2.0.1", "10.2.0.2"),
		LoadBalancerIPs:   addrs("10.3.0.1"),
		ExternalIPs:       addrs("10.3.0.2"),
		SourceRanges:      prefixes("10.4.0.0/24"),
		PodClients:        addrs("10.1.0.9"),
		OutsideClients:    addrs("10.4.0.9"),
		Foreign:           addrs("10.5.0.1"),
		Protocols:         []state.Protocol{state.UDP},
	}
	pools := prefixes("192.168.0.0/24", "10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24", "10.4.0.0/24", "10.5.0.0/24")
	known := func(a netip.Addr) bool {
		return slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for seed := range uint64(30) {
		h := New(seed, o)
		for range 20 {
			h.Step()
			w := h.World()
			if w.NodeName != "here" || len(w.Nodes) != 2 || len(w.ServiceCIDRs) != 1 {
				t.Fatalf("seed %d: what was fixed has changed: %s", seed, text(w))
			}
			for _, s := range w.Slices {
				for _, ep := range s.Endpoints {
					if ep.Addr.IsValid() && model.Special(ep.Addr) == "" && !known(ep.Addr) {
						t.Fatalf("seed %d: endpoint %v is not from the pool", seed, ep.Addr)
					}
				}
			}
			for _, p := range h.Packets() {
				if !known(p.Src) || !known(p.Dst.Addr()) || p.Protocol != state.UDP {
					t.Fatalf("seed %d: %v is not from the pools", seed, p)
				}
			}
		}
	}
}

func masqueraded(a probe.Answer) int {
	n := 0
	for _, c := range a.Choices {
		if c.Masquerade {
			n++
		}
	}
	return n
}

// forwardsElse reports whether p is forwarded, and elsewhere once all endpoints have been changed.
func forwardsElse(w *oracle.World, p probe.Packet, a probe.Answer, change func(*model.Endpoint)) bool {
	return a.Outcome == probe.Forward && !sameAnswer(a, changed(w, func(s *model.EndpointSlice) {
		for i := range s.Endpoints {
			change(&s.Endpoints[i])
		}
	}).Ask(p))
}

// changed returns w with all slices changed.
func changed(w *oracle.World, change func(*model.EndpointSlice)) *oracle.World {
	other := *w
	other.Slices = nil
	for _, s := range w.Slices {
		c := cloneSlice(s)
		change(c)
		other.Slices = append(other.Slices, c)
	}
	return &other
}

// changedServices returns w with all services changed.
func changedServices(w *oracle.World, change func(*model.Service)) *oracle.World {
	other := *w
	other.Services = nil
	for _, s := range w.Services {
		c := cloneService(s)
		change(c)
		other.Services = append(other.Services, c)
	}
	return &other
}

// terminatesElsewhere reports whether another slice of the service has ep as terminating.
func terminatesElsewhere(w *oracle.World, s *model.EndpointSlice, ep model.Endpoint) bool {
	return slices.ContainsFunc(w.Slices, func(o *model.EndpointSlice) bool {
		return o.Name != s.Name && o.ServiceName() == s.ServiceName() && slices.ContainsFunc(o.Endpoints,
			func(other model.Endpoint) bool { return other.Addr == ep.Addr && other.Terminating })
	})
}

// claims counts the services that want p by one list of their addresses.
func claims(w *oracle.World, p probe.Packet, list func(*model.Service) []netip.Addr) int {
	n := 0
	for _, s := range w.Services {
		wants := func(sp model.ServicePort) bool { return sp.Port == p.Dst.Port() && sp.Protocol == p.Protocol }
		if slices.Contains(list(s), p.Dst.Addr()) && slices.ContainsFunc(s.Ports, wants) {
			n++
		}
	}
	return n
}

func sameAnswer(a, b probe.Answer) bool {
	return a.Outcome == b.Outcome && a.Affinity == b.Affinity && a.Balance == b.Balance && slices.Equal(a.Choices, b.Choices)
}

// objects lists all objects of a world.
func objects(w *oracle.World) []model.Object {
	var list []model.Object
	for _, o := range w.Services {
		list = append(list, o)
	}
	for _, o := range w.Slices {
		list = append(list, o)
	}
	for _, o := range w.Nodes {
		list = append(list, o)
	}
	for _, o := range w.Namespaces {
		list = append(list, o)
	}
	for _, o := range w.ServiceCIDRs {
		list = append(list, o)
	}
	return list
}

// text prints all objects of a world.
func text(w *oracle.World) string {
	var b strings.Builder
	for _, obj := range objects(w) {
		switch o := obj.(type) {
		case *model.Service:
			fmt.Fprintf(&b, "%+v\n", *o)
		case *model.EndpointSlice:
			fmt.Fprintf(&b, "%+v\n", *o)
		case *model.Node:
			fmt.Fprintf(&b, "%+v\n", *o)
		case *model.Namespace:
			fmt.Fprintf(&b, "%+v\n", *o)
		case *model.ServiceCIDR:
			fmt.Fprintf(&b, "%+v\n", *o)
		}
	}
	return b.String()
}
