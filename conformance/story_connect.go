//go:build linux

package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

const (
	// silence is how long a packet that should be dropped is waited for.
	silence = 300 * time.Millisecond
	// answerTimeout is how long an answer may take on a busy machine; it is only used up by a fault.
	answerTimeout = 10 * time.Second
	// parallel is how many connections are made at once.
	parallel = 32
	// perEndpoint is how many connections for each endpoint make a test of evenness, but there are atLeast that many in all.
	perEndpoint, atLeast = 40, 400
)

// expectation is what a line of a story says must happen to connections.
type expectation struct {
	outcome topology.Outcome
	servers []string // all of them are reached, and no others
	sticky  bool     // one of servers is reached, always the same
	across  bool     // that is also the same at all addresses of a family
	refuses bool     // outcome is Refused, and it is an endpoint that refuses
	evenly  bool
	ejects  bool               // only a dataplane that ejects silent endpoints is asked
	weights bool               // servers share connections by their weights, and some may be refused
	shares  map[string]float64 // the weights of servers, nil for the weights of their slices
	spared  string             // a server with at most half of an even share, perhaps with nothing
	source  string             // kept, node, an address, or empty for any
	count   int
	atOnce  bool
	within  time.Duration
	from    netip.Addr
}

// connect: connect FROM PROTO[,PROTO] TO[,TO] EXPECTATION...
//
// Each protocol and each address that TO stands for is tried, and must fulfil the expectation by itself. With "sticks-to-one-of LIST
// across", the same one also answers at all addresses of a family.
func (s *story) connect(_ *testscript.TestScript, args []string) error {
	if len(args) < 4 || s.hosts[args[0]] == nil {
		return fmt.Errorf("no host in %q; usage: connect FROM PROTO TO EXPECTATION…", args)
	}
	host := s.hosts[args[0]]
	dsts, err := s.resolve(args[2])
	if err != nil {
		return err
	}
	want, err := s.parseExpectation(args[3:])
	if err != nil {
		return err
	}
	if want.ejects && !s.cluster.programs(state.Ejection) {
		return nil
	}
	var checks []func() error
	type destinations struct {
		proto state.Protocol
		ipv4  bool
	}
	answered := map[destinations]string{}
	for name := range strings.SplitSeq(args[1], ",") {
		proto, err := parseProtocol(name)
		if err != nil {
			return err
		}
		for _, dst := range dsts {
			if want.from.IsValid() && want.from.Is4() != dst.Addr().Is4() {
				continue
			}
			checks = append(checks, func() error {
				server, err := s.check(host, proto, dst, want)
				if d := (destinations{proto, dst.Addr().Is4()}); want.across && err == nil {
					if answered[d] != "" && answered[d] != server {
						err = fmt.Errorf("answered by %s, and at another address of the Service port by %s", server, answered[d])
					}
					answered[d] = server
				}
				if err != nil {
					return fmt.Errorf("%s to %s %v: %w", host.Name, name, dst, err)
				}
				return nil
			})
		}
	}
	return run(checks, !want.sticky) // a client with affinity that tries several frontends at once may get several endpoints
}

// run runs checks, all at once or in turn, and joins their errors.
func run(checks []func() error, atOnce bool) error {
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		if !atOnce {
			errs[i] = check()
			continue
		}
		wg.Go(func() { errs[i] = check() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// parseExpectation reads, for example: reaches a,b evenly source=node.
func (s *story) parseExpectation(words []string) (expectation, error) {
	var e expectation
	for i := 0; i < len(words); i++ {
		word := words[i]
		key, value, _ := strings.Cut(word, "=")
		var err error
		switch key {
		case "reaches", "sticks-to-one-of":
			if i++; i == len(words) {
				return e, fmt.Errorf("%s whom?", word)
			}
			e.outcome, e.sticky = topology.Answered, key != "reaches"
			e.servers, err = s.parseServers(words[i])
		case "refused":
			e.outcome = topology.Refused
		case "dropped":
			e.outcome = topology.TimedOut
		case "across":
			e.across = true
		case "by-endpoint":
			e.refuses = true
		case "evenly":
			e.evenly = true
		case "by-weight":
			e.weights = true
			if value != "" {
				e.shares, err = parseShares(value, e.servers)
			}
		case "sparing":
			var list []string
			if list, err = s.parseServers(value); err == nil && len(list) != 1 {
				err = errors.New("it does not stand for one server")
			}
			e.spared = strings.Join(list, ",")
		case "at-once":
			e.atOnce = true
		case "ejecting":
			e.ejects = true
		case "source":
			e.source = value
		case "from":
			e.from, err = netip.ParseAddr(value)
		case "within":
			e.within, err = time.ParseDuration(value)
		default:
			number, ok := strings.CutPrefix(word, "x")
			if !ok {
				return e, fmt.Errorf("unknown word %q", word)
			}
			e.count, err = strconv.Atoi(number)
		}
		if err != nil {
			return e, fmt.Errorf("%s: %w", word, err)
		}
	}
	if e.refuses && e.outcome != topology.Refused {
		return e, errors.New("by-endpoint: use it with refused")
	}
	if e.across && !e.sticky {
		return e, errors.New("across: use it with sticks-to-one-of")
	}
	if e.outcome == topology.Broken {
		return e, errors.New("name what is expected: reaches, sticks-to-one-of, refused or dropped")
	}
	return e, nil
}

// parseServers reads a list of hosts; a host with several addresses stands for all the servers on them.
func (s *story) parseServers(text string) ([]string, error) {
	var list []string
	for item := range strings.SplitSeq(text, ",") {
		host, from, to, err := s.parseHosts(item)
		if err != nil {
			return nil, err
		}
		names := s.servers[host.Name]
		if len(names) < to || len(names) == 0 {
			return nil, fmt.Errorf("host %q does not serve", item)
		}
		if to > 0 {
			names = names[from-1 : to]
		}
		list = append(list, names...)
	}
	return list, nil
}

// parseHosts reads HOST or HOST.FROM-TO, which are some of a host's addresses in each family, counted from 1. from and to
// are 0 for all.
func (s *story) parseHosts(text string) (host *topology.Host, from, to int, err error) {
	name, numbers, ranged := strings.Cut(text, ".")
	host = s.hosts[name]
	if host == nil {
		return nil, 0, 0, fmt.Errorf("there is no host %q", name)
	}
	if ranged {
		_, err = fmt.Sscanf(numbers, "%d-%d", &from, &to)
		if err == nil && (from < 1 || to < from || to > len(host.Addrs)/2) {
			err = errors.New("it has no such addresses")
		}
		if err != nil {
			return nil, 0, 0, fmt.Errorf("host %q: %w", text, err)
		}
	}
	return host, from, to, nil
}

// resolve returns the addresses that a destination stands for: HOST:PORT, SERVICE:PORT (its cluster IPs), SERVICE:PORT@lb,
// SERVICE:PORT@external, or ADDRESS:PORT.
func (s *story) resolve(text string) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for item := range strings.SplitSeq(text, ",") {
		if addr, err := netip.ParseAddrPort(item); err == nil {
			list = append(list, addr)
			continue
		}
		target, kind, _ := strings.Cut(item, "@")
		name, number, _ := strings.Cut(target, ":")
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("destination %q: %w", item, err)
		}
		addrs, err := s.addresses(name, kind)
		if err != nil {
			return nil, fmt.Errorf("destination %q: %w", item, err)
		}
		for _, addr := range addrs {
			list = append(list, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	return list, nil
}

func (s *story) addresses(name, kind string) ([]netip.Addr, error) {
	if host := s.hosts[name]; host != nil && kind == "" {
		return host.Addrs, nil
	}
	svc := s.services[name]
	if svc == nil {
		return nil, errors.New("there is no such host or service")
	}
	list, ok := map[string][]netip.Addr{"": svc.ClusterIPs, "lb": svc.LoadBalancerIPs, "external": svc.ExternalIPs}[kind]
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("service %s has no such addresses", name)
	}
	return list, nil
}

// served is resolve without what the dataplane claims not to serve.
func (s *story) served(proto state.Protocol, text string) ([]netip.AddrPort, error) {
	list, err := s.resolve(text)
	return slices.DeleteFunc(list, func(dst netip.AddrPort) bool { return s.cluster.lacks(proto, dst) }), err
}

// check makes connections to one address and compares. It returns a server that answered, if one did.
func (s *story) check(host *topology.Host, proto state.Protocol, dst netip.AddrPort, want expectation) (server string, err error) {
	options := topology.ProbeOptions{Timeout: answerTimeout, Source: want.from}
	if s.cluster.lacks(proto, dst) {
		options.Timeout, options.SourcePort = silence, s.freshPorts(host, 1)
		return "", s.cluster.checkLacking(want.outcome == topology.Answered, host.Probe(s.ctx, proto, dst, options))
	}
	count := 3
	switch {
	case want.outcome == topology.TimedOut, want.refuses && slices.Contains(s.cluster.dataplane.Limits, EndpointRefusalLost):
		options.Timeout = silence
	case want.sticky:
		count = 10
	case want.weights:
		count = atLeast
	case want.spared != "":
		count = perEndpoint * len(want.servers)
	case want.evenly:
		count = max(enoughToSee(len(want.servers)), atLeast, perEndpoint*len(want.servers))
	case want.outcome == topology.Answered:
		count = enoughToSee(len(want.servers))
	}
	count = cmp.Or(want.count, count)
	atOnce := parallel
	if want.atOnce {
		atOnce = count
	} else if want.sticky || want.spared != "" {
		atOnce = 1 // two first connections at once may go to two endpoints, and connections that are open count
	}
	seen := map[string]int{}
	for done := 0; done < count; { // in batches, so that a fault does not cost one timeout per connection
		batch := min(atOnce, count-done)
		if proto != state.TCP {
			options.SourcePort = s.freshPorts(host, batch)
		}
		sentAgain := host.Retransmissions()
		for i, answer := range host.ProbeMany(s.ctx, batch, batch, proto, dst, options) {
			if want.within > 0 && answer.Latency > want.within && host.Retransmissions() == sentAgain {
				answer.Latency = want.within // the first packet had its answer, and the machine is slow
			}
			if err := s.checkAnswer(host, proto, dst, answer, want); err != nil {
				return "", fmt.Errorf("connection %d of %d: %w", done+i+1, count, err)
			}
			server = answer.Server
			seen[server]++
		}
		done += batch
	}
	if want.weights {
		return server, s.checkWeights(seen, want, count)
	}
	if want.spared != "" {
		return server, s.checkSpared(seen, want, count)
	}
	return server, checkSpread(seen, want)
}

// parseShares reads the weights of servers, in their order.
func parseShares(text string, servers []string) (map[string]float64, error) {
	list := strings.Split(text, ",")
	if len(list) != len(servers) {
		return nil, fmt.Errorf("want a weight for each of %d servers", len(servers))
	}
	shares := make(map[string]float64, len(list))
	for i, server := range servers {
		weight, err := strconv.ParseFloat(list[i], 64)
		if err != nil {
			return nil, err
		}
		shares[server] = weight
	}
	return shares, nil
}

// checkSpared checks that one server has at most half of an even share, and the others have the rest. A dataplane without balancing shares evenly.
func (s *story) checkSpared(seen map[string]int, want expectation, count int) error {
	balances, even := s.cluster.mayProgram(state.Balances)
	if even && checkSpread(seen, want) == nil {
		return nil
	}
	if !balances {
		return checkSpread(seen, want)
	}
	if 2*len(want.servers)*seen[want.spared] > count {
		return fmt.Errorf("answered by %v, want %s at most half as often as evenly", seen, want.spared)
	}
	want.servers = slices.DeleteFunc(slices.Clone(want.servers), func(server string) bool { return server == want.spared })
	return checkSpread(seen, want)
}

// checkWeights compares how often each server answered, and the empty name for what was refused, with their weights. A dataplane without weights shares
// evenly and refuses nothing.
func (s *story) checkWeights(seen map[string]int, want expectation, count int) error {
	byWeight, evenly := map[string]float64{"": s.refused}, map[string]float64{"": 0}
	weights := s.weights
	if want.shares != nil {
		weights = want.shares
	}
	for _, server := range want.servers {
		byWeight[server], evenly[server] = weights[server], 1
	}
	weighted, even := s.cluster.mayProgram(state.Weights)
	if weighted && isShared(seen, byWeight, count) || even && isShared(seen, evenly, count) {
		return nil
	}
	return fmt.Errorf("answered by %v, want shares by the weights %v (by weight: %v, evenly: %v)", seen, byWeight, weighted, even)
}

// freshPorts returns the first of count source ports that nothing has used on this host yet. The kernel
// remembers UDP flows and SCTP connections for a while, so one with the ports of an earlier one would not count as new.
func (s *story) freshPorts(host *topology.Host, count int) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := max(s.nextPorts[host], 2000)
	s.nextPorts[host] = first + uint16(count)
	return first
}

func (s *story) checkAnswer(host *topology.Host, proto state.Protocol, dst netip.AddrPort, got topology.Answer, want expectation) error {
	switch {
	case want.weights && s.refused > 0 && (got.Outcome == topology.Refused ||
		got.Outcome == lostRefusal(proto) && slices.Contains(s.cluster.dataplane.Limits, EndpointRefusalLost)):
	case want.refuses && s.cluster.dataplane.allows(EndpointRefusalLost, got.Outcome == lostRefusal(proto)):
	case got.Outcome != want.outcome && got.Outcome == topology.Answered:
		return fmt.Errorf("answered by %s, want it %v", got.Server, want.outcome)
	case got.Outcome != want.outcome:
		return fmt.Errorf("%v (%w), want it %v", got.Outcome, got.Err, want.outcome)
	case want.within > 0 && got.Latency > want.within:
		return fmt.Errorf("%v after %v, want it within %v", got.Outcome, got.Latency, want.within)
	case got.Outcome == topology.Answered:
		if proto == state.TCP && got.Server == host.Name && want.source == "node" && slices.Contains(want.servers, got.Server) &&
			s.cluster.dataplane.allows(HairpinSourceKept, slices.Contains(host.Addrs, got.Source.Addr())) {
			return nil
		}
		return s.checkSource(host, proto, dst, got, want)
	}
	return nil
}

// lostRefusal is what a client sees if an endpoint's refusal is lost.
func lostRefusal(proto state.Protocol) topology.Outcome {
	if proto == state.UDP {
		return topology.TimedOut
	}
	return topology.Broken
}

func (s *story) checkSource(host *topology.Host, proto state.Protocol, dst netip.AddrPort, got topology.Answer, want expectation) error {
	if !slices.Contains(want.servers, got.Server) {
		return fmt.Errorf("answered by %s, want one of %v", got.Server, want.servers)
	}
	source := got.Source.Addr()
	ok, node := true, s.cluster.lab.Node().Addrs
	switch want.source {
	case "":
	case "kept":
		if !s.isOthers(dst.Addr()) && s.cluster.dataplane.losesSource(proto, host.Addrs, node) {
			ok = s.cluster.dataplane.allows(ClientSourceLost, slices.Contains(node, source))
			break
		}
		ok = slices.Contains(host.Addrs, source) || source == want.from
	case "node":
		if s.cluster.handsOver(host, proto, dst) {
			ok = slices.Contains(host.Addrs, source)
			break
		}
		ok = slices.Contains(node, source)
	default:
		return fmt.Errorf("source=%s: use kept or node", want.source)
	}
	if !ok {
		return fmt.Errorf("%s saw the source address %v, want source=%s", got.Server, source, want.source)
	}
	return nil
}

// isOthers reports whether an address belongs to a host that is not the node, so that the dataplane ignores connections to it.
func (s *story) isOthers(addr netip.Addr) bool {
	for _, host := range s.hosts {
		if host != s.cluster.lab.Node() && slices.Contains(host.Addrs, addr) {
			return true
		}
	}
	return false
}

// checkSpread compares how often each server answered.
func checkSpread(seen map[string]int, want expectation) error {
	if want.outcome != topology.Answered {
		return nil
	}
	if want.sticky {
		if len(seen) != 1 {
			return fmt.Errorf("answered by %v, want always the same", seen)
		}
		return nil
	}
	var counts []int
	for _, server := range want.servers {
		if seen[server] == 0 {
			return fmt.Errorf("%s never answered: %v", server, seen)
		}
		counts = append(counts, seen[server])
	}
	if p := evenness(counts); want.evenly && p < improbable {
		return fmt.Errorf("not evenly spread: %v (probability %.1g)", seen, p)
	}
	return nil
}
