//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/probe"
)

// edgeScenario is one kind of fault in a cluster with the edge.
type edgeScenario struct {
	name, about string
	// endpoints are the pods that serve.
	endpoints []string
	// edge is the section of the configuration with which nodes start. release has them start with the program of a release, which has no such section.
	edge    string
	release bool
	// own is set if the edge is on when connections are opened.
	own bool
	// gap is the longest time that an open connection may wait, and newGap the longest without a new connection.
	gap, newGap time.Duration
	// mayFail is set if new connections and flows of datagrams cannot succeed at times. Open connections of TCP must outlast all.
	mayFail bool
	run     func(context.Context, *edgeStage) (string, error)
}

// edgeOutage is the longest time in which open connections may not be served when a process or a node ends without a word. A request that is lost just then
// waits until TCP has sent it for the third time, 1.4 s later: that is edgeKillGap.
const edgeOutage, edgeKillGap = time.Second, 1500 * time.Millisecond

// edgeProbes is how long a node may go on asking another one whose programs are gone. It must miss three probes.
const edgeProbes = 5 * time.Second

// edgeDown is how long a process that was killed is not there, and edgeFailover the time until packets come in at another node.
const edgeDown, edgeFailover = 500 * time.Millisecond, 300 * time.Millisecond

// edgeExcused is the largest share of the time in which gaps may be excused. Allowed gaps are longer here than elsewhere.
const edgeExcused = 0.5

var edgeAll = []string{"a1", "b1", "b2", "c1", "c2"}

var edgeScenarios = []edgeScenario{
	{
		name: "weights", about: "Weights of endpoints change, and endpoints terminate and become ready again.", endpoints: edgeAll, edge: edgeOn, own: true,
		gap: echoGap, newGap: echoGap, run: edgeChangeWeights,
	},
	{
		name: "drains", about: "All endpoints of a node terminate. Later they are no endpoints at all, and then ready again. They serve what they have all the time.",
		endpoints: edgeAll, edge: edgeOn, own: true, gap: echoGap, newGap: echoGap, run: edgeDrainNodes,
	},
	{
		name: "first node killed", about: "The node at which packets come in loses its network, and its process is killed. After 0.3 s, packets come in at another node.",
		endpoints: edgeAll[1:], edge: edgeOn, own: true, gap: edgeKillGap, newGap: 2 * edgeKillGap, mayFail: true, run: edgeKillFirst,
	},
	{
		name: "program killed", about: "The process of the node at which packets come in is killed, and starts again after 0.5 s. Its programs end with it.",
		endpoints: edgeAll, edge: edgeOn, own: true, gap: edgeKillGap, newGap: echoGap, run: edgeKillProgram,
	},
	{
		name: "process killed", about: "The process of a node with endpoints is killed, and starts again after 0.5 s. New connections to its endpoints fail until then.",
		endpoints: edgeAll, edge: edgeOn, own: true, gap: edgeKillGap, newGap: 2 * edgeKillGap, mayFail: true, run: edgeKillServing,
	},
	{
		name: "annotations", about: "Somebody removes the annotation of a Node, or overwrites it, and writes it again up to 0.2 s later. Nodes also write theirs themselves, now and then.",
		endpoints: edgeAll, edge: edgeOn, own: true, gap: echoGap, newGap: echoGap, run: edgeFlap,
	},
	{
		name: "upgrade", about: "Nodes begin with a release that has no edge. Half of them get this version with the edge on, and then the others. The edge is turned off again, and nodes " +
			"go back to the release. New flows of datagrams may fail until other nodes know that the programs of a node are gone.",
		endpoints: edgeAll, release: true, gap: echoGap, newGap: edgeProbes, mayFail: true, run: edgeUpgrade,
	},
	{
		name: "on and off", about: "The configuration of each node turns the edge on and off.", endpoints: edgeAll, edge: edgeOff, gap: echoGap, newGap: echoGap, run: edgeToggle,
	},
}

// EdgeNames lists all scenarios of the edge.
func EdgeNames() (names []string) {
	for i := range edgeScenarios {
		names = append(names, edgeScenarios[i].name)
	}
	return names
}

// edgeStage is where a scenario of the edge runs.
type edgeStage struct {
	*edgeLab
	*Options
	// head is this version of the program, or one with a bug.
	head string
	// outage is the longest time in which open connections were not served.
	outage time.Duration
	// more are the reports of connections that were opened later.
	more []*loadcheck.Report
	// wrong lists what must not be and shows in no count.
	wrong []string
}

func (s *edgeStage) scaled(n int) int { return max(1, int(float64(n)*s.Scale)) }

// The load: connections that are open all the time, new ones, and flows of datagrams. Each open connection asks as soon as edgePause has passed since the last answer.
// The load runs before all other programs, so it must leave processors to nodes. With 1,000 connections and pauses of 90 ms, a start took 3 to 9 s on two processors.
const (
	edgePause    = time.Second
	edgeFlow     = 250 * time.Millisecond    // the pause of flows of datagrams, and of the control
	edgePerLoad  = 250                       // connections of one thread
	edgeBegun    = edgePause + time.Second/2 // when all connections are open
	edgeNewEvery = 20 * time.Millisecond
	edgeFlows    = 20
)

// openLoad returns streams of open connections from the client to the Service.
func (l *edgeLab) openLoad(connections int, own bool) (list []loadcheck.Stream) {
	for family := range edgeFamilies {
		for left := connections / len(edgeFamilies); left > 0; left -= edgePerLoad {
			list = append(list, loadcheck.Stream{
				From: l.hosts["client"], Client: probe.FromOutside, Target: l.target(state.TCP, family), Judge: &l.open, Own: own, Flows: min(left, edgePerLoad), Pause: edgePause,
			})
		}
	}
	return list
}

// target is the Service of the load.
func (l *edgeLab) target(proto state.Protocol, family int) loadcheck.Target {
	t := loadcheck.Target{Name: "web", Protocol: proto, Port: "tcp", Service: state.ServiceName{Namespace: namespace, Name: edgeWeb.name}}
	t.Addr = netip.AddrPortFrom(edgeWeb.lbIPs()[family], tcpPort)
	if proto == state.UDP {
		t.Port, t.Addr = "udp", netip.AddrPortFrom(edgeWeb.lbIPs()[family], udpPort)
	}
	return t
}

// allLoad returns the streams of a scenario, with the control: from the client to a pod, without a virtual address.
func (l *edgeLab) allLoad(connections int, own bool) []loadcheck.Stream {
	list := l.openLoad(connections, own)
	for family := range edgeFamilies {
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			fresh := loadcheck.Stream{
				From: l.hosts["client"], Client: probe.FromOutside, Target: l.target(proto, family), Judge: &edgeJudge{&l.fresh, l.nodeOf}, Every: edgeNewEvery, Pause: edgeFlow,
			}
			if proto == state.UDP {
				fresh.Flows = edgeFlows
			}
			plain := loadcheck.Target{Name: "plain pod", Protocol: proto, Addr: netip.AddrPortFrom(l.hosts["plain"].Addrs[family], servedPort)}
			list = append(list, fresh, loadcheck.Stream{
				From: l.hosts["client"], Target: plain, Judge: loadcheck.Plainly{}, Control: true, Every: edgeNewEvery, Flows: edgeFlows, Pause: edgeFlow,
			})
		}
	}
	return list
}

// edgeJudge also judges connections that nodes hand over. While two states count, a node may hand a connection over by one, and the other node may take it in by the
// other.
type edgeJudge struct {
	loadcheck.Judge
	nodeOf func(netip.Addr) string
}

// States adds endpoints that are terminating. A node without ready endpoints serves such connections by them, if another state has ready endpoints there.
func (j *edgeJudge) States(t *loadcheck.Target, from probe.Client, src netip.Addr, since, until time.Time) []loadcheck.State {
	states := j.Judge.States(t, from, src, since, until)
	chosen := map[string]bool{} // nodes, in some state
	for _, s := range states {
		for _, e := range s.Allowed {
			chosen[j.nodeOf(e.Addr())] = true
		}
	}
	for i := range states {
		s := &states[i]
		ready := map[string]bool{}
		for _, e := range s.Allowed {
			ready[j.nodeOf(e.Addr())] = true
		}
		s.Allowed = slices.Clip(s.Allowed)
		for _, e := range s.Serving {
			if node := j.nodeOf(e.Addr()); chosen[node] && !ready[node] {
				s.Allowed = append(s.Allowed, e)
			}
		}
	}
	return states
}

// trackedFor is how long nodes track a connection that was reset.
const trackedFor = 10 * time.Second

// with runs fn while so many more connections are open, which must all outlast it. If the edge was just turned on, nodes still track connections of before. A new one
// from the same port would go on without the edge.
func (s *edgeStage) with(ctx context.Context, connections int, own bool, fn func() error) error {
	if err := pause(ctx, trackedFor); err != nil {
		return err
	}
	counter := loadcheck.Start(loadcheck.Options{Streams: s.openLoad(connections, own), Timeout: s.timeout, EstablishedTimeout: s.timeout})
	time.Sleep(edgeBegun)
	err := fn()
	report, loadErr := counter.Stop()
	s.more = append(s.more, report)
	return errors.Join(err, loadErr)
}

// edgeChangeWeights leaves one endpoint ready at least. The changes of a Service with weights may come in parts, between which it rests. So only now and then a
// single state counts for new connections.
func edgeChangeWeights(ctx context.Context, s *edgeStage) (string, error) {
	const together, rest = 100, 5 * time.Second
	n := s.scaled(200)
	for i := range n {
		for _, node := range edgeNames {
			s.weights[node] = 1 + s.rng.IntN(5)
		}
		e := s.endpoints[s.rng.IntN(len(s.endpoints))]
		ready := slices.ContainsFunc(s.endpoints, func(o *edgeEndpoint) bool { return o != e && !o.terminating })
		if i%2 == 0 {
			e.terminating = !e.terminating && ready
		}
		err := inTurn(s.send, func() error { return s.applied(ctx) })
		if err == nil && (i+1)%together == 0 {
			err = inTurn(func() error { return pause(ctx, rest) }, func() error { return s.settle(ctx) }, func() error { return pause(ctx, time.Second) })
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d changes", n), nil
}

func edgeDrainNodes(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(12)
	for i := range n {
		node := edgeNames[i%3]
		for _, step := range [][2]bool{{true, false}, {true, true}, {false, false}} { // terminating, gone
			for _, e := range s.endpoints {
				if e.node == node {
					e.terminating, e.gone = step[0], step[1]
				}
			}
			if err := inTurn(func() error { return s.change(ctx) }, func() error { return pause(ctx, 200*time.Millisecond) }); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%d drains", n), nil
}

func edgeKillFirst(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(10)
	for i := range n {
		from, to := "a", "d"
		if i%2 == 1 {
			from, to = to, from
		}
		var done func(time.Duration)
		err := s.timed(ctx, func(string) bool { return true }, func() error {
			done = s.fresh.Interrupt()
			return inTurn(func() error { return s.plugged(from, false) }, func() error { return s.end(from, syscall.SIGKILL) })
		}, func() error {
			err := inTurn(func() error { return pause(ctx, edgeFailover) }, func() error { return s.via(to) })
			done(0)
			return err
		})
		if err := inTurn(
			func() error { return err },
			func() error { return s.sees(ctx, true) },
			func() error { return s.plugged(from, true) },
			func() error { return s.start(from) },
			func() error { return s.settle(ctx) },
			func() error { return pause(ctx, time.Second) },
		); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d nodes killed", n), nil
}

func edgeKillProgram(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(20)
	for range n {
		// Netfilter has flows of datagrams while there are no programs, and keeps them.
		if err := s.killed(ctx, "a", s.fresh.ForgetFlows, func(node string) bool { return node != "a" }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d kills", n), nil
}

// killed has the process of a node be killed and start again, until servers see new clients. It is hit by that what serves reports. The ledger learns of it by begin.
func (s *edgeStage) killed(ctx context.Context, node string, begin func() func(time.Duration), serves func(node string) bool) error {
	var done func(time.Duration)
	err := s.timed(ctx, serves, func() error {
		done = begin()
		return s.end(node, syscall.SIGKILL)
	}, func() error {
		err := inTurn(
			func() error { return pause(ctx, edgeDown) },
			func() error { return s.start(node) },
			func() error { return s.settle(ctx) },
			func() error { return s.sees(ctx, true) },
		)
		done(edgeSlack)
		return err
	})
	return inTurn(func() error { return err }, func() error { return pause(ctx, edgeDown) })
}

// A sentinel is a connection that is open and idle. After a fault, one after the other sends a request. The first whose answer comes before TCP sends the request
// again shows that connections are served.
const (
	sentinels     = 100
	sentinelEvery = 20 * time.Millisecond
	sentinelRetry = 190 * time.Millisecond
)

// timed breaks something, mends it, and measures how long open connections were not served. It looks at connections to nodes that serves reports.
func (s *edgeStage) timed(ctx context.Context, serves func(node string) bool, breaks, mends func() error) error {
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for tried := 0; len(conns) < sentinels; tried++ {
		if tried > 20*sentinels {
			return errors.New("too few connections go to the nodes that a fault hits")
		}
		conn, err := s.dial(ctx, tried%len(edgeFamilies))
		if err != nil {
			return err
		}
		if server, _, err := ask(conn, time.Second); err != nil || !serves(s.nodeOf(server)) {
			if conn.Close(); err != nil {
				return err
			}
			continue
		}
		conns = append(conns, conn)
	}
	if err := breaks(); err != nil {
		return err
	}
	began := time.Now()
	outage := make([]time.Duration, sentinels)
	errs := make([]error, sentinels)
	var done sync.WaitGroup
	for i, conn := range conns {
		done.Go(func() {
			time.Sleep(time.Until(began.Add(time.Duration(i) * sentinelEvery)))
			sent := time.Now()
			_, _, errs[i] = ask(conn, max(s.timeout, sentinelTimeout))
			if outage[i] = sent.Sub(began); errs[i] == nil && time.Since(sent) > sentinelRetry {
				outage[i] = sentinels * sentinelEvery
			}
		})
	}
	err := mends()
	done.Wait()
	s.outage = max(s.outage, slices.Min(outage))
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failed) > 0 {
		s.wrong = append(s.wrong, fmt.Sprintf("%d of %d idle connections failed after a fault, the first one: %v", len(failed), sentinels, failed[0]))
	}
	return err
}

// sentinelTimeout is how long a request on an open connection may stay without an answer, as in package loadcheck.
const sentinelTimeout = 5 * time.Second

func edgeKillServing(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(10)
	for i := range n {
		killed := edgeNames[1+i%2]
		if err := s.killed(ctx, killed, s.fresh.Interrupt, func(node string) bool { return node == killed }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d kills", n), nil
}

func edgeFlap(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(60)
	for i := range n {
		node := edgeNames[s.rng.IntN(len(edgeNames))]
		steps := []func() error{
			func() error { return s.annotate(node, []string{"", "no"}[i%2]) },
			func() error { return pause(ctx, time.Duration(s.rng.IntN(200))*time.Millisecond) },
			func() error { return s.annotate(node, edgeValue) },
			func() error { return pause(ctx, time.Duration(s.rng.IntN(100))*time.Millisecond) },
		}
		if (i+1)%10 == 0 || i == n-1 {
			steps = append(steps, func() error { return s.takePart(ctx, edgeNames...) }, func() error { return s.sees(ctx, true) })
		}
		if err := inTurn(steps...); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d annotations removed or overwritten, and written again", n), nil
}

// replace has a node run another program, with another section of the configuration.
func (s *edgeStage) replace(ctx context.Context, node, program, edge string) error {
	return inTurn(
		func() error { return s.end(node, syscall.SIGTERM) },
		func() error { s.nodes[node].program, s.nodes[node].edge = program, edge; return s.start(node) },
		func() error { return s.settle(ctx) },
	)
}

func edgeUpgrade(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(2)
	for range n {
		var up, down []func() error
		for _, node := range []string{"b", "d", "c", "a"} {
			up = append(up, func() error { return s.replace(ctx, node, s.head, edgeOn) })
			down = append(down, func() error { return s.replace(ctx, node, s.Release, "") })
			if node == "d" {
				up = append(up, func() error { return s.takePart(ctx, "b", "d") }, func() error { return s.sees(ctx, false) })
			}
		}
		up = append(up, func() error { return s.takePart(ctx, edgeNames...) }, func() error { return s.sees(ctx, true) })
		err := inTurn(append(up, func() error {
			return s.with(ctx, s.Connections/5, true, func() error { // they end before programs come that do not know them
				return inTurn(func() error { return s.turn(ctx, edgeOff) }, func() error { return pause(ctx, time.Second) })
			})
		})...)
		if err != nil {
			return "", err
		}
		done := s.fresh.Interrupt()
		err = inTurn(down...)
		if done(edgeProbes); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d upgrades and downgrades of all nodes", n), nil
}

// turn turns the edge on or off at all nodes, in random order.
func (s *edgeStage) turn(ctx context.Context, section string) error {
	var nodes []string
	if section == edgeOn {
		nodes = edgeNames
	}
	var steps []func() error
	for _, i := range s.rng.Perm(len(edgeNames)) {
		n := s.nodes[edgeNames[i]]
		n.edge = section
		steps = append(steps, n.writeConfig, func() error { return pause(ctx, time.Duration(s.rng.IntN(100))*time.Millisecond) })
	}
	return inTurn(append(steps, func() error { return s.takePart(ctx, nodes...) }, func() error { return s.sees(ctx, len(nodes) > 0) })...)
}

func edgeToggle(ctx context.Context, s *edgeStage) (string, error) {
	n := s.scaled(10)
	rest := func() error { return pause(ctx, 300*time.Millisecond) }
	on, off := func() error { return s.turn(ctx, edgeOn) }, func() error { return s.turn(ctx, edgeOff) }
	if err := on(); err != nil {
		return "", err
	}
	err := s.with(ctx, s.Connections/5, true, func() error {
		var steps []func() error
		for range n {
			steps = append(steps, rest, off, rest, on)
		}
		return inTurn(steps...)
	})
	return fmt.Sprintf("%d times off and on", n), err
}

// RunEdge runs the scenarios of the edge, one after the other, and returns their results. A scenario that could not run to its end is also wrong. It uses the
// fields Source, Programs, Release, Dir, Scenarios, Connections, Scale, Seed, WithoutGaps and Log of the options. Without a Release, scenarios that need one are
// left out.
func RunEdge(ctx context.Context, o Options) ([]Result, error) {
	if _, err := o.fill(); err != nil {
		return nil, err
	}
	b := newBuilder(&o)
	for _, name := range o.Scenarios {
		i := slices.Index(EdgeNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q, only %s", name, strings.Join(EdgeNames(), ", "))
		}
		if edgeScenarios[i].release && o.Release == "" {
			return nil, fmt.Errorf("scenario %q needs the program of a release: run make proof-edge", name)
		}
	}
	var results []Result
	for i := range edgeScenarios {
		st := &edgeScenarios[i]
		if len(o.Scenarios) > 0 && !slices.Contains(o.Scenarios, st.name) || st.release && o.Release == "" {
			continue
		}
		r, err := runEdgeScenario(ctx, &o, b, st, nil)
		for runs := 1; err == nil && r.Busy && runs < maxRuns; runs++ {
			fmt.Fprintf(o.Log, "%v\n  run again\n", r)
			if r, err = runEdgeScenario(ctx, &o, b, st, nil); err == nil {
				r.Happened += fmt.Sprintf("; run again, as the machine had been too busy for a judgement %d times", runs)
			}
		}
		if ctx.Err() != nil {
			return results, fmt.Errorf("scenario %q: %w", st.name, err)
		}
		if err != nil { // the others still learn of it
			if r == nil {
				r = &Result{Scenario: st.name, Report: &loadcheck.Report{}}
			}
			r.Happened, r.Wrong = "not run to its end", append([]string{err.Error()}, r.Wrong...)
		}
		results = append(results, *r)
		fmt.Fprintln(o.Log, r)
	}
	return results, nil
}

// runEdgeScenario runs one scenario, with a mutant unless that is nil. With an error there may be a result, of the counts until then.
func runEdgeScenario(ctx context.Context, o *Options, b *builder, st *edgeScenario, mutant *variant) (result *Result, err error) {
	head, err := b.program(mutant)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, strings.ReplaceAll(st.name, " ", "-")+"-")
	if err != nil {
		return nil, err
	}
	program := head
	if st.release {
		program = o.Release
	}
	l, err := newEdgeLab(dir, program, o.Seed, st.endpoints...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	s := &edgeStage{edgeLab: l, Options: o, head: head}
	if err := l.send(); err != nil {
		return nil, err
	}
	for _, name := range edgeNames {
		l.nodes[name].edge = st.edge
		if err := l.start(name); err != nil {
			return nil, err
		}
	}
	if err := l.settle(ctx); err != nil {
		return nil, err
	}
	if st.own {
		if err := inTurn(func() error { return l.takePart(ctx, edgeNames...) }, func() error { return l.sees(ctx, true) }); err != nil {
			return nil, err
		}
	}
	for _, name := range edgeNames {
		_ = l.hosts[name].TrackTimes() // where the kernel can, explanations have them
	}
	before, err := readProcessors()
	if err != nil {
		return nil, err
	}
	counter := loadcheck.Start(loadcheck.Options{
		Streams: l.allLoad(o.Connections, st.own), Receipts: &l.receipts, Explain: l.explain, Timeout: o.timeout, EstablishedTimeout: o.timeout, CutTimeout: o.timeout,
	})
	time.Sleep(edgeBegun)
	var happened string
	err = asOthers(func() (err error) {
		if happened, err = st.run(ctx, s); err == nil {
			err = pause(ctx, time.Second)
		}
		return err
	})
	report, loadErr := counter.Stop()
	after, statErr := readProcessors()
	for _, r := range s.more {
		report.Connections, report.Requests, report.Own = report.Connections+r.Connections, report.Requests+r.Requests, report.Own+r.Own
		report.Lost, report.Reset, report.WrongEndpoint = report.Lost+r.Lost, report.Reset+r.Reset, report.WrongEndpoint+r.WrongEndpoint
		report.Faults = append(report.Faults, r.Faults...)
	}
	result = &Result{
		Scenario: st.name, Happened: happened, Allowed: st.newGap, AllowedEcho: st.gap, MayFail: st.mayFail, Outage: s.outage, AllowedOutage: edgeOutage, Report: report, Slowest: l.slowest, AllowedChange: usualChange,
		AllowedExcuse: edgeExcused, CPUSteal: after.stealSince(before), Wrong: s.wrong,
	}
	result.judgeEdge(o.WithoutGaps)
	return result, errors.Join(err, loadErr, statErr, l.failure())
}

// judgeEdge adds to the mistakes found so far.
func (r *Result) judgeEdge(withoutGaps bool) {
	r.judgeCounts()
	if withoutGaps {
		r.Busy = len(r.Wrong) > 0 && r.Report.Control.Bad() > 0
		return
	}
	r.wrongIf(r.Report.New.Ours > r.Allowed, "a gap of %v in new connections is more than %v", r.Report.New.Ours, r.Allowed)
	r.wrongIf(r.Report.Established.Ours > r.AllowedEcho, "a gap of %v in open connections is more than %v", r.Report.Established.Ours, r.AllowedEcho)
	r.wrongIf(r.Outage > r.AllowedOutage, "open connections were not served for %v, more than %v", r.Outage, r.AllowedOutage)
	ours := len(r.Wrong)
	busy := "the machine is too busy for a judgement"
	r.wrongIf(r.Report.Control.Bad() > 0, "%d connections of the control went wrong: %s", r.Report.Control.Bad(), busy)
	for _, g := range []*loadcheck.Gap{&r.Report.New, &r.Report.Established} {
		r.wrongIf(r.excused(g) > r.AllowedExcuse, "for %.0f%% of the time a gap would have been excused: %s", 100*r.excused(g), busy)
	}
	r.Busy = ours == 0 && len(r.Wrong) > 0
}
