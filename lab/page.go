//go:build linux

package lab

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/ui"
	nodeview "github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// address is the address of the page, empty if there is none.
func (o *Options) address() string {
	if o.Page == nil {
		return ""
	}
	return "http://" + o.Page.Addr().String() + "/"
}

// servePage serves the page, if there is to be one, until stop is called.
func (s *session) servePage(ctx context.Context) (stop func()) {
	if s.options.Page == nil {
		return func() {}
	}
	ctx, end := context.WithCancel(ctx)
	log := s.options.Logger
	var served sync.WaitGroup
	served.Go(func() {
		err := httpserver.Serve(ctx, s.options.Page, ui.Handler(ctx, page{s}), httpserver.Options{
			Connections: connlimit.New(connlimit.Options{Name: "page", Max: ui.MaxConnections, Replace: true, Logger: log}), Logger: log,
		})
		if err != nil {
			log.Warn("the page has ended", "error", err)
		}
	})
	return func() {
		end()
		served.Wait()
	}
}

// page is what the page shows of a session: the node under test, and the newest round.
type page struct{ s *session }

var _ ui.Lab = page{}

// Status implements [ui.Source].
func (p page) Status() *nodeview.Status {
	snapshot, last := p.s.store.Snapshot(), p.s.status.current()
	status := &nodeview.Status{
		Program: "switchyard lab", Node: nodeName, Mode: p.s.options.Mode, Started: p.s.began,
		Revision: uint64(snapshot.Revision()), Applied: uint64(last.Applied), LastSuccess: last.LastSuccess, PendingSince: last.Pending,
		Services: snapshot.Len(), Failed: len(last.Failed), Healthy: p.s.failed() == nil,
	}
	if now := p.s.newest.Load(); now != nil {
		status.Problems = now.problems
	}
	return status
}

// View implements [ui.Source].
func (p page) View() *nodeview.View {
	failed := p.s.status.current().Failed
	return &nodeview.View{Store: p.s.store, Failed: func(name state.ServiceName) error { return failed[name] }, Facts: p.s.facts.Load()}
}

// Changes implements [ui.Source].
func (p page) Changes() *ui.Changes { return &p.s.changes }

// Explain implements [ui.Source].
func (p page) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	return explain.New(explain.Options{Store: p.s.store, Facts: p.s.facts.Load()}).Ask(ctx, from, to)
}

// Round implements [ui.Lab].
func (p page) Round() *ui.Round {
	if now := p.s.newest.Load(); now != nil {
		return now.round
	}
	return nil
}

// shown is what the page has of one round. It is never modified.
type shown struct {
	round    *ui.Round
	problems []nodeview.Problem
}

// shown returns what the page has of a view that has just been made.
func (v *view) shown(servers directory) *shown {
	now := &shown{round: &ui.Round{Ended: time.Now(), Paths: make(map[state.ServiceName][]ui.Path)}}
	for i := range v.results {
		r := &v.results[i]
		now.round.Paths[r.service.Name] = append(now.round.Paths[r.service.Name], r.path(servers))
	}
	add := func(part, text string) {
		now.problems = append(now.problems, nodeview.Problem{Part: part, Message: strings.TrimSpace(text)})
	}
	for _, err := range v.problems {
		for line := range strings.Lines(err.Error()) {
			add("manifests", line)
		}
	}
	for _, f := range v.elsewhere() {
		add(string(f.Severity), sentenceOf(&f))
	}
	for _, text := range v.notes {
		add("remark", text)
	}
	return now
}

// path is what the page has of a result.
func (r *result) path(servers directory) ui.Path {
	p := ui.Path{
		Client: clientName(r.packet.From), Frontend: kindName(r.kind), Address: r.packet.Dst.String(), Protocol: r.packet.Protocol.String(),
		Outside: r.packet.From == probe.FromOutside && r.kind != state.ClusterIP,
		Outcome: r.outcome.String(), Connections: r.connections, Endpoints: make(map[string]int), Source: r.source.String(), Took: r.p50.Seconds(), Faults: r.surprises,
	}
	for _, choice := range r.expect.Choices {
		if n := r.servers[servers.name(&r.call, choice.Endpoint)]; n > 0 {
			p.Endpoints[choice.Endpoint.String()] = n
		}
	}
	return p
}
