package rules

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

var someSettings = &Settings{MasqueradeMark: 1 << 14, MaxAffinityClients: 100}

// drawn follows the probabilities from the first chain of a port to each endpoint, and returns how likely each is, and how many chains are passed at most.
// The empty endpoint is for what is not translated.
func drawn(p *part, svc *state.Service) (got map[string]float64, deepest int) {
	got = map[string]float64{}
	var follow func(chain string, share float64, depth int)
	follow = func(chain string, share float64, depth int) {
		deepest = max(deepest, depth)
		for rule := range strings.SplitSeq(p.chains[ChainID{NAT, chain}], "\n") {
			if strings.HasPrefix(rule, "-j SWY-MARK") || strings.HasPrefix(rule, "-m set") {
				continue
			}
			probability := 1.0
			if _, after, ok := strings.Cut(rule, "--probability "); ok {
				number, _, _ := strings.Cut(after, " ")
				probability, _ = strconv.ParseFloat(number, 64)
			}
			target := rule[strings.LastIndex(rule, " ")+1:]
			switch {
			case target == "RETURN":
				got[""] += share * probability
			case strings.Contains(rule, "-j DNAT"):
				got[target] += share * probability
			default:
				follow(target, share*probability, depth+1)
			}
			share *= 1 - probability
		}
	}
	follow(Prefix+"CI-"+portID(svc.Name, &svc.Ports[0]), 1, 1)
	return got, deepest
}

// TestDrawByWeight: each endpoint is as likely as its weight asks for, however many there are, and so is a refusal.
func TestDrawByWeight(t *testing.T) {
	for _, n := range []int{1, 3, 17, 300, 5000} {
		for _, refused := range []uint32{0, 1, 70_000, math.MaxUint32} {
			svc := recordtest.DualStack("web", 1, n, 0)
			port, want, sum := &svc.Ports[0], map[string]float64{}, float64(refused)
			list := slices.Clone(port.Internal.Inside.Endpoints)
			for i := range list {
				list[i].Weight = []uint16{1, 2, 100, 65535}[i%4]
				sum += float64(list[i].Weight)
			}
			for _, e := range list {
				want[e.Addr.String()] = float64(e.Weight) / sum
			}
			if refused > 0 {
				want[""] = float64(refused) / sum
			}
			for _, r := range port.Routes() {
				r.Endpoints, r.Refused = list, refused
			}
			p := someSettings.render(svc, state.IPv4)
			got, _ := drawn(p, svc)
			if len(got) != len(want) {
				t.Errorf("%d endpoints, %d refused: %d outcomes, want %d", n, refused, len(got), len(want))
			}
			off := 0.0
			for to, share := range want {
				off += math.Abs(got[to] - share)
			}
			if off > 1e-4 {
				t.Errorf("%d endpoints, %d refused: %g of all connections go elsewhere", n, refused, off/2)
			}
			rejects := slices.ContainsFunc(p.leaves, func(l leaf) bool { return l.tree == treeRejectAddresses && strings.HasSuffix(l.rule, chainReject) })
			if rejects != (refused > 0) {
				t.Errorf("%d endpoints, %d refused: packets without translation are refused: %v", n, refused, rejects)
			}
		}
	}
}

// TestRefusedShareOfAView: only the clients of a view that refuses a share are refused, and all others that are not translated are dropped.
func TestRefusedShareOfAView(t *testing.T) {
	svc := recordtest.DualStack("web", 1, 2, 0)
	port := &svc.Ports[0]
	list := slices.Clone(port.Internal.Inside.Endpoints)
	for i := range list {
		list[i].Weight = 1
	}
	port.Internal.Inside = state.Route{Verdict: state.Forward, Endpoints: list, Refused: 2}
	p := someSettings.render(svc, state.IPv4)
	id := portID(svc.Name, port)
	if got, want := p.chains[ChainID{Filter, Prefix + "FI-" + id}], fromNode+" -g "+chainReject+"\n-j RETURN"; got != want {
		t.Errorf("the chain of refusals is\n%s\nwant\n%s", got, want)
	}
	if got, _ := drawn(p, svc); len(got) != 3 {
		t.Errorf("drawn are %v", got)
	}
}

// TestWeightsAndAffinity: an endpoint that routes give different weights has one set of clients, and a client that has one is not refused.
func TestWeightsAndAffinity(t *testing.T) {
	svc := recordtest.DualStack("web", 1, 2, time.Hour)
	port := &svc.Ports[0]
	port.Internal.Inside.Endpoints = slices.Clone(port.Internal.Inside.Endpoints)
	for i := range port.Internal.Inside.Endpoints {
		port.Internal.Inside.Endpoints[i].Weight = 3
	}
	port.Internal.Inside.Refused = 6
	p := someSettings.render(svc, state.IPv4)
	if len(p.sets) != 2 {
		t.Errorf("there are the sets %v, want one for each of 2 endpoints", p.sets)
	}
	lines := strings.Split(p.chains[ChainID{NAT, Prefix + "R0-" + portID(svc.Name, port)}], "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "--match-set") || lines[2] != "-m statistic --mode random --probability 0.50000000000 -j RETURN" {
		t.Errorf("the rules are\n%s", strings.Join(lines, "\n"))
	}
}

// TestDrawIsEven follows the probabilities from the first chain to each endpoint: all of them are drawn alike, however many there are, and a
// change of one changes few chains.
func TestDrawIsEven(t *testing.T) {
	var before map[ChainID]string
	for _, n := range []int{1, 2, 3, 16, 17, 40, 300, 5000, 5001} {
		svc := recordtest.DualStack("web", 1, n, 0)
		p := someSettings.render(svc, state.IPv4)
		got, deepest := drawn(p, svc)
		if len(got) != n {
			t.Errorf("%d of %d endpoints are drawn", len(got), n)
		}
		for endpoint, share := range got {
			if math.Abs(share*float64(n)-1) > 1e-4 {
				t.Errorf("%d endpoints: %s is drawn with %g, want %g", n, endpoint, share, 1/float64(n))
			}
		}
		if deepest > 1+maxDraws {
			t.Errorf("%d endpoints: %d chains deep", n, deepest)
		}
		if n == 5001 {
			changed := 0
			for id, content := range p.chains {
				if before[id] != content {
					changed++
				}
			}
			if changed > 1+maxDraws {
				t.Errorf("one endpoint more among %d changes %d chains of %d", n-1, changed, len(p.chains))
			}
		}
		before = p.chains
	}
}

// TestClientLeavesOtherEndpoints: where a view does not have the endpoint that a client had in another one, the client gets a new one for both.
func TestClientLeavesOtherEndpoints(t *testing.T) {
	svc := recordtest.EveryKind("web", 1, 3, time.Hour)
	p := someSettings.render(svc, state.IPv4)
	id := portID(svc.Name, &svc.Ports[0])
	outside := p.chains[ChainID{NAT, Prefix + "R3-" + id}]
	for i, e := range svc.Ports[0].Internal.Inside.Endpoints {
		set := setName(state.IPv4, "C-"+hash(id, e.Addr))
		recalls := strings.Contains(outside, "--match-set "+set+" src -g "+Prefix+"E-"+hash(id, e.Addr))
		forgets := strings.Contains(outside, "-j SET --del-set "+set+" src")
		if recalls != (i == 0) || forgets == recalls {
			t.Errorf("endpoint %d: recalled %v, forgotten %v in\n%s", i, recalls, forgets, outside)
		}
	}
}

// TestChangesEndLikeAFreshStart lets Services come, change and go at random, as do the settings. What is desired in the end is what a new process
// would desire, and what is held by then is that, too.
func TestChangesEndLikeAFreshStart(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		settings := *someSettings
		f := []state.Family{state.IPv4, state.IPv6}[rng.IntN(2)]
		tables := New(f, &settings)
		current := map[state.ServiceName]*state.Service{}
		for range 40 {
			next := map[state.ServiceName]*state.Service{}
			for range rng.IntN(5) {
				n := rng.IntN(60)
				name := fmt.Sprintf("s%d", n)
				var svc *state.Service
				switch rng.IntN(4) {
				case 0:
					svc = &state.Service{Name: state.ServiceName{Namespace: "test", Name: name}}
				case 1:
					svc = recordtest.EveryKind(name, n, rng.IntN(30), time.Duration(rng.IntN(2))*time.Hour)
				default:
					svc = recordtest.DualStack(name, n, rng.IntN(30), time.Duration(rng.IntN(2))*time.Hour)
				}
				if rng.IntN(20) == 0 { // so that there is none at times
					recordtest.Pinged(svc)
				}
				next[svc.Name], current[svc.Name] = svc, svc
				if len(svc.Ports) == 0 {
					next[svc.Name] = nil
					delete(current, svc.Name)
				}
			}
			if rng.IntN(10) == 0 {
				changed := *tables.Settings()
				changed.Detector.NodeCIDR = !changed.Detector.NodeCIDR
				changed.PodCIDRs = recordtest.Node().PodCIDRs
				changed.NodePorts, changed.Answerers = recordtest.Node().Addresses[:rng.IntN(3)], recordtest.Node().Addresses[:rng.IntN(3)]
				tables.Configure(&changed)
			}
			tables.Change(next)
			if rng.IntN(3) > 0 { // else the change is merged into the next one
				tables.Plan().Commit(nil)
			}
		}
		tables.Plan().Commit(nil)
		if p := tables.Plan(); p.Written != 0 || p.Restore != "" {
			t.Fatalf("seed %d: a plan after a plan writes %d objects", seed, p.Written)
		}
		fresh := New(f, tables.Settings())
		fresh.Change(current)
		fresh.held = tables.held
		if p := fresh.Plan(); p.Written != 0 {
			t.Errorf("seed %d: a new process writes %d objects:\n%s", seed, p.Written, p.Restore)
		}
		if got, want := tables.Rules(NAT), fresh.Rules(NAT); got != want {
			t.Errorf("seed %d: %d rules counted, want %d", seed, got, want)
		}
	}
}

// TestOrderOfChains: a chain is declared before its rules and those that lead to it, which the programs require, and rules come in the order of
// names in which iptables-nft-restore is fast, the last first.
func TestOrderOfChains(t *testing.T) {
	tables := New(state.IPv4, someSettings)
	next := map[state.ServiceName]*state.Service{}
	for n := range 20 {
		svc := recordtest.EveryKind(fmt.Sprintf("s%d", n), n, 30, time.Duration(n%2)*time.Hour)
		next[svc.Name] = svc
	}
	tables.Change(next)
	declared, last, rules := map[string]bool{}, "", 0
	for line := range strings.Lines(tables.Plan().Restore) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "*") {
			clear(declared)
			last = "~"
		}
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			if declared[name] {
				t.Errorf("%s is declared twice, which would empty it", name)
			}
			declared[name] = true
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		rules++
		chain, rule, _ := strings.Cut(rule, " ")
		if !declared[chain] || chain > last {
			t.Errorf("a rule of %s comes after those of %s; declared: %v", chain, last, declared[chain])
		}
		if to := target(rule); to != "" && !declared[to] {
			t.Errorf("a rule of %s leads to %s, which is not declared yet: %s", chain, to, rule)
		}
		last = chain
	}
	if rules < 1000 {
		t.Errorf("%d rules", rules)
	}
}

// TestManyChainsComeInParts: what many new chains take is written in parts of some rules, from which nothing leads to a chain that is not there, and
// to which nothing leads before the last one. That one has what is in one piece with few chains.
func TestManyChainsComeInParts(t *testing.T) {
	tables := New(state.IPv4, someSettings)
	tables.Plan().Commit(nil)
	next := map[state.ServiceName]*state.Service{}
	for n := range 60 {
		svc := recordtest.EveryKind(fmt.Sprintf("s%d", n), n, 300, 0)
		next[svc.Name] = svc
	}
	tables.Change(next)
	p := tables.Plan()
	held := maps.Clone(tables.held.chains)
	for i, input := range append(p.Prepare, p.Restore) {
		written, touched := 0, map[ChainID]bool{}
		var table Table
		for line := range strings.Lines(input) {
			line = strings.TrimSuffix(line, "\n")
			switch {
			case strings.HasPrefix(line, "*"):
				table = Table(line[1:])
			case strings.HasPrefix(line, ":"):
				name, _, _ := strings.Cut(line[1:], " ")
				held[ChainID{table, name}], touched[ChainID{table, name}] = "", true
			case strings.HasPrefix(line, "-A "):
				written++
				name, rule, _ := strings.Cut(line[len("-A "):], " ")
				id := ChainID{table, name}
				if _, there := held[id]; !there {
					t.Fatalf("part %d: a rule of %v, which is not there", i, id)
				}
				if to := target(rule); to != "" && !isBuiltIn(to) && IsOurs(to) {
					if _, there := held[ChainID{table, to}]; !there {
						t.Fatalf("part %d: a rule of %v leads to %s, which is not there", i, id, to)
					}
				}
				held[id], touched[id] = strings.TrimPrefix(held[id]+"\n"+rule, "\n"), true
			}
		}
		if most := maxPart + 100; written > most {
			t.Errorf("part %d of %d writes %d rules, want %d at most", i, len(p.Prepare), written, most)
		}
		if i == len(p.Prepare) {
			continue
		}
		for id := range touched {
			if _, had := tables.held.chains[id]; had {
				t.Errorf("part %d changes %v before all that it leads to is there", i, id)
			}
		}
	}
	if len(p.Prepare) < 2 {
		t.Errorf("%d parts", len(p.Prepare))
	}
	for id, want := range tables.chains {
		if held[id] != want {
			t.Errorf("%v is\n%s\nwant\n%s", id, held[id], want)
		}
	}
}

// TestSetsHaveRoomFromTheBeginning: the kernel is told how many elements a new set gets, or it would move them again and again.
func TestSetsHaveRoomFromTheBeginning(t *testing.T) {
	tables := New(state.IPv4, someSettings)
	next := map[state.ServiceName]*state.Service{}
	for n := range 100 {
		svc := recordtest.EveryKind(fmt.Sprintf("s%d", n), n, 5, 0)
		next[svc.Name] = svc
	}
	tables.Change(next)
	p := tables.Plan()
	for _, add := range p.Add {
		i := slices.IndexFunc(p.Create, func(s ipset.Set) bool { return s.Name == add.Set.Name })
		if i < 0 || p.Create[i].Size != uint32(len(add.Elements)) {
			t.Errorf("set %s is made for another number of elements than %d, which it gets: %+v", add.Set.Name, len(add.Elements), p.Create)
		}
	}
	if len(p.Add) < 4 {
		t.Errorf("elements are added to %d sets", len(p.Add))
	}
}
