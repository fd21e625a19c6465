package store

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// MaxNames limits the entries of the names of all services together, as [brain.NamesEntries] counts them. At 100 bytes
// each at most, they fit into an update together with the names that have been removed: clients accept updates of 256
// MiB.
const MaxNames = 2_400_000

// NamesOptions has the options of [Names].
type NamesOptions struct {
	// Limits bound the names.
	Limits NamesLimits
	// Logger gets the problems of services. Default: nothing is logged.
	Logger *slog.Logger
}

// NamesLimits bound the entries of names, as [brain.NamesEntries] counts them.
type NamesLimits struct {
	// PerService is for one service. 0 stands for the most that there can be, [brain.MaxNames].
	PerService int64
	// Budgets limit many services together, and are shared like the budgets of states. There is never more room than
	// [MaxNames].
	Budgets Budgets
}

// effective returns the limits that are in force.
func (l NamesLimits) effective() NamesLimits {
	l.PerService = min(cmp.Or(max(l.PerService, 0), brain.MaxNames), brain.MaxNames)
	l.Budgets.PerNode = min(cmp.Or(max(l.Budgets.PerNode, 0), MaxNames), MaxNames)
	return l
}

// Names turns objects into the names of all services, for DNS servers. It runs next to a [Store] or [Cluster] and takes
// the same objects. It costs nothing until names are requested. It implements [state.NamesFeed]. All methods may be
// called concurrently.
type Names struct {
	log *revlog.Log[namesOf, state.ServiceName]

	mu       sync.Mutex // guards all below
	intake   revlog.Intake
	objects  objects // services and slices only
	limits   NamesLimits
	ledger   ledger
	problems *problems
}

// namesOf are the names of all services.
type namesOf = revlog.Map[state.ServiceName, *state.Names]

var _ state.NamesFeed = (*Names)(nil)

// NewNames returns a feed that publishes nothing before it has a source and all its sources are complete.
func NewNames(o NamesOptions) *Names {
	log, limits := cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), o.Limits.effective()
	n := &Names{
		log:     revlog.NewLog[namesOf, state.ServiceName](namesOf{}, ErrClosed),
		objects: objectsOfAll(), limits: limits, ledger: newLedger(limits.Budgets), problems: newProblems(log, nil),
	}
	n.intake = revlog.Intake{Mutex: &n.mu, Update: n.update, Completed: n.publish, Logger: log}
	return n
}

// Reconfigure changes the limits. It publishes all differences as one revision.
func (n *Names) Reconfigure(l NamesLimits) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l = l.effective(); l == n.limits {
		return
	}
	n.limits = l
	n.ledger.reset(l.Budgets)
	for _, ns := range n.objects.namespaces {
		n.objects.markAll(ns)
	}
	n.publish()
}

// Problems lists why services have not all of their names, some of them if there are many. It does not wait for changes that are being
// taken in.
func (n *Names) Problems() []error { return n.problems.list() }

// Limited returns the number of services with problems, by reason. It does not wait for changes that are being taken in.
func (n *Names) Limited() map[Reason]int { return n.problems.limited() }

// Source registers a source and returns the sink that it delivers to, as [Store.Source] does.
func (n *Names) Source() model.Sink { return n.intake.Source("names") }

// update takes in objects of a source. The caller holds mu.
func (n *Names) update(set []model.Object, deleted []model.Ref) {
	for _, ref := range deleted {
		if ref.Kind == model.KindService || ref.Kind == model.KindEndpointSlice {
			n.objects.remove(ref)
		}
	}
	for _, obj := range set {
		switch obj.(type) {
		case *model.Service, *model.EndpointSlice:
			n.objects.put(obj)
		}
	}
	n.publish()
}

// publish computes the names of the services that the latest objects concern. The caller holds mu.
func (n *Names) publish() {
	if !n.intake.Complete() || n.log.IsClosed() {
		return
	}
	revision, latest := n.log.Latest()
	next := latest.Clone()
	var changed []state.ServiceName
	n.account()
	for _, svc := range n.objects.takeDirty() {
		names := n.granted(svc)
		n.objects.dropIfEmpty(svc)
		previous := latest.Get(svc.name)
		if names == previous || names != nil && previous != nil && names.Equal(previous) {
			continue
		}
		if names == nil {
			next.Delete(svc.name)
		} else {
			next.Set(svc.name, names)
		}
		changed = append(changed, svc.name)
	}
	n.problems.endReport()
	if revision == 0 || len(changed) > 0 { // the first state is always news
		n.log.Publish(next, changed)
	}
}

// account takes down how many entries the services want that the latest objects concern, and marks those for which that leaves other room.
func (n *Names) account() {
	for _, svc := range n.objects.dirty {
		if born := birth(svc.object); born != svc.born {
			n.ledger.set(svc, 0)
			svc.born = born
		}
		n.ledger.set(svc, min(brain.NamesEntries(svc.object, svc.slices), n.limits.PerService))
	}
	n.ledger.finalize(n.objects.servicesOf, n.objects.mark)
}

// granted returns the names for which a service has room, and reports the names that are left out.
func (n *Names) granted(svc *service) *state.Names {
	var now []Problem
	if wanted := brain.NamesEntries(svc.object, svc.slices); wanted > svc.entries {
		now = append(now, tooManyNames(svc, wanted))
	}
	room, short := n.ledger.room(svc)
	if short {
		now = append(now, noRoomForNames(svc, room, &n.ledger))
	}
	if len(now) > 0 || svc.hasProblems {
		svc.hasProblems = len(now) > 0
		n.problems.set(svc.name, now, func() bool { return false })
	}
	return brain.Names(svc.object, svc.slices, room)
}

// Next implements [state.NamesFeed]. It fails with ErrClosed once the feed is closed.
func (n *Names) Next(ctx context.Context, after state.Revision) (*state.NamesUpdate, error) {
	news, err := n.log.Next(ctx, after)
	if err != nil {
		return nil, err
	}
	u := &state.NamesUpdate{Revision: news.Revision, Full: news.Changes == nil}
	if u.Full {
		u.Changed = news.State.All()
	} else {
		u.Changed, u.Removed = revlog.Outcome(slices.Collect(news.Changes), news.State.Get)
	}
	return u, nil
}

// Close ends all calls of Next. Objects that sources deliver afterwards are ignored.
func (n *Names) Close() { n.log.Close() }
