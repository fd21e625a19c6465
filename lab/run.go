//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/plaintext"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/lab/minicluster"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Options report what to show, and where.
type Options struct {
	// Inputs is what to run. Required.
	Inputs *inputs.Set
	// Format is what [Once] prints: a table if it is empty, else one of [Formats].
	Format string
	// Strict makes [Once] return a [*FindingsError] if the manifests have faults or warnings.
	Strict bool
	// Dataplane makes the dataplane of the calling thread's network namespace, which is the namespace of the node
	// under test in l. It must be usable from any thread afterwards. Required.
	Dataplane func(l *topology.Lab) (Dataplane, error)
	// Edge has three nodes hand connections from outside over to each other, as Services ask for it by the annotation switchyard.net/edge. Dataplane must
	// know packets of the edge by EdgeMark, as nftables does. It needs what [EdgeAvailable] asks for.
	Edge bool
	// Relays says that the dataplane connects to endpoints of TCP and UDP itself, so that they see the node's address.
	Relays bool
	// Out gets the table. Required.
	Out io.Writer
	// Size returns the terminal's columns and rows; zeros mean that Out is no terminal. Required.
	Size func() (width, height int)
	// Colour allows colours.
	Colour bool
	// Page is where [Live] serves a page for browsers. It is closed at the end. Default: there is none.
	Page net.Listener
	// Mode is what the page calls the dataplane.
	Mode string
	// Logger gets what the pipeline logs. Default: nothing is logged.
	Logger *slog.Logger
}

// Dataplane is a backend that holds on to something.
type Dataplane interface {
	backend.Backend
	io.Closer
}

// withHooks is a dataplane with hooks at sockets.
type withHooks interface{ Status() ebpf.Status }

// SurpriseError reports whether something was not as the oracle expects.
type SurpriseError struct {
	// Surprises are sentences, each with the Service, the frontend and the client.
	Surprises []string
}

func (e *SurpriseError) Error() string {
	return fmt.Sprintf("%d surprises:\n  %s", len(e.Surprises), strings.Join(e.Surprises, "\n  "))
}

const (
	// defaultWidth is for output that goes to no terminal.
	defaultWidth = 120
	// pause is between two rounds of the live view.
	pause = time.Second
)

// Once runs the manifests, makes every call once and prints the table. It returns a [*SurpriseError] if any result was
// wrong, a [*FindingsError] according to Options.Strict, and the manifests' own errors if there are any.
func Once(ctx context.Context, o Options) error {
	loaded := o.Inputs.Load()
	errs := loaded.Errs
	if len(loaded.Objects) == 0 {
		return errors.Join(append(errs, nothing(o.Inputs, loaded))...)
	}
	s, err := newSession(ctx, o, minicluster.Pods(loaded.Objects))
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.apply(ctx, loaded); err != nil {
		errs = append(errs, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v := s.round(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	v.skipped = loaded.Notes
	if o.Format != "" {
		if err := v.report(o.Out, o.Format, errs, o.Strict); err != nil {
			return err
		}
		return v.verdict(errs, o.Strict)
	}
	width, _ := o.Size()
	v.wrapped = width > 0
	if width == 0 {
		width = defaultWidth
	}
	for _, line := range v.lines(palette{o.Colour}, width) {
		fmt.Fprintln(o.Out, line)
	}
	return v.verdict(errs, o.Strict)
}

// verdict is what [Once] returns.
func (v *view) verdict(errs []error, strict bool) error {
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if list := v.surprises(); len(list) > 0 {
		return &SurpriseError{list}
	}
	if text, worst := v.wrong(); strict && text != "" && worst != diagnosis.Remark {
		return &FindingsError{text}
	}
	return nil
}

// Live shows the table until ctx ends or somebody quits, and follows the manifests. Where Out is no terminal, it prints the table after
// each change. It returns the manifests' own errors if there are any at the beginning; later ones are a part of the table.
func Live(ctx context.Context, o Options) error {
	if width, _ := o.Size(); width > 0 {
		return onTerminal(ctx, o, time.After(quick))
	}
	return follow(ctx, o, func(message any, changed bool) {
		if m, ok := message.(viewMsg); ok && changed {
			fmt.Fprintln(o.Out, strings.Join(m.view.lines(palette{o.Colour}, defaultWidth), "\n"))
		}
	})
}

// quick is how long manifests are read before there is a screen. Errors that come at once need no screen. The shell
// would also take a terminal's answers to a program that has just ended for input.
const quick = 50 * time.Millisecond

// onTerminal shows the newest view in a program that people can use. It is on the screen while manifests are read, if that is not done when late fires.
func onTerminal(ctx context.Context, o Options, late <-chan time.Time) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	screen := &live{paint: palette{o.Colour}, started: "switchyard lab: reading " + o.Inputs.String()}
	screen.width, screen.height = o.Size()
	program := tea.NewProgram(screen, tea.WithContext(ctx), tea.WithOutput(o.Out), tea.WithoutSignalHandler())
	followed, begun := make(chan error, 1), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	go func() {
		followed <- follow(ctx, o, func(message any, _ bool) {
			begin()
			program.Send(message)
		})
		program.Quit()
	}()
	select {
	case err := <-followed:
		return err
	case <-begun:
	case <-late:
	}
	_, err := program.Run()
	stop()
	if failed := <-followed; failed != nil || stopped(err) {
		err = failed
	}
	for _, line := range screen.last() {
		fmt.Fprintln(o.Out, line)
	}
	return err
}

// follow runs the manifests, and hands out progress, how to explain a row, and a view of each round. changed is set if the manifests have
// changed since the view before.
func follow(ctx context.Context, o Options, show func(message any, changed bool)) error {
	progress := func(format string, args ...any) {
		show(progressMsg("switchyard lab: "+fmt.Sprintf(format, args...)), false)
	}
	loaded := o.Inputs.Load()
	if len(loaded.Errs) > 0 {
		return errors.Join(loaded.Errs...)
	}
	pods := minicluster.Pods(loaded.Objects)
	progress("making the nodes for %s", diagnosis.Count(pods, "pod"))
	s, err := newSession(ctx, o, pods)
	if err != nil {
		return err
	}
	defer s.close()
	s.stage.started = func(n, of int) { progress("%d of %s started", n, diagnosis.Count(of, "pod")) }
	show(explainMsg(s.explain), false)
	defer s.servePage(ctx)()
	var last []runtime.Object
	for ; ; loaded = o.Inputs.Load() {
		changed := last == nil || !reflect.DeepEqual(loaded.Objects, last)
		if changed {
			last = loaded.Objects
			s.problem = s.apply(ctx, loaded)
		}
		progress("connecting to %s", diagnosis.Count(len(s.cluster.Services), "Service"))
		v := s.round(ctx)
		if err := s.failed(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		v.problems, v.skipped = loaded.Errs, loaded.Notes
		if s.problem != nil {
			v.problems = append(v.problems, s.problem)
		}
		s.newest.Store(v.shown(s.servers))
		width, _ := o.Size()
		v.wrapped = width > 0
		show(viewMsg{v}, changed)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// nothing is the error of inputs without anything to run, nil if other errors say it.
func nothing(in *inputs.Set, l *inputs.Loaded) error {
	if len(l.Errs) > 0 {
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: there is nothing to run: no Service and no workload", in)
	for _, n := range l.Notes {
		text.WriteString("\n  " + n)
	}
	return errors.New(text.String())
}

// view is one round of calls.
type view struct {
	// inputs names the manifests; followed is set if they may change.
	inputs   string
	followed bool
	results  []result
	// page is the address of the page, empty if there is none.
	page     string
	services int
	pods     int
	revision state.Revision
	calls    int // connections
	took     time.Duration
	// hooked is how many connections were translated at their sockets; nil without hooks.
	hooked *uint64
	// handedOver is how many connections were handed over to other nodes; nil without the edge.
	handedOver *int
	// names are what DNS answers for Services without a cluster IP.
	names    []string
	findings []diagnosis.Finding
	problems []error
	notes    []string
	skipped  []string
	// wrapped breaks lines that are longer than the terminal is wide.
	wrapped bool
}

// surprises are all surprises, each with its Service, frontend and client.
func (v *view) surprises() []string {
	var list []string
	for i := range v.results {
		r := &v.results[i]
		for _, s := range r.surprises {
			list = append(list, fmt.Sprintf("%s: %s: %s", r.service.Name, r.place(), s))
		}
	}
	return list
}

// lines draws the whole view: the table, and the notes about it.
func (v *view) lines(p palette, width int) []string {
	lines := []string{v.title(p), ""}
	if len(v.results) > 0 {
		t := table{paint: p, width: width, wrap: func(paint func(string) string, text string) []string { return v.wrap(paint, text, width) }}
		lines = append(lines, t.lines(v.groups())...)
		lines = append(lines, "")
	}
	return clean(append(append(lines, v.notesBelow(p, width)...), v.summary(p, width)...))
}

// clean keeps what manifests say from controlling the terminal, and from making lines of their own.
func clean(lines []string) []string {
	for i, line := range lines {
		lines[i] = plaintext.Line(line)
	}
	return lines
}

// title says what runs, and where there is a page about it.
func (v *view) title(p palette) string {
	nodes := "two nodes"
	if v.handedOver != nil {
		nodes = "three nodes with the edge"
	}
	text := fmt.Sprintf("  %s: %s, %s on %s; clients: a pod, the node, one outside", v.inputs, diagnosis.Count(v.services, "service"), diagnosis.Count(v.pods, "pod"), nodes)
	if v.page != "" {
		text += "; page: " + v.page
	}
	return p.bold("switchyard lab") + p.dim(text)
}

// notesBelow are what stands between the table and the summary.
func (v *view) notesBelow(p palette, width int) []string {
	var lines []string
	if len(v.names) > 0 {
		lines = append(lines, p.dim("  NAMES WITHOUT A CLUSTER IP"))
		for _, n := range v.names {
			lines = append(lines, "  "+n)
		}
		lines = append(lines, "")
	}
	for _, f := range v.elsewhere() {
		paint, mark := p.mark(&f)
		lines = append(lines, v.wrap(paint, mark+sentenceOf(&f), width)...)
	}
	for _, n := range v.notes {
		lines = append(lines, v.wrap(p.warn, "! "+n, width)...)
	}
	for _, text := range v.skipped {
		lines = append(lines, v.wrap(p.dim, "· "+text, width)...)
	}
	return lines
}

// wrap breaks a line where it is longer than the terminal is wide, between words as far as it can.
func (v *view) wrap(paint func(string) string, text string, width int) []string {
	if !v.wrapped {
		return []string{paint(text)}
	}
	var lines []string
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		if line != "" && utf8.RuneCountInString(line+" "+word) > width {
			lines = append(lines, paint(line))
			line = " "
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, paint(line))
}

// summary is what the view comes to: the faults of the manifests, and how many paths are as they must be.
func (v *view) summary(p palette, width int) []string {
	var lines []string
	for _, e := range v.problems {
		for text := range strings.Lines(e.Error()) {
			lines = append(lines, v.wrap(p.bad, "✗ "+strings.TrimSuffix(text, "\n"), width)...)
		}
	}
	if len(v.results) == 0 && len(v.names) == 0 {
		return append(append(lines, p.warn("! there is no Service to connect to")), v.wrongLine(p)...)
	}
	if len(v.results) == 0 {
		return append(append(lines, p.warn("! there is no cluster IP to connect to")), v.wrongLine(p)...)
	}
	bad := 0
	for i := range v.results {
		bad += min(len(v.results[i].surprises), 1)
	}
	made := fmt.Sprintf(" (%s in %.1fs%s)", diagnosis.Count(v.calls, "connection"), v.took.Seconds(), v.byHooks()+v.byEdge())
	verdict := p.good("✓") + fmt.Sprintf(" all %d paths are as they must be", len(v.results)) + made
	if bad > 0 {
		verdict = p.bad(fmt.Sprintf("✗ %d of %d paths are not as they must be", bad, len(v.results))) + made
	}
	return append(append(lines, verdict), v.wrongLine(p)...)
}

// byHooks returns what hooks at sockets did in the round.
func (v *view) byHooks() string {
	if v.hooked == nil {
		return ""
	}
	return fmt.Sprintf(", %d of them translated at sockets", *v.hooked)
}

// byEdge returns what the edge did in the round.
func (v *view) byEdge() string {
	if v.handedOver == nil {
		return ""
	}
	return fmt.Sprintf(", %d of them handed over", *v.handedOver)
}

// sctpNote is the view's text on kernels without SCTP.
const sctpNote = "this kernel has no SCTP, so SCTP ports are left out; load it with: modprobe sctp"

func withoutSCTP(calls []call) (kept []call, note string) {
	if topology.HasSCTP() {
		return calls, ""
	}
	for _, c := range calls {
		if c.packet.Protocol != state.SCTP {
			kept = append(kept, c)
		}
	}
	if len(kept) < len(calls) {
		note = sctpNote
	}
	return kept, note
}
