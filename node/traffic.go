package node

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
)

// countingText says where connections are counted. Rules see the first packet of each connection, except the ones of socket hooks,
// which count for themselves.
const countingText = "all modes of Linux, but not by a relay that listens on addresses of the host (userspace.listen)"

// countsIn reports whether c has the dataplane count connections.
func countsIn(c *config.Config) bool {
	return c.NFTables.Counters && canCount(c)
}

// canCount reports whether the dataplane of c can count connections.
func canCount(c *config.Config) bool {
	return cmp.Or(c.Mode, config.DefaultMode(runtime.GOOS)) != config.ModeKernelspace && !isStandalone(c, runtime.GOOS)
}

// warnCounters warns if c wants counts that its dataplane does not have.
func (n *Node) warnCounters(c *config.Config) {
	if c.NFTables.Counters && !canCount(c) {
		n.log.Warn("connections are not counted in this mode", "mode", c.Mode, "field", n.fieldName("nftables.counters"), "counted", countingText,
			"remedy", "set the mode to one that counts, or the field to false")
	}
}

// counters returns what reads back what the layers of the dataplane have counted, each of other connections. It is empty if they do not count.
func (n *Node) counters() []backend.Counter {
	if s, ok := n.dataplane.(*switchable); ok {
		if !countsIn(n.config.Load()) {
			return nil
		}
		return s.counters()
	}
	if c, ok := n.dataplane.(backend.Counter); ok {
		return []backend.Counter{c}
	}
	return nil
}

// hookCounter counts what socket hooks take.
type hookCounter struct{ hooks hooked }

// Counts implements [backend.Counter].
func (c hookCounter) Counts(keys []state.FrontendKey) ([]backend.Counts, error) {
	return c.hooks.HookCounts(keys)
}

const (
	// trafficPause is for how long counts are not read again: each reading looks up all frontends.
	trafficPause = time.Second
	// maxTrafficPorts is how many ports of Services have series of their own. Anybody can make many.
	maxTrafficPorts = 1000
	// maxTrafficRows is how many ports people see at once.
	maxTrafficRows = 1000
)

// traffic has what the dataplane has counted, by port of a Service.
type traffic struct {
	mu    sync.Mutex
	at    time.Time // of the last reading
	err   error     // of the last reading
	shown *metrics.Traffic
	tally tally
	// lately is what the page shows, nil if nothing is counted.
	lately *ui.Traffic
}

// serviceTraffic returns the counts of the dataplane, nil if it does not count. If they cannot be read, it returns the
// last counts.
func (n *Node) serviceTraffic() *metrics.Traffic {
	t := &n.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	if !n.readTraffic() {
		return nil
	}
	return t.shown
}

// latelyCounted returns the new connections for the page, nil if the dataplane does not count. All pages together cause one
// reading of the counts every five seconds at most.
func (n *Node) latelyCounted() *ui.Traffic {
	t := &n.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lately == nil || t.lately.Due(time.Now()) || len(n.counters()) == 0 {
		n.readTraffic()
	}
	return t.lately
}

// selectedTraffic returns the dataplane's counts of the selected Services, without their endpoints.
func (n *Node) selectedTraffic(s view.Selection) (*view.Traffic, error) {
	t := &n.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	if !n.readTraffic() {
		return nil, n.notCounted()
	}
	if t.err != nil {
		return nil, fmt.Errorf("cannot read back what was counted: %w", t.err)
	}
	m := &view.Traffic{At: t.at}
	m.Ports, m.LeftOut = t.tally.rows(s)
	return m, nil
}

// readTraffic reads the counts, unless that was done a moment ago. If nothing is counted, it forgets the last counts
// and returns false. The caller holds traffic.mu.
func (n *Node) readTraffic() bool {
	t, counters := &n.traffic, n.counters()
	if len(counters) == 0 {
		t.at, t.err, t.shown, t.tally, t.lately = time.Time{}, nil, nil, tally{}, nil
		return false
	}
	if n.status.current().Applied == 0 { // not yet, or not in this mode
		return t.shown != nil
	}
	now := time.Now()
	if !t.at.IsZero() && now.Sub(t.at) < trafficPause {
		return true
	}
	t.at = now
	p := n.pipeline.Load()
	if newest, _ := p.latest(); newest == 0 { // Next would wait for a state
		t.err = errors.New("the objects come from elsewhere now, and are not all known yet: ask again")
		return true
	}
	u, err := p.feed.Next(n.group.ctx, 0)
	if err == nil {
		err = t.tally.read(u.Changed, counters...)
	}
	if t.err = err; err != nil {
		n.log.Warn("cannot read back what was counted", "error", err)
		return true
	}
	t.shown = t.tally.shown()
	if t.lately == nil {
		t.lately = &ui.Traffic{}
	}
	if t.lately.Due(t.at) {
		t.lately.Add(t.at, t.tally.grown())
	}
	return true
}

// notCounted returns why nothing is counted.
func (n *Node) notCounted() error {
	_, own := n.dataplane.(*switchable)
	field := n.fieldName("nftables.counters")
	switch {
	case n.dataplane == nil:
		return errors.New("connections are not counted here, because this process has no dataplane: ask the one that has it, by its /metrics")
	case len(n.counters()) > 0:
		return errors.New("nothing is counted yet, because nothing is programmed yet: ask again")
	case !own:
		return errors.New("this dataplane does not count connections")
	case !canCount(n.config.Load()):
		return fmt.Errorf("connections are counted in %s, but this node's mode is %s: set %s to another one, or leave userspace.listen empty; and set %s to true",
			countingText, n.proxyMode(), n.fieldName("mode"), field)
	}
	return fmt.Errorf("connections are not counted: set %s to true in the configuration file", field)
}

// tally adds up counts of frontends by the ports that they belong to. All that a frontend has counted when it is first seen counts, and
// only its growth after that. So a sum never goes down because a frontend is gone, or begins at 0 again. Each layer of a dataplane
// grows by itself.
//
// Socket hooks begin at 0 with each process, and nftables below them goes on. To begin the sum of both at 0 as well, the counts of
// nftables before the first reading of both do not count. If the sum goes down in a part, it counts as begun at 0 again.
type tally struct {
	layers []layer
	ports  map[servicePort]*portTally
	// series is how many ports have one, and beyond what those without have counted.
	series int
	beyond backend.Counts
}

// layer is what a layer of a dataplane had counted at the last reading.
type layer struct {
	counter   backend.Counter
	frontends map[state.FrontendKey]backend.Counts
}

// of returns what a layer had counted, nil if it is read for the first time.
func (t *tally) of(c backend.Counter) map[state.FrontendKey]backend.Counts {
	for _, l := range t.layers {
		if l.counter == c {
			return l.frontends
		}
	}
	return nil
}

type servicePort struct {
	service state.ServiceName
	port    string
}

type portTally struct {
	all backend.Counts
	// series is what counts in its series.
	series backend.Counts
	// taken is what [tally.grown] has returned.
	taken     backend.Counts
	hasSeries bool
	there     bool
}

// portOf returns the name of a port, or its number if it has none.
func portOf(p *state.Port) string {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; p.Name == "" && f.Kind != state.NodePort {
			return strconv.Itoa(int(f.Port))
		}
	}
	return p.Name
}

// read adds the connections that each layer has counted since the last call. If there are several layers, the counts of
// the last one begin at 0 with each process.
func (t *tally) read(services []*state.Service, counters ...backend.Counter) error {
	var keys []state.FrontendKey
	var owners []servicePort
	for _, s := range services {
		for p, f := range s.Frontends() {
			keys, owners = append(keys, p.Key(f)), append(owners, servicePort{s.Name, portOf(p)})
		}
	}
	counts := make([][]backend.Counts, len(counters))
	for n, c := range counters {
		var err error
		if counts[n], err = c.Counts(keys); err != nil {
			return err
		}
	}
	first := t.ports == nil
	if first {
		t.ports = map[servicePort]*portTally{}
	}
	for _, p := range t.ports {
		p.there = false
	}
	for _, owner := range owners {
		if t.ports[owner] == nil {
			t.ports[owner] = &portTally{}
		}
		t.ports[owner].there = true
	}
	now := make([]layer, len(counters))
	for n, c := range counters {
		last := t.of(c)
		now[n] = layer{c, make(map[state.FrontendKey]backend.Counts, len(keys))}
		for i, key := range keys {
			now[n].frontends[key] = counts[n][i]
			if !first || n == len(counters)-1 {
				t.add(t.ports[owners[i]], growth(last[key], counts[n][i]))
			}
		}
	}
	t.layers = now
	for name, p := range t.ports {
		if !p.there {
			delete(t.ports, name)
			if p.hasSeries {
				t.series--
			}
		}
	}
	return nil
}

// add adds to a port, which gets a series with its first connection while there is room.
func (t *tally) add(p *portTally, by backend.Counts) {
	p.all.Add(by)
	if !p.hasSeries && by.Connections > 0 && t.series < maxTrafficPorts {
		p.hasSeries = true
		t.series++
	}
	if p.hasSeries {
		p.series.Add(by)
	} else {
		t.beyond.Add(by) // and it stays counted there
	}
}

// growth returns how much more is counted now. A number that has gone down has begun at 0 again.
func growth(was, is backend.Counts) backend.Counts {
	grown := func(was, is uint64) uint64 {
		if is < was {
			return is
		}
		return is - was
	}
	return backend.Counts{
		Connections: grown(was.Connections, is.Connections), Rejects: grown(was.Rejects, is.Rejects), Drops: grown(was.Drops, is.Drops),
	}
}

// shown returns what the metrics show.
func (t *tally) shown() *metrics.Traffic {
	m := &metrics.Traffic{Beyond: metrics.Counts(t.beyond)}
	for name, p := range t.ports {
		switch {
		case p.hasSeries:
			m.Ports = append(m.Ports, metrics.PortTraffic{Service: name.service, Port: name.port, Counts: metrics.Counts(p.series)})
		case p.all.Connections > 0:
			m.LeftOut++
		}
	}
	slices.SortFunc(m.Ports, func(a, b metrics.PortTraffic) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Port, b.Port))
	})
	return m
}

// rows returns the ports that are selected, in order, and how many are left out. If they are too many, it returns the ones with the
// most connections.
func (t *tally) rows(s view.Selection) (rows []view.PortTraffic, leftOut int) {
	for name, p := range t.ports {
		if s.Includes(name.service) {
			rows = append(rows, view.PortTraffic{Namespace: name.service.Namespace, Service: name.service.Name, Port: name.port, Counts: view.Counts(p.all)})
		}
	}
	byName := func(a, b view.PortTraffic) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port))
	}
	if leftOut = len(rows) - maxTrafficRows; leftOut > 0 {
		slices.SortFunc(rows, func(a, b view.PortTraffic) int {
			return cmp.Or(cmp.Compare(b.Connections, a.Connections), byName(a, b))
		})
		rows = rows[:maxTrafficRows]
	}
	slices.SortFunc(rows, byName)
	return rows, max(leftOut, 0)
}

// grown returns the connections of each Service since the last call.
func (t *tally) grown() map[state.ServiceName]view.Counts {
	sums := make(map[state.ServiceName]view.Counts)
	for name, p := range t.ports {
		by := growth(p.taken, p.all)
		if p.taken = p.all; by == (backend.Counts{}) {
			continue
		}
		sum := backend.Counts(sums[name.service])
		sum.Add(by)
		sums[name.service] = view.Counts(sum)
	}
	return sums
}
