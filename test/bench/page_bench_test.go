//go:build linux

package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// manyPages is how many pages may be open at a time.
const manyPages = 16

// BenchmarkPage measures the resident memory of this process with its page open in browsers: before, at its most while pages ask for all rows and for
// half a minute of use, and after that. Clients are in the process: they read what pages ask for, and keep none of it. Each Service has connections,
// of which some are refused and some dropped, and endpoints that come and go: the process keeps all of the last 15 minutes that it has room for.
func BenchmarkPage(b *testing.B) {
	for _, services := range []int{3000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) { benchmarkPage(b, services) })
	}
}

func benchmarkPage(b *testing.B, services int) {
	cluster := newChangingCluster(services, 5)
	s, sink := newStore(brain.Config{}, cluster.objects...)
	defer s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	quiet := slog.New(slog.DiscardHandler)
	shown := &shownStore{store: s}
	shown.remember()
	served := make(chan error, 1)
	go func() {
		served <- httpserver.Serve(ctx, l, ui.Handler(ctx, shown), httpserver.Options{
			Connections: connlimit.New(connlimit.Options{Name: "page", Max: ui.MaxConnections, Replace: true, Logger: quiet}), Logger: quiet,
		})
	}()
	resident.Trim() // as the daemon does once it is up
	before, err := RSS()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(MiB(before), "none-open-MiB")
	for _, n := range []int{1, manyPages} {
		time.Sleep(time.Second) // until the server has noticed that the last pages were closed
		if err := forgetPeak(); err != nil {
			b.Fatal(err)
		}
		err := usePages(ctx, "http://"+l.Addr().String(), n, 30, func(second int) {
			sink.Update([]model.Object{cluster.change(second % len(cluster.slices))}, nil)
		})
		if err := cmp.Or(err, ctx.Err()); err != nil {
			b.Fatal(err)
		}
		now, peak, err := residentMemory(os.Getpid())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(MiB(peak), fmt.Sprintf("%d-open-at-most-MiB", n))
		b.ReportMetric(MiB(now), fmt.Sprintf("%d-open-after-half-a-minute-MiB", n))
	}
	stop()
	if err := <-served; err != nil {
		b.Error(err)
	}
}

// usePages has pages open for so many seconds. Something changes in each second.
func usePages(ctx context.Context, address string, n, seconds int, change func(second int)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, n)
	var pages sync.WaitGroup
	for i := range n {
		pages.Go(func() {
			if err := usePage(ctx, address); ctx.Err() == nil {
				errs[i] = err
				stop()
			}
		})
	}
	for second := range seconds {
		change(second)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	stop()
	pages.Wait()
	return errors.Join(errs...)
}

// usePage asks for what a page asks for, until ctx ends: events, all rows, and again those in sight.
func usePage(ctx context.Context, address string) error {
	events, err := ask(ctx, address+"/api/events")
	if err != nil {
		return err
	}
	defer events.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, events)
		ended <- fmt.Errorf("the stream of events has ended: %w", cmp.Or(err, io.EOF))
	}()
	keys := url.Values{}
	for after := ""; ; {
		part, err := readPart(ctx, address+"/api/services?"+url.Values{"limit": {"1000"}, "after": {after}}.Encode())
		if err != nil {
			return err
		}
		for _, row := range part.Items[:min(len(part.Items), 40)] {
			if len(keys["key"]) < 40 {
				keys.Add("key", row.Namespace+"/"+row.Name)
			}
		}
		if after = part.Next; after == "" {
			break
		}
	}
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-tick.C:
			if _, err := readPart(ctx, address+"/api/services?"+keys.Encode()); err != nil {
				return err
			}
		}
	}
}

// rowsPart is what a page needs of a part of the rows, to ask for more.
type rowsPart struct {
	Items []struct{ Namespace, Name string }
	Next  string
}

func readPart(ctx context.Context, address string) (part rowsPart, err error) {
	body, err := ask(ctx, address)
	if err != nil {
		return part, err
	}
	defer body.Close()
	err = json.NewDecoder(body).Decode(&part)
	return part, err
}

func ask(ctx context.Context, address string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", address, resp.Status)
	}
	return resp.Body, nil
}

// shownStore is a store as a page shows it.
type shownStore struct {
	store   *store.Store
	changes ui.Changes
	traffic ui.Traffic
}

// count has each Service have connections since the last call.
func (s *shownStore) count(at time.Time) {
	grown := map[state.ServiceName]view.Counts{}
	for record := range s.store.Snapshot().Services() {
		grown[record.Name] = view.Counts{Connections: 100, Rejects: 10, Drops: 1}
	}
	s.traffic.Add(at, grown)
}

// remember has 15 minutes have passed.
func (s *shownStore) remember() {
	began := time.Now().Add(-15 * time.Minute)
	s.changes.Attempted(backend.Attempt{Began: began, Update: &state.Update{Full: true}})
	for i := range 60 {
		s.count(began.Add(time.Duration(i) * 15 * time.Second))
	}
	for record := range s.store.Snapshot().Services() {
		s.changes.Attempted(backend.Attempt{Began: time.Now(), Update: &state.Update{Changed: []*state.Service{record}}})
	}
}

// Lately implements [ui.Counting].
func (s *shownStore) Lately() *ui.Traffic {
	if now := time.Now(); s.traffic.Due(now) {
		s.count(now)
	}
	return &s.traffic
}

// Status implements [ui.Source].
func (s *shownStore) Status() *view.Status {
	snapshot := s.store.Snapshot()
	return &view.Status{Node: NodeName, Mode: "none", Revision: uint64(snapshot.Revision()), Services: snapshot.Len(), Healthy: true}
}

// View implements [ui.Source].
func (s *shownStore) View() *view.View { return &view.View{Store: s.store} }

// Changes implements [ui.Source].
func (s *shownStore) Changes() *ui.Changes { return &s.changes }

// Explain implements [ui.Source].
func (s *shownStore) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	return explain.New(explain.Options{Store: s.store}).Ask(ctx, from, to)
}
