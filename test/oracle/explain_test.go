package oracle_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

const (
	// questionsExplained is how many questions are explained at most, each time that the feed of a history is read.
	questionsExplained = 25
	// explainedSlice is how many histories are run before the test logs how far it is.
	explainedSlice = 1000
)

// TestExplanationsAgree asks the oracle and package explain about the same packets in random histories: the verdict, the endpoints that
// get the packet, which of them see the node's address, why each other endpoint does not, the rules that chose among them, and why Services
// do not get a packet to an address that they name. Clients are named as people name them, where that says who they are.
func TestExplanationsAgree(t *testing.T) {
	histories := randcluster.Seeds(200, 20_000)
	var total tallyOfReasons
	for from := uint64(0); from < histories && !t.Failed(); from += explainedSlice {
		to := min(from+explainedSlice, histories)
		explainSlice(t, from, to, &total)
		t.Logf("%d of %d histories: %d questions, %d endpoints", to, histories, total.questions, total.endpoints)
	}
	if t.Failed() {
		return
	}
	t.Logf("endpoints, rules and Services by reason: %v", total.reasons)
	t.Logf("answers by verdict: %v; clients by how they were named: %v", total.verdicts, total.named)
	for _, reason := range everyReason {
		if total.reasons[reason] == 0 {
			t.Errorf("nothing was left out as %s: the histories do not test what they should", reason)
		}
	}
}

// everyReason must come up.
var everyReason = []string{
	string(brain.OtherFamily), string(brain.Special), string(brain.NoRoom), string(brain.NotReady), string(brain.Terminating), string(brain.NotServing),
	string(brain.OtherNode), string(brain.HintedElsewhere), string(brain.Duplicate), string(brain.NoWeight), string(brain.NodeUnready), string(brain.NoZoneWeight), "balance hash", "balance hash-connection", "balance least-connections",
	"ejection", "deadline", "ping answered true", "ping answered false",
	"slice " + oracle.Headless, "slice " + oracle.OtherProxy, "slice " + oracle.OtherFamily, "slice " + oracle.NoSuchPort,
	"node hints Used", "node hints NoneForHere", "zone weights Used", "zone weights SomeUnhinted", "zone weights NoneForHere", "slow start",
	"zone hints Used", "zone hints SomeUnhinted", "zone hints NoneForHere",
	"policy Local", "policy Cluster", "all terminating", "unready nodes", "source ranges", "client not in source ranges", "lost to another Service",
	"Service " + oracle.OtherFamily, "Service " + oracle.NoRoom, "Service " + oracle.Headless, "Service " + oracle.ExternalName, "Service " + oracle.OtherProxy,
	"Service " + oracle.OptedOut, "Service " + oracle.NoClusterIP, "Service " + oracle.NoPorts, "Service " + oracle.Refused, "Service " + oracle.OtherProtocol,
	"Service " + oracle.NoSuchPort, "Service " + oracle.NodePortProtocol, "Service " + oracle.NotHere, "no Service",
}

// explainSlice runs histories, those with the seeds from one number to below another.
func explainSlice(t *testing.T, from, to uint64, total *tallyOfReasons) {
	var next, failed atomic.Uint64
	next.Store(from)
	inBubbles(t, func(t *testing.T) {
		for seed := next.Add(1) - 1; seed < to && failed.Load() < enoughTrouble; seed = next.Add(1) - 1 {
			r := newRun(seed, false)
			seen := &tallyOfReasons{}
			rng := rand.New(rand.NewPCG(seed, 2))
			r.asks = func() error { return seen.ask(r, rng) }
			if err := r.play(t.Context()); err != nil {
				failed.Add(1)
				t.Error(err)
			}
			total.add(seen)
		}
	})
}

// tallyOfReasons counts what has been compared.
type tallyOfReasons struct {
	mu                   sync.Mutex
	questions, endpoints int
	reasons              counts
	verdicts             counts
	named                counts
}

// counts are how often each word came up.
type counts map[string]int

func (c *counts) add(word string, n int) {
	if *c == nil {
		*c = counts{}
	}
	(*c)[word] += n
}

func (n *tallyOfReasons) add(o *tallyOfReasons) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.questions, n.endpoints = n.questions+o.questions, n.endpoints+o.endpoints
	for _, c := range []struct{ to, from *counts }{{&n.reasons, &o.reasons}, {&n.verdicts, &o.verdicts}, {&n.named, &o.named}} {
		for word, count := range *c.from {
			c.to.add(word, count)
		}
	}
}

// ask compares the answers to random questions.
func (n *tallyOfReasons) ask(r *run, rng *rand.Rand) error {
	w := r.world()
	packets := r.history.Packets()
	var local []netip.Addr
	for _, p := range packets {
		if w.NodePortAddrs(p.Dst.Addr()) && !slices.Contains(local, p.Dst.Addr()) {
			local = append(local, p.Dst.Addr())
		}
	}
	x := explain.New(explain.Options{
		Store: r.store, Local: append(local, netip.Addr{}), // never none, which stands for the default
		Facts: &diagnosis.Facts{Pods: []diagnosis.Pod{{Namespace: "far", Name: "away", Node: r.opts.NodeName, Addrs: clientPod}}},
	})
	rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	for _, p := range packets[:min(len(packets), questionsExplained)] {
		p, got, err := n.question(r, x, p, local, rng)
		if err == nil {
			err = n.compare(w, p, got)
		}
		if err != nil {
			return fmt.Errorf("%v: %w\n%+v\n%s", p, err, *got, describe(w, r.seen, p))
		}
	}
	return nil
}

// clientPod are the addresses of a pod on this node that no EndpointSlice has.
var clientPod = []netip.Addr{netip.MustParseAddr("10.244.0.99"), netip.MustParseAddr("fd00:244::99")}

// unlisted are addresses of clients outside that are in no source range except the ranges of all addresses.
var unlisted = map[state.Family]netip.Addr{state.IPv4: netip.MustParseAddr("198.51.100.7"), state.IPv6: netip.MustParseAddr("fd00:51::7")}

// words are by what people can name the client of a packet. The node, and clients outside, may have another address than the packet says.
func (r *run) words(p probe.Packet, local []netip.Addr) (words []string) {
	family := state.FamilyOf(p.Dst.Addr())
	isPod := slices.ContainsFunc(r.detector().ClusterCIDRs, func(r netip.Prefix) bool { return r.Contains(p.Src) })
	class := probe.FromOutside
	switch {
	case isPod:
		class = probe.FromPod
	case slices.Contains(local, p.Src):
		class = probe.FromNode
	}
	if class == p.From {
		words = append(words, p.Src.String())
	}
	if slices.Contains(clientPod, p.Src) && class == p.From {
		words = append(words, "pod/far/away")
	}
	hasFamily := func(n *model.Node) bool {
		return n.Name == r.opts.NodeName && slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return state.FamilyOf(a) == family })
	}
	switch {
	case p.From == probe.FromOutside:
		words = append(words, "outside")
	case p.From == probe.FromNode && slices.ContainsFunc(r.history.World().Nodes, hasFamily):
		words = append(words, "node")
	}
	return words
}

// question asks about a packet, from its client by class and address, or by a word. It returns the packet that the answer is about.
func (n *tallyOfReasons) question(r *run, x *explain.Explainer, p probe.Packet, local []netip.Addr, rng *rand.Rand) (probe.Packet, *explain.Answer, error) {
	words := r.words(p, local)
	i := rng.IntN(len(words) + 1)
	if i == len(words) {
		n.named.add("by class", 1)
		return p, x.Explain(explain.Connection{Class: classes[p.From], Src: p.Src, Dst: p.Dst, Protocol: p.Protocol}), nil
	}
	from, err := explain.ParseFrom(words[i])
	to, toErr := explain.ParseTo(fmt.Sprintf("%v/%v", p.Dst, p.Protocol))
	answers, askErr := x.Ask(context.Background(), from, to)
	if err := errors.Join(err, toErr, askErr); err != nil || len(answers) != 1 {
		return p, &explain.Answer{}, fmt.Errorf("asked from %s: %d answers, error %w", words[i], len(answers), err)
	}
	got := answers[0]
	src := got.Client.Addr
	if got.Client.Class != classes[p.From] || got.Client.Why == "" {
		return p, got, fmt.Errorf("%s was taken for %s (%q)", words[i], got.Client.Class, got.Client.Why)
	}
	switch words[i] {
	case "outside":
		n.named.add("outside", 1)
		if src.IsValid() {
			return p, got, fmt.Errorf("a client outside has the address %v", src)
		}
		p.Src = unlisted[state.FamilyOf(p.Dst.Addr())]
	case "node":
		n.named.add("node", 1)
		if !r.history.World().HasAddress(src) {
			return p, got, fmt.Errorf("the node has the address %v", src)
		}
		p.Src = src
	case "pod/far/away":
		n.named.add("pod", 1)
	default:
		n.named.add("address", 1)
		if src != p.Src {
			return p, got, fmt.Errorf("the client has the address %v", src)
		}
	}
	return p, got, nil
}

var classes = map[probe.Client]explain.Class{probe.FromPod: explain.Pod, probe.FromNode: explain.Node, probe.FromOutside: explain.Outside}

var verdicts = map[probe.Outcome]explain.Verdict{
	probe.Pass: explain.NotServed, probe.Forward: explain.Forwarded, probe.Reject: explain.Rejected, probe.Drop: explain.Dropped,
}

func (n *tallyOfReasons) compare(w *oracle.World, p probe.Packet, got *explain.Answer) error {
	n.questions++
	want := w.Ask(p)
	if got.Verdict != verdicts[want.Outcome] || got.Because == "" {
		return fmt.Errorf("verdict %q (%q), want %v", got.Verdict, got.Because, want.Outcome)
	}
	n.verdicts.add(string(got.Verdict), 1)
	if got.Frontend != nil && got.Frontend.Kind == state.NodePort.String() && !w.NodePortAddrs(p.Dst.Addr()) {
		return fmt.Errorf("a node port where none is served")
	}
	rules, served := w.Rules(p)
	if served != (got.Frontend != nil) {
		return fmt.Errorf("the frontend is %+v, and a Service has it: %t", got.Frontend, served)
	}
	if !served {
		return n.compareStray(w, p, got)
	}
	if err := n.compareLosers(w, p, got); err != nil {
		return err
	}
	if rules.Restricted != got.Frontend.Restricted {
		return fmt.Errorf("only some clients may connect: %t, want %t", got.Frontend.Restricted, rules.Restricted)
	}
	if got.Verdict == explain.Dropped && got.Endpoints == nil && strings.Contains(got.Because, "may connect to the load balancer IP") {
		n.reasons.add("client not in source ranges", 1)
		if !w.NotAdmitted(p) {
			return fmt.Errorf("%q, and the client may connect", got.Because)
		}
		return nil // it is not led to endpoints
	}
	if err := n.compareEndpoints(w, p, got, want, rules.Twins); err != nil {
		return err
	}
	return n.compareRules(got, want, rules)
}

// compareEndpoints compares which endpoints get the packet, how they see the client, and why each other one does not.
func (n *tallyOfReasons) compareEndpoints(w *oracle.World, p probe.Packet, got *explain.Answer, want probe.Answer, twins int) error {
	var choices []probe.Choice
	var reasons []oracle.Reasoned
	duplicates := 0
	for _, e := range got.Endpoints {
		if e.Gets != (len(e.Reasons) == 0) || e.Text == "" {
			return fmt.Errorf("%v gets connections: %t, with the reasons %v (%q)", e.Addr, e.Gets, e.Reasons, e.Text)
		}
		if e.Gets && want.Outcome == probe.Forward {
			choices = append(choices, probe.Choice{Endpoint: e.Addr, Masquerade: e.Masqueraded})
		}
		for _, reason := range e.Reasons {
			n.reasons.add(string(reason), 1)
		}
		if slices.Contains(e.Reasons, brain.Duplicate) {
			duplicates++
			continue
		}
		listed := oracle.Reasoned{At: e.Addr}
		for _, reason := range e.Reasons {
			listed.Reasons = append(listed.Reasons, string(reason))
		}
		reasons = append(reasons, listed)
	}
	if noRoom := func(e explain.Endpoint) bool { return slices.Contains(e.Reasons, brain.NoRoom) }; slices.ContainsFunc(got.Endpoints, noRoom) && excuseOf(got.Because) != oracle.NoRoom {
		return fmt.Errorf("there is no room for endpoints, and it says %q", got.Because)
	}
	if duplicates != twins {
		return fmt.Errorf("%d endpoints are duplicates, want %d", duplicates, twins)
	}
	withoutWeight := func(a, b probe.Choice) bool { return a.Endpoint == b.Endpoint && a.Masquerade == b.Masquerade }
	if !slices.EqualFunc(choices, want.Choices, withoutWeight) {
		return fmt.Errorf("endpoints %v, want %v", choices, want.Choices)
	}
	slices.SortFunc(reasons, func(a, b oracle.Reasoned) int {
		return cmp.Or(a.At.Compare(b.At), slices.Compare(a.Reasons, b.Reasons))
	})
	same := func(a, b oracle.Reasoned) bool { return a.At == b.At && slices.Equal(a.Reasons, b.Reasons) }
	reasons = slices.CompactFunc(reasons, same)
	n.endpoints += len(reasons)
	if should := w.Endpoints(p); !slices.EqualFunc(reasons, should, same) {
		return fmt.Errorf("reasons %v, want %v", reasons, should)
	}
	return nil
}

// compareRules compares the rules that chose among endpoints.
func (n *tallyOfReasons) compareRules(got *explain.Answer, want probe.Answer, rules oracle.Rules) error {
	has := map[string]string{}
	for _, policy := range got.Policies {
		if has[policy.Name] != "" || policy.Text == "" {
			return fmt.Errorf("policy %+v", policy)
		}
		has[policy.Name] = policy.Value
	}
	field := "externalTrafficPolicy"
	if got.Frontend.Kind == state.ClusterIP.String() {
		field = "internalTrafficPolicy"
	}
	should := map[string]string{field: rules.Policy}
	note := func(name, value, word string) {
		should[name] = value
		n.reasons.add(word, 1)
	}
	n.reasons.add("policy "+rules.Policy, 1)
	if rules.NodeHints != "" {
		note("node hints", rules.NodeHints, "node hints "+rules.NodeHints)
	}
	if rules.ZoneHints != "" {
		note("zone hints", rules.ZoneHints, "zone hints "+rules.ZoneHints)
	}
	if rules.ZoneWeights != "" {
		note(model.ZoneWeightsAnnotation, rules.ZoneWeights, "zone weights "+rules.Zones)
	}
	if rules.SlowStart > 0 {
		note(model.SlowStartAnnotation, rules.SlowStart.String(), "slow start")
	}
	if len(rules.Unready) > 0 {
		note("nodeHealth", strings.Join(rules.Unready, ", "), "unready nodes")
	}
	if rules.Terminating {
		note("terminating endpoints", "Used", "all terminating")
	}
	if rules.Restricted {
		note("loadBalancerSourceRanges", has["loadBalancerSourceRanges"], "source ranges")
		if has["loadBalancerSourceRanges"] == "" {
			return fmt.Errorf("nothing is said about source ranges")
		}
	}
	if want.Affinity != "" {
		should["sessionAffinity"] = "ClientIP"
	}
	if rules.Balance != "" && want.Outcome == probe.Forward {
		note(model.BalanceAnnotation, rules.Balance, "balance "+rules.Balance)
	}
	if want.Ejection {
		note(model.EjectAnnotation, "true", "ejection")
	}
	if rules.DrainSeconds > 0 {
		note(model.DrainAnnotation, (time.Duration(rules.DrainSeconds) * time.Second).String(), "deadline")
	}
	if rules.Ping {
		note(model.PingAnnotation, "true", fmt.Sprintf("ping answered %t", rules.Answers))
	}
	isPing := func(p explain.Policy) bool {
		return p.Name == model.PingAnnotation && strings.Contains(p.Text, "no answer") == rules.Answers
	}
	if slices.ContainsFunc(got.Policies, isPing) {
		return fmt.Errorf("the address answers echo requests: %t, and it says otherwise", rules.Answers)
	}
	if !maps.Equal(has, should) {
		return fmt.Errorf("policies %v, want %v", has, should)
	}
	without := map[string]string{}
	for _, s := range got.Slices {
		if s.Text == "" || without[s.Name] != "" {
			return fmt.Errorf("slice %+v", s)
		}
		without[s.Name] = string(s.Reason)
		n.reasons.add("slice "+string(s.Reason), 1)
	}
	if !maps.Equal(without, rules.SlicesWithout) {
		return fmt.Errorf("slices without an endpoint: %v, want %v", without, rules.SlicesWithout)
	}
	return nil
}

// compareLosers compares which other Services want the frontend.
func (n *tallyOfReasons) compareLosers(w *oracle.World, p probe.Packet, got *explain.Answer) error {
	var named []string
	for _, note := range got.Notes {
		if _, list, found := strings.Cut(note, " wanted by Service"); found {
			list, _, _ = strings.Cut(strings.TrimPrefix(list, "s"), ", too: ")
			named = append(named, strings.Split(strings.TrimSpace(list), ", ")...)
		}
	}
	var losers []string
	for _, name := range w.Losers(p) {
		losers = append(losers, name.String())
	}
	if !slices.Equal(named, losers) {
		return fmt.Errorf("the frontend is wanted by %v, too; want %v", named, losers)
	}
	n.reasons.add("lost to another Service", len(losers))
	return nil
}

// excuses are by what a sentence is recognized that says why a Service does not get a packet to an address that it names. The first that is
// found counts.
var excuses = []struct{ text, excuse string }{
	{"the Service is headless", oracle.Headless},
	{"the Service is an alias in DNS", oracle.ExternalName},
	{"another service proxy", oracle.OtherProxy},
	{"networking.k8s.io/kube-proxy=disabled", oracle.OptedOut},
	{"the Service has no cluster IP", oracle.NoClusterIP},
	{"which older services take", oracle.NoRoom},
	{"older services leave room for", oracle.NoRoom},
	{"than it may have", oracle.NoRoom},
	{" entries, and ", oracle.NoRoom},
	{"has the same number", oracle.NumberTaken},
	{"and is not routed", oracle.Refused},
	{" cluster IP, so that its ", oracle.OtherFamily},
	{"is not served on", oracle.NotHere},
	{"node port", ""},
	{"the Service has no port ", oracle.NoSuchPort},
	{"the Service has no port", oracle.NoPorts},
	{"port", oracle.OtherProtocol},
}

// excuseOf returns what a sentence says.
func excuseOf(sentence string) string {
	for _, e := range excuses {
		switch {
		case !strings.Contains(sentence, e.text):
		case e.excuse != "":
			return e.excuse
		case strings.Contains(sentence, " of the Service is "):
			return oracle.NodePortProtocol
		}
	}
	return ""
}

// compareStray compares why Services that name the destination of a packet do not get it. Each sentence must be true.
func (n *tallyOfReasons) compareStray(w *oracle.World, p probe.Packet, got *explain.Answer) error {
	naming := w.Naming(p)
	if len(naming) == 0 {
		n.reasons.add("no Service", 1)
		text := fmt.Sprintf("no Service has the address %v", p.Dst.Addr())
		switch {
		case got.Verdict == explain.Dropped:
			text = fmt.Sprintf("%v is in the range of cluster IPs, and no Service has it", p.Dst.Addr())
		case w.HasAddress(p.Dst.Addr()):
			text = fmt.Sprintf("no Service has node port %d/%v", p.Dst.Port(), p.Protocol)
		}
		if got.Because != text {
			return fmt.Errorf("%q, want %q", got.Because, text)
		}
		return nil
	}
	said := map[string]string{got.Service: got.Because}
	for _, note := range got.Notes {
		if rest, found := strings.CutPrefix(note, "Service "); found {
			name, because, _ := strings.Cut(rest, " names the address, too: ")
			said[name] = because
		}
	}
	for _, s := range naming {
		sentence := said[s.Name.String()]
		excuse := excuseOf(sentence)
		if !slices.Contains(w.Excuses(s, p), excuse) {
			return fmt.Errorf("of Service %v it says %q (%s); true is %v", s.Name, sentence, excuse, w.Excuses(s, p))
		}
		n.reasons.add("Service "+excuse, 1)
		if got.Verdict == explain.Rejected && s.Name.String() == got.Service && !w.Holds(s, p.Dst.Addr()) {
			return fmt.Errorf("the packet is rejected, and Service %v, of which it says %q, does not have the cluster IP", s.Name, sentence)
		}
	}
	if len(said) != len(naming) {
		return fmt.Errorf("it says %v of %d Services that name the address", said, len(naming))
	}
	return nil
}
