package node

import (
	"context"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/adminserver"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// startAdmin serves the admin API where c says, if the node has the objects that there are to show. Elsewhere than on Linux, there is none: the
// system does not report the users of clients.
func (n *Node) startAdmin(c *config.Config) {
	path := c.AdminSocket()
	n.stopAdmin = n.group.start(func(ctx context.Context) error {
		if path != "" && runtime.GOOS == "linux" && n.pipeline.Load().store != nil {
			n.serveAdmin(ctx, path)
		}
		return nil
	})
}

// serveAdmin serves the admin API on a socket until ctx ends, and tries again if it cannot: a node routes as well without it.
func (n *Node) serveAdmin(ctx context.Context, path string) {
	reported := ""
	for ctx.Err() == nil {
		l, err := server.ListenUnix(path, 0o600)
		if err == nil {
			reported = ""
			err = adminserver.Serve(ctx, l, adminSource{n}, n.log)
		}
		if err != nil && ctx.Err() == nil && err.Error() != reported {
			reported = err.Error()
			n.log.Warn("cannot serve the admin API, will retry", "error", err,
				"remedy", "set "+n.fieldName("adminBindAddress")+" to another path, or to "+config.AdminNowhere)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenPause):
		}
	}
}

// adminSource is what the admin API and the page show of a node.
type adminSource struct{ n *Node }

var (
	_ adminserver.Source = adminSource{}
	_ ui.Counting        = adminSource{}
)

// Changes implements [ui.Source].
func (a adminSource) Changes() *ui.Changes { return &a.n.changes }

// Lately implements [ui.Counting].
func (a adminSource) Lately() *ui.Traffic { return a.n.latelyCounted() }

// Status implements [adminserver.Source].
func (a adminSource) Status() *view.Status {
	newest, services := a.n.pipeline.Load().latest()
	last := a.n.status.current()
	s := &view.Status{
		Program: a.n.o.Program, Version: a.n.o.Version, Node: a.n.Name(), Mode: a.n.proxyMode(), Started: a.n.started,
		Revision: uint64(newest), Applied: uint64(last.Applied), LastSuccess: last.LastSuccess, PendingSince: last.Pending,
		Services: services, Failed: len(last.Failed), Healthy: a.n.health.Healthy(),
	}
	for _, p := range a.n.health.Problems() {
		s.Problems = append(s.Problems, view.Problem{Part: p.Part, Message: p.Message, Fault: p.Fault})
	}
	if e := a.n.edge(); e != nil {
		s.Edge = &view.Edge{
			Ports: e.Ports, Left: e.Left, Draining: e.Draining,
			HandedOver: e.Packets[programs.HandedOver.String()], TakenIn: e.Packets[programs.TakenIn.String()],
		}
	}
	return s
}

// View implements [adminserver.Source].
func (a adminSource) View() *view.View {
	failed := a.n.status.current().Failed
	return &view.View{
		Store: a.n.pipeline.Load().store, Local: a.local(), Lacks: a.n.degraded.of,
		Failed: func(name state.ServiceName) error { return failed[name] }, Standing: a.standing,
	}
}

// standing returns what the dataplane knows of the endpoints of a port, nothing if it does not tell.
func (a adminSource) standing(p *state.Port, left []netip.AddrPort) (s view.Standing) {
	inspector, f := a.n.endpointInspector(), &p.Frontends[0]
	if inspector == nil || !f.Addr.IsValid() { // no Service has node ports only
		return s
	}
	held, err := inspector.InspectEndpoints(backend.Query{Frontend: p.Key(f), Dst: f.Addr, Endpoints: left})
	if err != nil { // as while another dataplane takes over: the states are without it then
		a.n.log.Debug("cannot read back what the dataplane knows of endpoints", "error", err)
		return s
	}
	for _, silent := range held.Silent {
		s.Silent = append(s.Silent, silent.Endpoint)
	}
	s.Until = held.Deadlines
	for addr, until := range s.Until { // the kernel counts backwards: the same deadline looks a little different each time
		s.Until[addr] = until.Truncate(time.Second)
	}
	return s
}

// Traffic implements [adminserver.Source].
func (a adminSource) Traffic(s view.Selection) (*view.Traffic, error) {
	t, err := a.n.selectedTraffic(s)
	if err != nil {
		return nil, err
	}
	a.View().AddEndpoints(t.Ports)
	return t, nil
}

// Explain implements [adminserver.Source].
func (a adminSource) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	answers, err := explain.New(explain.Options{Store: a.n.pipeline.Load().store, Local: a.local()}).Ask(ctx, from, to)
	for _, answer := range answers {
		if err := ctx.Err(); err != nil {
			return nil, err // the caller is gone
		}
		namespace, name, _ := strings.Cut(answer.Service, "/")
		service := state.ServiceName{Namespace: namespace, Name: name}
		if missing := a.n.degraded.of(service); missing != 0 {
			answer.Lack(service, missing)
		}
		a.prove(answer)
		a.n.handOver(answer, service)
	}
	return answers, err
}

// local are the addresses of the node's interfaces, nil if they are not known.
func (a adminSource) local() []netip.Addr {
	if a.n.ports == nil {
		return nil
	}
	return a.n.ports.addresses.Addrs()
}

// relaySource is what the page of a relay shows.
type relaySource struct{ n *Node }

var _ ui.RelaySource = relaySource{}

// Status implements [ui.RelaySource]. The newest revision is the newest that any node was sent.
func (r relaySource) Status() *view.Status {
	s := adminSource(r).Status()
	s.Revision = uint64(r.n.fleet.newest())
	return s
}

// Nodes implements [ui.RelaySource].
func (r relaySource) Nodes(after uint64) []*ui.Node { return r.n.fleet.rows(after) }

// prove adds to an answer what the dataplane holds for the connection.
func (a adminSource) prove(answer *explain.Answer) {
	key, ok := answer.Key()
	if !ok || a.n.dataplane == nil {
		return
	}
	inspector := a.n.inspector()
	k := explain.Kernel{Dataplane: a.n.proxyMode()}
	if inspector == nil {
		k.Unread = "this dataplane does not read back single connections"
		answer.Compare(k)
		return
	}
	held, err := inspector.Inspect(backend.Query{
		Frontend: key, Dst: answer.Frontend.Addr.Addr(), Source: answer.Client.Addr, Endpoints: answer.Left(),
		Node: answer.Client.Class == explain.Node, Outside: answer.Client.Class == explain.Outside,
	})
	if err != nil {
		k.Unread = err.Error()
		answer.Compare(k)
		return
	}
	k.Verdict, k.Endpoints, k.Objects, k.ConnectionCount = explain.VerdictOf(held.Verdict), held.Endpoints, held.Objects, held.Count
	k.Differences = held.Differences
	if d := held.Draw; d.Even || d.Slots > 0 {
		k.Draw = &explain.Draw{Even: d.Even, Slots: d.Slots, Shares: d.Shares, Hashed: d.Hashed}
		if d.Known {
			k.Draw.Slot = &d.Slot
		}
		if d.Endpoint.IsValid() {
			k.Draw.Endpoint = &d.Endpoint
		}
	}
	for _, s := range held.Silent {
		k.Silent = append(k.Silent, explain.Silent{Endpoint: s.Endpoint, Since: s.Since, Probes: s.Probes})
	}
	for _, c := range held.Connections {
		k.Connections = append(k.Connections, explain.Tracked{Client: c.Client, Server: c.Server})
	}
	answer.Compare(k)
	answer.Drain(held.Deadlines, time.Now())
	if newest, _ := a.n.pipeline.Load().latest(); len(answer.Kernel.Differences) > 0 && a.n.status.current().Applied < newest {
		answer.Notes = append(answer.Notes, "an update is on its way to the kernel: ask again")
	}
}

// endpointInspector returns what knows more of endpoints than their records, nil if nothing does. In modes above nftables, that is nftables.
func (n *Node) endpointInspector() backend.EndpointInspector {
	if s, ok := n.dataplane.(*switchable); ok {
		if base := s.nftables(); base != nil {
			return base
		}
	}
	i, _ := n.inUse().(backend.EndpointInspector)
	return i
}

// inspector returns what reads back what the dataplane holds, nil if it cannot.
func (n *Node) inspector() backend.Inspector {
	i, _ := n.inUse().(backend.Inspector)
	return i
}
