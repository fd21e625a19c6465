//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
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
	// Dataplane makes the dataplane of the calling thread's network namespace, which is that of the node under test in l. It must
	// be usable from any thread afterwards. Required.
	Dataplane func(l *topology.Lab) (Dataplane, error)
	// Relays says that the dataplane connects to endpoints of TCP and UDP itself, so that they see the node's address.
	Relays bool
	// Out gets the table. Required.
	Out io.Writer
	// Size returns the terminal's columns and rows; zeros mean that Out is no terminal. Required.
	Size func() (width, height int)
	// Colour allows colours.
	Colour bool
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

// Once runs the manifests, makes every call once and prints the table. It returns a [*SurpriseError] if anything was not as
// it must be, and the manifests' own errors if there are any.
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
		if err := v.report(o.Out, o.Format, errs); err != nil {
			return err
		}
		return v.verdict(errs)
	}
	width, _ := o.Size()
	v.wrapped = width > 0
	if width == 0 {
		width = defaultWidth
	}
	for _, line := range v.lines(palette{o.Colour}, width) {
		fmt.Fprintln(o.Out, line)
	}
	return v.verdict(errs)
}

// verdict is what [Once] returns.
func (v *view) verdict(errs []error) error {
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if list := v.surprises(); len(list) > 0 {
		return &SurpriseError{list}
	}
	return nil
}

// Live shows the table again and again until ctx ends, and follows the manifests.
func Live(ctx context.Context, o Options) error {
	scr := newScreen(o)
	defer scr.close()
	scr.progress("switchyard lab: reading " + o.Inputs.String())
	loaded := o.Inputs.Load()
	pods := minicluster.Pods(loaded.Objects)
	scr.progress("switchyard lab: starting " + count(pods, "pod"))
	s, err := newSession(ctx, o, pods)
	if err != nil {
		return err
	}
	defer s.close()
	var last []runtime.Object
	for ; ; loaded = o.Inputs.Load() {
		changed := last == nil || !reflect.DeepEqual(loaded.Objects, last)
		if changed {
			last = loaded.Objects
			s.problem = s.apply(ctx, loaded)
		}
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
		scr.show(v, changed)
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
	// inputs names what is run; followed is set if that may change.
	inputs   string
	followed bool
	results  []result
	services int
	pods     int
	revision state.Revision
	calls    int // connections
	took     time.Duration
	// hooked is how many connections were translated at their sockets; nil without hooks.
	hooked *uint64
	// names are what DNS answers for Services without a cluster IP.
	names    []string
	warnings []string
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
	lines := []string{
		p.bold("switchyard lab") + p.dim(fmt.Sprintf("  %s: %s, %s on two nodes; clients: a pod, the node, one outside",
			v.inputs, count(v.services, "service"), count(v.pods, "pod"))),
		"",
	}
	if len(v.results) > 0 {
		lines = append(append(lines, table{p, width}.lines(groups(v.results))...), "")
	}
	if len(v.names) > 0 {
		lines = append(lines, p.dim("  NAMES WITHOUT A CLUSTER IP"))
		for _, n := range v.names {
			lines = append(lines, "  "+n)
		}
		lines = append(lines, "")
	}
	for _, w := range v.warnings {
		lines = append(lines, v.wrap(p.warn, "! "+w, width)...)
	}
	for _, n := range v.notes {
		lines = append(lines, v.wrap(p.warn, "! "+n, width)...)
	}
	for _, text := range v.skipped {
		lines = append(lines, v.wrap(p.dim, "· "+text, width)...)
	}
	return append(lines, v.summary(p, width)...)
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
		return append(lines, p.warn("! there is no Service to connect to"))
	}
	if len(v.results) == 0 {
		return append(lines, p.warn("! there is no cluster IP to connect to"))
	}
	bad := 0
	for i := range v.results {
		bad += min(len(v.results[i].surprises), 1)
	}
	if bad > 0 {
		return append(lines, p.bad(fmt.Sprintf("✗ %d of %d paths are not as they must be", bad, len(v.results))))
	}
	return append(lines, p.good("✓")+fmt.Sprintf(" all %d paths are as they must be (%s in %.1fs%s)", len(v.results), count(v.calls, "connection"), v.took.Seconds(), v.byHooks()))
}

// byHooks returns what hooks at sockets did in the round.
func (v *view) byHooks() string {
	if v.hooked == nil {
		return ""
	}
	return fmt.Sprintf(", %d of them translated at sockets", *v.hooked)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
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
