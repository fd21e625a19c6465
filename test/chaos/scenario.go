//go:build linux

package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Options are the settings of [Run].
type Options struct {
	// Source is the root of this repository, from which the programs are built. Required, unless there is a Subject.
	Source string
	// Programs is a directory with programs that [Build] has built, for machines that cannot build them. Default: they are built from Source.
	Programs string
	// Release is the program of a release, for the scenarios that go from it to the program of Source and back. Default: none, and these
	// scenarios are left out.
	Release string
	// Dir is for programs, logs and sockets. Required.
	Dir string
	// Subject makes the proxy under test, before it is started. Default: Switchyard.
	Subject func(l *topology.Lab, dir string) (Subject, error)
	// Dataplane is the dataplane of Switchyard, one of [Dataplanes]. Default: nftables.
	Dataplane string
	// Scenarios are the names of those to run. Default: all that the subject can take part in.
	Scenarios []string
	// Scale multiplies how much happens in each scenario. Default: 1, which has a thousand kills and minutes of changes.
	Scale float64
	// Rate is the number of new connections a second. Default: 1200, which leave half of two processors to the program
	// under test, or fewer where the dataplane needs more of a processor. The load has the highest priority.
	Rate int
	// Connections is how many are open all the time in the scenarios of the edge. Default: 1000.
	Connections int
	// Seed is the seed of random choices. Default: 1.
	Seed uint64
	// CountsOnly has nothing judged but the outcome of connections: for machines that are too slow for gaps to tell anything.
	CountsOnly bool
	// WithoutGaps has only the outcome of connections judged, with the usual timeouts. A scenario is run again if the control also failed.
	WithoutGaps bool
	// Log gets a line for each scenario, and the failures. Required.
	Log io.Writer
	// timeout is how long a connection or a datagram may take, on a machine that may be busy with other tests. Default: the strict
	// ones of flowcount and of the scenario.
	timeout time.Duration
}

// Result is the outcome of a scenario.
type Result struct {
	Scenario string
	// The events, in words.
	Happened string
	// Allowed is the longest gap that new connections may have, and AllowedEcho the one of requests on open connections.
	Allowed, AllowedEcho time.Duration
	// MayFail reports that connections could not succeed at times: somebody else had taken the proxy's work away, or had killed a process that
	// carries them.
	MayFail bool
	// Report counts the connections.
	Report *loadcheck.Report
	// Outage is the longest time in which open connections were not served, and AllowedOutage how long it may be. Only scenarios of the edge have it.
	Outage, AllowedOutage time.Duration
	// Slowest is the longest time until the proxy had taken over a change, including the time when it did not run.
	// AllowedChange is how long it may take.
	Slowest, AllowedChange time.Duration
	// AllowedExcuse is the largest share of the time in which gaps may be excused.
	AllowedExcuse float64
	// CPUSteal is the share of the processors' time that the machine under this one gave to others.
	CPUSteal float64
	// Wrong lists what must not be, empty if all is well.
	Wrong []string
	// Trouble is what the hosts have counted if connections were lost: packets that were dropped or sent again.
	Trouble []string
	// Busy reports whether nothing is wrong but that the machine was too busy for a judgement.
	Busy bool
}

// scenario is one kind of fault.
type scenario struct {
	name string
	// about describes what happens, for readers.
	about string
	// feed makes the feed through which Switchyard learns of the cluster, with the program that Switchyard starts with. variant is the build that it starts with,
	// nil for the usual build. role is the dataplane's build for a role.
	feed    func(dir, program string, node *topology.Host, d *dataplane) (feed, error)
	variant *variant
	role    role
	// switches is set if the dataplane changes.
	switches bool
	// uses are other builds that it needs.
	uses []role
	// modes are the modes of the dataplanes that it is for, empty for all.
	modes []string
	// foreign reports that other proxies can take part.
	foreign bool
	// release reports that it begins with the program of [Options].Release.
	release bool
	// slowest is how long a change may take to arrive. Default: usualChange.
	slowest time.Duration
	// background is the number of services in addition to the services of the load.
	background int
	// slack is how long after the mark other services may change.
	slack time.Duration
	// cutTimeout is how long flows of datagrams may be left uncut. Default: defaultCut.
	cutTimeout time.Duration
	// run injects the faults and returns what happened.
	run func(ctx context.Context, s *stage) (string, error)
}

// usualGap is the longest gap that new connections may have, and repairGap the longest one after somebody has deleted all rules. A relay
// waits for processors, as any process does, and its connections pause during a hand-over. iptables checks its tables for foreign changes
// 20 times a second, and programs write them. With some hundred services, they need a second or more of processor time at a start and after
// rules are deleted. The load has priority over them. Flows are deleted when they have finished.
const (
	usualGap   = 5 * time.Millisecond
	relayGap   = 100 * time.Millisecond
	relayEcho  = 500 * time.Millisecond
	repairGap  = 200 * time.Millisecond
	toolRepair = 3 * time.Second
	toolChange = 30 * time.Second
	toolCut    = 4 * time.Second
	toolSlack  = 5 * time.Second
	// switchRate is the greatest number of new connections a second where a relay may have to carry them.
	switchRate = 400
)

// lateCut is how long stale flows of datagrams may remain after half a minute of load, when two changes in a row make flows stale. The
// kernel's table then has some 50,000 flows, most of them of connections that have ended. A look at them takes 0.3 s of a processor on
// which the load has priority, and the pause after it three times as long. A flow that becomes stale during a look waits for its end, for
// the pause, and for the next look. With a quarter of a processor, this takes 3.3 s.
const lateCut = 5 * time.Second

const (
	// echoGap is the longest gap that requests on open connections may have. It is less than the time after which TCP sends something
	// again, so that a single lost packet is noticed.
	echoGap = 100 * time.Millisecond
	// slowAnswer is how long answers may take on a machine that is too slow for gaps to tell anything. A datagram that is lost is noticed all the same.
	slowAnswer = 20 * time.Second
	// slowCut is how long flows of datagrams may be left uncut there, where that takes no time elsewhere.
	slowCut = 5 * time.Second
	// defaultCut is how long they may elsewhere, unless more is allowed.
	defaultCut = time.Second
	// usualAnswer is how long the mark may take to answer.
	usualAnswer = 200 * time.Millisecond
	// usualChange is the longest that a proxy may take to take over a change.
	usualChange = 10 * time.Second
	// noise is the longest gap of the control, without what processors had stood still, with which gaps of the proxy can be distinguished.
	noise = 20 * time.Millisecond
	// mostExcused is the largest share of the time in which nothing may be seen of the proxy, as the machine itself stood still.
	mostExcused = 0.2
	// leastStrict is the least share of new connections that must have been judged by a single state of the cluster.
	leastStrict = 0.05
	// maxRuns is how often a scenario runs until there is a judgement.
	maxRuns = 3
)

// stage is where a scenario runs.
type stage struct {
	*cluster
	*Options
	kind    *kind
	builder *builder
	// head is the build of this version: with a mutant's bug, or nil for the usual one.
	head *variant
	dir  string
	// allowed is the longest gap for new connections.
	allowed time.Duration
	// cutShows is how long after a change it shows whether flows of datagrams were cut.
	cutShows time.Duration
	// mayFail reports that connections cannot succeed at times.
	mayFail bool
	// wrong lists what must not be and shows in no count.
	wrong []string
	// compares is set if new connections of clients of a hash must have been compared.
	compares bool
	// outlasted is how often a process that carried connections had nobody to hand them over to when it ended.
	outlasted int
}

// scaled returns how often something is to happen, at least once.
func (s *stage) scaled(n int) int { return max(1, int(float64(n)*s.Scale)) }

// Run runs scenarios, one after the other, and returns their results. A scenario that could not run to its end is
// also wrong.
func Run(ctx context.Context, o Options) ([]Result, error) {
	k, err := o.fill()
	if err != nil {
		return nil, err
	}
	b := newBuilder(&o)
	var results []Result
	for _, name := range o.Scenarios {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q, only %s", name, strings.Join(Names(), ", "))
		}
		if scenarios[i].release && o.Release == "" {
			return nil, fmt.Errorf("scenario %q needs the program of a release: run make upgrade-grid", name)
		}
	}
	for i := range scenarios {
		s := &scenarios[i]
		if len(o.Scenarios) > 0 && !slices.Contains(o.Scenarios, s.name) || o.Subject != nil && !s.foreign || !s.fits(&o, k) {
			continue
		}
		r, err := runScenario(ctx, &o, b, s, nil)
		for runs := 1; err == nil && r.Busy && runs < maxRuns; runs++ {
			fmt.Fprintf(o.Log, "%v\n  run again\n", r)
			if r, err = runScenario(ctx, &o, b, s, nil); err == nil {
				r.Happened += fmt.Sprintf("; run again, as the machine had been too busy for a judgement %d times", runs)
			}
		}
		if ctx.Err() != nil {
			return results, fmt.Errorf("scenario %q: %w", s.name, err)
		}
		if err != nil { // the others still learn of it
			if r == nil {
				r = &Result{Scenario: s.name, Report: &loadcheck.Report{}}
			}
			r.Happened, r.Wrong = "not run to its end", append([]string{err.Error()}, r.Wrong...)
		}
		results = append(results, *r)
		fmt.Fprintln(o.Log, r)
	}
	return results, nil
}

// fill fills in defaults, and returns the dataplane.
func (o *Options) fill() (*kind, error) {
	o.Dataplane = cmp.Or(o.Dataplane, "nftables")
	k, err := o.kind()
	if err != nil {
		return nil, err
	}
	o.Scale = cmp.Or(o.Scale, 1)
	o.Rate = cmp.Or(o.Rate, k.rate)
	o.Seed = cmp.Or(o.Seed, 1)
	o.Connections = cmp.Or(o.Connections, 1000)
	return k, nil
}

// RateOf returns the number of new connections a second that are made with these options.
func RateOf(o Options) int {
	_, _ = o.fill() // an unknown dataplane has no rate
	return o.Rate
}

// fits reports whether a scenario can be run with these options, and with a dataplane.
func (st *scenario) fits(o *Options, k *kind) bool {
	if st.release && o.Release == "" {
		return false
	}
	for _, r := range slices.Concat(st.uses, []role{st.role}) {
		if r != "" && k.builds[r] == nil {
			return false
		}
	}
	return len(st.modes) == 0 || slices.Contains(st.modes, k.mode)
}

// starting is the build that a scenario starts with, nil for the usual.
func (st *scenario) starting(k *kind) *variant {
	if st.role != "" {
		return k.builds[st.role]
	}
	return st.variant
}

// Names lists all scenarios.
func Names() []string {
	var names []string
	for i := range scenarios {
		names = append(names, scenarios[i].name)
	}
	return names
}

// Mutant is the outcome of a scenario with a Switchyard into which a bug was injected.
type Mutant struct {
	Bug string
	// Noticed reports whether the outcome of the bug was counted.
	Noticed bool
	Result  Result
}

// Build builds the programs that scenarios start, in o.Dir, for [Options].Programs.
func Build(o Options) error {
	k, err := o.fill()
	if err != nil {
		return err
	}
	b := newBuilder(&o)
	for i := range scenarios {
		st := &scenarios[i]
		if len(o.Scenarios) > 0 && !slices.Contains(o.Scenarios, st.name) || !st.fits(&o, k) {
			continue
		}
		for _, v := range st.builds(k, nil) {
			if _, err := b.program(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// BuildMutants builds the programs that [RunMutants] starts, as Build does.
func BuildMutants(o Options) error {
	k, err := o.fill()
	if err != nil {
		return err
	}
	b := newBuilder(&o)
	for _, p := range mutants {
		if !slices.Contains(p.modes, k.mode) || len(o.Scenarios) > 0 && !slices.Contains(o.Scenarios, p.scenario) {
			continue
		}
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == p.scenario })
		if !scenarios[i].fits(&o, k) {
			continue
		}
		for _, v := range scenarios[i].builds(k, p.variant) {
			if _, err := b.program(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// builds are the builds that a scenario starts, with a mutant unless that is nil.
func (st *scenario) builds(k *kind, mutant *variant) []*variant {
	list := []*variant{nil, cmp.Or(mutant, st.starting(k))}
	for _, r := range st.uses {
		list = append(list, k.builds[r])
	}
	return list
}

// RunMutants runs scenarios that must notice a bug, each with a Switchyard that has the bug. If [Options].Scenarios is set, it runs only
// those scenarios.
func RunMutants(ctx context.Context, o Options) ([]Mutant, error) {
	k, err := o.fill()
	if err != nil {
		return nil, err
	}
	b := newBuilder(&o)
	var list []Mutant
	for _, p := range mutants {
		if !slices.Contains(p.modes, k.mode) || len(o.Scenarios) > 0 && !slices.Contains(o.Scenarios, p.scenario) {
			continue
		}
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == p.scenario })
		if !scenarios[i].fits(&o, k) {
			continue
		}
		r, err := runScenario(ctx, &o, b, &scenarios[i], p.variant)
		if err != nil {
			return list, fmt.Errorf("scenario %q with a Switchyard that %s: %w", p.scenario, p.variant.what, err)
		}
		noticed := p.noticed(k, r) && r.Report.Control.Bad() == 0
		list = append(list, Mutant{Bug: p.variant.what, Noticed: noticed, Result: *r})
		fmt.Fprintf(o.Log, "mutant: %s; noticed: %v\n%v\n", p.variant.what, noticed, r)
	}
	return list, nil
}

// runScenario runs one scenario, with a mutant unless that is nil. With an error there may be a result, of the counts
// until then.
func runScenario(ctx context.Context, o *Options, b *builder, st *scenario, mutant *variant) (result *Result, err error) {
	k, err := o.kind()
	if err != nil {
		return nil, err
	}
	rate := o.Rate
	if st.switches {
		k, rate = k.switching(), min(rate, switchRate)
	}
	v := cmp.Or(mutant, st.starting(k))
	if o.Subject == nil { // before there is a load that has to share the processors
		for _, v := range st.builds(k, mutant) {
			if _, err := b.program(v); err != nil {
				return nil, err
			}
		}
	}
	dir, err := os.MkdirTemp(o.Dir, strings.ReplaceAll(st.name, " ", "-")+"-")
	if err != nil {
		return nil, err
	}
	l, err := topology.New(ctx, topology.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	c, err := newCluster(l, o.Seed)
	if err != nil {
		return nil, err
	}
	if o.Subject == nil { // others may get each object by a request of its own, which takes too long
		c.background = st.background
	}
	c.slack, c.rest, c.answer = st.slack, k.rest, usualAnswer
	if st.slack > 0 {
		c.slack = max(st.slack, k.slack)
	}
	if o.CountsOnly {
		c.answer, c.slack = 10*usualAnswer, max(10*st.slack, c.slack)
	}
	if c.subject, err = newSubject(o, b, st, k, v, c, dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.subject.Close()) }()
	s := &stage{cluster: c, Options: o, kind: k, builder: b, head: mutant, dir: dir, allowed: k.gap}
	if err := c.sendState(); err != nil {
		return nil, err
	}
	if err := c.subject.Start(); err != nil {
		return nil, err
	}
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	before, err := readProcessors()
	if err != nil {
		return nil, err
	}
	timeouts := loadcheck.Options{Timeout: o.timeout, CutTimeout: cmp.Or(o.timeout, max(st.cutTimeout, k.cut, defaultCut))}
	if o.CountsOnly {
		timeouts = loadcheck.Options{Timeout: slowAnswer, EstablishedTimeout: slowAnswer, CutTimeout: max(slowCut, 2*k.cut)}
	}
	s.cutShows = timeouts.CutTimeout + flowPause(rate) + cutNoticed
	timeouts.Receipts, timeouts.Explain = &c.receipts, c.explain
	_ = l.Node().TrackTimes() // where the kernel can, explanations have them
	trouble := l.Trouble()
	counter := c.startLoad(rate, timeouts)
	time.Sleep(time.Second)
	var happened string
	err = asOthers(func() (err error) {
		if happened, err = st.run(ctx, s); err == nil {
			err = c.change(ctx) // in any case, a change must arrive afterwards
		}
		return err
	})
	report, loadErr := counter.Stop()
	after, statErr := readProcessors()
	if o.Subject == nil && k.carries {
		var handedOver string
		handedOver, statErr = s.handedOver(report, statErr)
		happened += "; " + handedOver
	}
	if s.compares {
		happened += fmt.Sprintf("; %d new connections had to have the endpoint to which a hash had led their client before", report.Hashed)
		if report.Hashed == 0 {
			s.wrong = append(s.wrong, "no connections of a client of a hash were compared")
		}
	}
	result = &Result{
		Scenario: st.name, Happened: happened, Allowed: s.allowed + c.outage, AllowedEcho: k.echo, MayFail: s.mayFail || c.outage > 0, Report: report,
		Slowest: c.slowest, AllowedChange: max(st.slowest, k.change), AllowedExcuse: k.excused,
		CPUSteal: after.stealSince(before), Wrong: s.wrong,
	}
	if report.Lost > 0 {
		result.Trouble = l.Trouble().Since(trouble)
	}
	switch {
	case o.CountsOnly:
		result.judgeCounts()
	case o.WithoutGaps:
		result.judgeCounts()
		result.Busy = len(result.Wrong) > 0 && report.Control.Bad() > 0
	default:
		result.judge()
	}
	return result, errors.Join(err, loadErr, statErr, c.subject.Failure())
}

func newSubject(o *Options, b *builder, st *scenario, k *kind, v *variant, c *cluster, dir string) (Subject, error) {
	if o.Subject != nil {
		return o.Subject(c.lab, dir)
	}
	program, err := b.program(v)
	if err != nil {
		return nil, err
	}
	if st.release {
		program = o.Release
	}
	d, err := newDataplane(k, dir, c.lab)
	if err != nil {
		return nil, err
	}
	f, err := st.feed(dir, program, c.lab.Node(), d)
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	s := newSwitchyard(c.lab, dir, program, f, d)
	s.ledger = &c.ledger
	return s, nil
}

var (
	takenOver = regexp.MustCompile(`took over connections and flows of the previous process.*connections\D+(\d+).*flows\D+(\d+)`)
)

const (
	notTaken  = "connections of the previous process are not taken over"
	notHanded = "what is still open ends with this process"
)

// handedOver describes what became of connections that processes carried when they ended.
func (s *stage) handedOver(r *loadcheck.Report, err error) (string, error) {
	log, readErr := os.ReadFile(s.subject.(*switchyard).log)
	conns, flows, times := 0, 0, 0
	for _, m := range takenOver.FindAllSubmatch(log, -1) {
		c, _ := strconv.Atoi(string(m[1]))
		f, _ := strconv.Atoi(string(m[2]))
		conns, flows, times = conns+c, flows+f, times+1
	}
	for text, allowed := range map[string]int{notTaken: 0, notHanded: s.outlasted} {
		if n := strings.Count(string(log), text); n > allowed {
			s.wrong = append(s.wrong, fmt.Sprintf("%d times in the log: %s", n, text))
		}
	}
	return fmt.Sprintf("%d connections and %d flows were handed over in %d restarts. %d ended with killed processes, %d clients and flows that a process could not know moved",
		conns, flows, times, r.Broken, r.Moved), errors.Join(err, readErr)
}

// wrongIf notes what must not be.
func (r *Result) wrongIf(is bool, format string, args ...any) {
	if is {
		r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...))
	}
}

// judgeCounts finds what must not be in the counts.
func (r *Result) judgeCounts() {
	c := &r.Report.Counts
	r.wrongIf(c.Lost > 0, "%d connections or requests were lost", c.Lost)
	r.wrongIf(c.Reset > 0, "%d connections or requests were reset", c.Reset)
	r.wrongIf(c.WrongEndpoint > 0, "%d connections or requests were sent to a wrong endpoint", c.WrongEndpoint)
	r.wrongIf(c.ExpectedFailures > 0 && !r.MayFail, "%d connections or requests failed as if they had to", c.ExpectedFailures)
	r.wrongIf(c.Connections == 0 || c.Strict == 0, "%d connections show nothing, %d of them while a single state counted", c.Connections, c.Strict)
}

// judge adds to the mistakes found so far.
func (r *Result) judge() {
	c, control, wrong := &r.Report.Counts, &r.Report.Control, r.wrongIf
	r.judgeCounts()
	wrong(r.Report.New.Ours > r.Allowed, "a gap of %v in new connections is more than %v", r.Report.New.Ours, r.Allowed)
	wrong(r.Report.Established.Ours > r.AllowedEcho && !r.MayFail, "a gap of %v in open connections is more than %v", r.Report.Established.Ours, r.AllowedEcho)
	wrong(r.Slowest > r.AllowedChange, "a change took %v, more than %v", r.Slowest, r.AllowedChange)
	wrong(r.strict() < leastStrict, "%.0f%% of the new connections were judged by a single state of the cluster, which shows too little", 100*r.strict())
	ours := len(r.Wrong)
	busy := "the machine is too busy for a judgement"
	wrong(control.Bad() > 0, "%d connections of the control went wrong: %s", control.Bad(), busy)
	wrong(c.Skipped+control.Skipped > 0, "%d connections were not made in time: %s", c.Skipped+control.Skipped, busy)
	wrong(r.Report.New.Unexplained > noise, "the control had a gap of %v, more than %v: %s", r.Report.New.Unexplained, noise, busy)
	wrong(r.Report.Established.Unexplained > echoGap, "the control had a gap of %v in open connections: %s", r.Report.Established.Unexplained, busy)
	for _, g := range []*loadcheck.Gap{&r.Report.New, &r.Report.Established} {
		wrong(r.excused(g) > r.AllowedExcuse, "for %.0f%% of the time a gap would have been excused, while %.0f%% of the processors was steal: %s",
			100*r.excused(g), 100*r.CPUSteal, busy)
	}
	r.Busy = ours == 0 && len(r.Wrong) > 0
}

// String is a line about the counts, with one for each thing that is wrong.
func (r *Result) String() string {
	c, n := &r.Report.Counts, &r.Report.New
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s; %d connections, %d requests in %v; lost %d, reset %d, wrong endpoint %d; ended %d, expected failures %d; one state judged %d\n",
		r.Scenario, r.Happened, c.Connections, c.Requests, r.Report.Took.Round(time.Second), c.Lost, c.Reset, c.WrongEndpoint, c.Ended, c.ExpectedFailures, c.Strict)
	fmt.Fprintf(&text, "  longest gap: new %v, ours %v (control %v); established %v, ours %v (control %v)\n",
		round(n.Longest), round(n.Ours), round(n.Control),
		round(r.Report.Established.Longest), round(r.Report.Established.Ours), round(r.Report.Established.Control))
	fmt.Fprintf(&text, "  longer than %v: %d of new (control %d of %d); longest stall of a processor %v; excused %.1f%% of the time (%.1f%% for open ones); "+
		"CPU steal %.1f%%; slowest change %v", loadcheck.Slow, n.Slow, n.ControlSlow, r.Report.Control.Connections, round(n.Stall),
		100*r.excused(n), 100*r.excused(&r.Report.Established), 100*r.CPUSteal, round(r.Slowest))
	for _, w := range r.Wrong {
		fmt.Fprintf(&text, "\n  WRONG: %s", w)
	}
	if len(r.Wrong) > 0 {
		for _, f := range r.Report.Faults {
			fmt.Fprintf(&text, "\n    %s", f)
		}
		for _, t := range r.Trouble {
			fmt.Fprintf(&text, "\n    counted by %s", t)
		}
		fmt.Fprintf(&text, "\n    the gap was at %v, %s", r.Report.New.At.Round(time.Millisecond), n.Stream)
	}
	return text.String()
}

// excused is the share of the time that can be subtracted from gaps.
func (r *Result) excused(g *loadcheck.Gap) float64 {
	return g.Excused.Seconds() / max(r.Report.Took.Seconds(), 1e-9)
}

// strict is the share of new connections that were judged by a single state of the cluster.
func (r *Result) strict() float64 {
	return float64(r.Report.Strict) / float64(max(r.Report.Connections, 1))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// fromFiles, fromStore, fromServers and fromAPIServer are the ways in which Switchyard learns of a cluster.
func fromFiles(dir, _ string, node *topology.Host, d *dataplane) (feed, error) {
	return newFileFeed(dir, node.Name, d)
}

func fromStore(dir, _ string, node *topology.Host, d *dataplane) (feed, error) {
	return newStoreFeed(dir, node.Name, d)
}

func fromServers(dir, program string, node *topology.Host, d *dataplane) (feed, error) {
	return newServersFeed(dir, program, node, d)
}

func fromAPIServer(dir, _ string, node *topology.Host, d *dataplane) (feed, error) {
	return newKubeFeed(dir, node, d)
}

// use makes the subject's next start one of the dataplane's builds, an empty role being the usual one.
func (s *stage) use(r role) error {
	program, err := s.builder.program(s.kind.builds[r])
	if err == nil {
		s.subject.(*switchyard).program = program
	}
	return err
}

// kube returns the API server and configuration of a Switchyard that follows them.
func (s *stage) kube() *kubeFeed { return s.subject.(*switchyard).feed.(*kubeFeed) }

// pause waits, or returns earlier with an error if ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// countLogged counts how often a text is in the log of Switchyard.
func (s *stage) countLogged(text string) (int, error) {
	log, err := os.ReadFile(s.subject.(*switchyard).log)
	return strings.Count(string(log), text), err
}

// awaitLogged waits until a text is in the log so many times.
func (s *stage) awaitLogged(ctx context.Context, text string, times int) error {
	for began := time.Now(); time.Since(began) < changeTimeout; {
		n, err := s.countLogged(text)
		if err != nil || n >= times {
			return err
		}
		if err := errors.Join(pause(ctx, 10*time.Millisecond), s.subject.Failure()); err != nil {
			return err
		}
	}
	return fmt.Errorf("switchyard has not logged %q %d times after %v", text, times, changeTimeout)
}
