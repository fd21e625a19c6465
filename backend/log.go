package backend

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// The levels of lines about changes are verbosities 2 and 4 of Kubernetes.
const (
	levelChange  = slog.Level(-2)
	levelService = slog.Level(-4)
)

const (
	// maxNamed is how many services a line names, and how many addresses of each kind.
	maxNamed = 8
	// maxServiceLines is how many lines about single services one change has.
	maxServiceLines = 100
)

// before returns the records that the dataplane holds of the services of an update. In a full update, these are all services.
func (r *runner) before(u *state.Update) map[state.ServiceName]*state.Service {
	if r.OnAttempt == nil && !r.Logger.Enabled(context.Background(), levelChange) {
		return nil // the records are for these two
	}
	if u.Full {
		return r.held.records // which the update replaces, see [held.note]
	}
	records := make(map[state.ServiceName]*state.Service, len(u.Changed)+len(u.Removed))
	add := func(name state.ServiceName) {
		if s := r.held.records[name]; s != nil {
			records[name] = s
		}
	}
	for _, s := range u.Changed {
		add(s.Name)
	}
	for _, name := range u.Removed {
		add(name)
	}
	return records
}

// changeLog counts the changes of one update.
type changeLog struct {
	verbose                          bool // lines about single services are wanted
	changed, removed                 int
	endpointsAdded, endpointsRemoved int
	names                            []string
	lines                            [][]any
}

// logApplied logs what an update has changed. The dataplane held the records before it. Nothing is computed unless the line is wanted.
func (r *runner) logApplied(a *Attempt) {
	ctx, u := context.Background(), a.Update
	if !r.Logger.Enabled(ctx, levelChange) {
		return
	}
	l := changeLog{verbose: r.Logger.Enabled(ctx, levelService)}
	for _, s := range u.Changed {
		if a.Failed[s.Name] == nil {
			l.add(s.Name, a.Before[s.Name], s)
		}
	}
	gone := u.Gone(maps.Keys(a.Before))
	if u.Full {
		slices.SortFunc(gone, state.ServiceName.Compare)
	}
	for _, name := range gone {
		if a.Failed[name] == nil {
			l.add(name, a.Before[name], nil)
		}
	}
	r.Logger.Log(ctx, levelChange, "applied a change", "revision", u.Revision, "full", u.Full, "changed", l.changed, "removed", l.removed,
		"failed", len(a.Failed), "endpointsAdded", l.endpointsAdded, "endpointsRemoved", l.endpointsRemoved, "written", a.Written,
		"duration", a.Took, "services", l.names)
	for _, line := range l.lines {
		r.Logger.Log(ctx, levelService, "applied a change of a service", append(line, "revision", u.Revision)...)
	}
	if left := l.changed + l.removed - len(l.lines); l.verbose && left > 0 {
		r.Logger.Log(ctx, levelService, "leaving out further services of a change", "revision", u.Revision, "services", left)
	}
}

// add adds a service, of which either record may be nil.
func (l *changeLog) add(name state.ServiceName, before, after *state.Service) {
	c := state.ChangesOf(before, after)
	var what string
	switch {
	case before == nil && after == nil: // it never was there
		return
	case before == nil:
		what = "new"
		l.changed++
	case after == nil:
		what = "removed"
		l.removed++
	case c.IsEmpty():
		return
	default:
		what = "changed"
		l.changed++
	}
	l.endpointsAdded += len(c.Added)
	l.endpointsRemoved += len(c.Removed)
	if len(l.names) < maxNamed {
		l.names = append(l.names, name.String())
	}
	if !l.verbose || len(l.lines) == maxServiceLines {
		return
	}
	l.lines = append(l.lines, []any{
		"service", name.String(), "change", what, "endpointsAdded", len(c.Added), "endpointsRemoved", len(c.Removed),
		"added", firstOf(c.Added), "removed", firstOf(c.Removed), "others", c.Others,
	})
}

// firstOf returns the first addresses of a list, which does not stay in memory.
func firstOf(list []netip.Addr) []netip.Addr { return slices.Clone(list[:min(len(list), maxNamed)]) }
