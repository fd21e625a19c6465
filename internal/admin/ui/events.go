package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/state"
)

const (
	// eventPause is between two looks at what has changed.
	eventPause = time.Second
	// maxRows is how many rows an event has at most. A page asks again for all if more have changed.
	maxRows = 200
	// rest is how long a stream rests for the time that an event took, if that is longer than its pause.
	rest = 4
	// shortest is how long a page keeps its place while others want one.
	shortest = time.Minute
	// quiet is after how long an event is sent although nothing has changed, so that both ends notice when the other is gone.
	quiet = 15 * time.Second
)

// event is what has changed since the one before.
type event struct {
	Status *status `json:"status,omitempty"`
	// Set are rows that are new or different, Deleted the keys of those that are gone.
	Set     []json.RawMessage `json:"set,omitempty"`
	Deleted []string          `json:"deleted,omitempty"`
	// Reload reports that too much is different.
	Reload  bool     `json:"reload,omitempty"`
	Changes []Change `json:"changes,omitempty"`
	// Counted reports whether new connections are counted, if that is new. Rates has the Services with new connections, by NAMESPACE/NAME.
	Counted *bool           `json:"counted,omitempty"`
	Rates   map[string]Rate `json:"rates,omitzero"`
	// Round is the newest of a lab.
	Round *roundEvent `json:"round,omitempty"`
}

func (e *event) empty() bool {
	return e.Status == nil && len(e.Set)+len(e.Deleted)+len(e.Changes) == 0 && !e.Reload && e.Counted == nil && e.Rates == nil && e.Round == nil
}

// message is an event of any page.
type message interface{ empty() bool }

// stream makes the events of one client.
type stream interface {
	// next returns what has changed since the one before. It is not ok if the stream ends: its objects come from elsewhere now, or ctx has ended.
	next(ctx context.Context) (m message, ok bool)
}

// events sends changes as server-sent events, at the pace of the client: changes that a client has not read yet are
// merged. A client that does not read is disconnected.
func (s *server) events(follow func() stream) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, leave := s.streams.enter(r.Context())
		if ctx == nil {
			w.Header().Set("Retry-After", "5")
			fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages are open, which is the most: close one, or wait for a minute", maxStreams))
			return
		}
		defer leave()
		connection := http.NewResponseController(w)
		_ = connection.SetReadDeadline(time.Time{}) // some writers of tests have none
		w.Header().Set("Content-Type", "text/event-stream")
		client := follow()
		var sent time.Time
		for {
			began := time.Now()
			e, ok := s.next(ctx, client)
			if !ok {
				return // the page reconnects
			}
			took := time.Since(began)
			if !e.empty() || time.Since(sent) >= quiet {
				if err := send(w, connection, e); err != nil {
					return
				}
				sent = time.Now()
			}
			select {
			case <-time.After(max(eventPause, rest*took)):
			case <-ctx.Done():
				return
			case <-s.ctx.Done():
				return
			}
		}
	}
}

// streams are the places of open pages.
type streams struct {
	mu sync.Mutex
	// open has the streams, the oldest first.
	open []*opened
}

type opened struct {
	since time.Time
	end   context.CancelFunc
}

// enter gives a stream a place, or returns nil. If there is none, the oldest one gives up its place, unless it is younger than shortest: nobody
// who came first keeps others out.
func (s *streams) enter(ctx context.Context) (entered context.Context, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxStreams {
		if time.Since(s.open[0].since) < shortest {
			return nil, nil
		}
		s.open[0].end()
		s.open = s.open[1:]
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &opened{time.Now(), cancel}
	s.open = append(s.open, o)
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open = slices.DeleteFunc(s.open, func(other *opened) bool { return other == o })
	}
}

func (s *streams) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// next is the next event of a stream, when it is its turn.
func (s *server) next(ctx context.Context, client stream) (m message, ok bool) {
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
		return client.next(ctx)
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return nil, false
}

// send sends one event, which the client must take soon.
func send(w http.ResponseWriter, connection *http.ResponseController, e message) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_ = connection.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers of tests have none
	if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
		return err
	}
	return connection.Flush()
}

// follower is what the stream of a page of Services has sent. Its rows are made of the Services whose records change; others of a row's fields
// a page asks for itself.
type follower struct {
	*page
	view     *view.View
	began    bool
	revision state.Revision
	status   []byte
	change   uint64
	round    *Round
	// asked is when the counts were read last, and rated the time of the rates that were sent. counted is what was sent of it.
	asked, rated time.Time
	counted      *bool
}

func (p *page) follow() stream { return &follower{page: p, view: p.source.View()} }

// next implements [stream].
func (f *follower) next(ctx context.Context) (message, bool) {
	e := &event{}
	status := f.current()
	if text, err := json.Marshal(status); err == nil && !bytes.Equal(text, f.status) {
		e.Status, f.status = status, text
	}
	e.Changes = f.source.Changes().After(f.change)
	if n := len(e.Changes); n > 0 {
		f.change = e.Changes[n-1].Number
	}
	f.rates(e)
	if lab, ok := f.source.(Lab); ok {
		if round := lab.Round(); round != f.round {
			e.Round, f.round = round.event(), round
		}
	}
	now := f.source.View()
	if now.Store != f.view.Store {
		return nil, false
	}
	f.view = now
	newest := f.view.Store.Snapshot().Revision()
	switch {
	case !f.began: // the page asks for all rows once it is connected
		f.began, f.revision = true, newest
	case newest > f.revision:
		u, err := f.view.Store.Next(ctx, f.revision)
		if err != nil {
			return nil, false
		}
		f.revision = u.Revision
		f.rows(ctx, e, u)
	}
	return e, true
}

// rates adds the newest rates of new connections.
func (f *follower) rates(e *event) {
	c, ok := f.source.(Counting)
	if !ok || time.Since(f.asked) < ratePeriod {
		return
	}
	f.asked = time.Now()
	traffic := c.Lately()
	if counted := traffic != nil; f.counted == nil || *f.counted != counted {
		e.Counted, f.counted = &counted, &counted
	}
	if traffic == nil {
		return
	}
	if at, rates := traffic.newest(); !at.Equal(f.rated) {
		e.Rates, f.rated = rates, at
	}
}

// rows adds the rows that an update changes.
func (f *follower) rows(ctx context.Context, e *event, u *state.Update) {
	if e.Reload = u.Full || len(u.Changed)+len(u.Removed) > maxRows; e.Reload {
		return
	}
	part := newStep(ctx)
	names := slices.Clone(u.Removed)
	for _, s := range u.Changed {
		names = append(names, s.Name)
	}
	for _, name := range names {
		if part.full() {
			e.Set, e.Deleted, e.Reload = nil, nil, true
			return
		}
		row := f.view.Service(name)
		if row == nil {
			e.Deleted = append(e.Deleted, name.String())
		}
		if part.add(row) != nil {
			return // nobody waits for it now
		}
	}
	e.Set = part.list.Items
}
