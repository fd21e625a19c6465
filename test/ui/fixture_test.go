package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/connlimit"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// yard is a node as the page sees it: a store, and a dataplane that takes a few milliseconds for everything.
type yard struct {
	*testing.T
	store   *store.Store
	sink    model.Sink
	changes ui.Changes
	started time.Time
	// problems are what the process has to say.
	problems []view.Problem
	// standing is what the dataplane knows of endpoints.
	standing view.Standing

	mu     sync.Mutex // guards all below
	status backend.Status
	seen   []*http.Request
	stop   func() // the server
}

func newYard(t *testing.T, objects []model.Object) *yard {
	y := &yard{T: t, started: time.Now().Add(-3*time.Hour - 4*time.Minute)}
	y.store = store.New(store.Options{Brain: brain.Config{
		NodeName: "node-a", LocalDetector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}})
	y.sink = y.store.Source("test")
	y.sink.Update(objects, nil)
	y.sink.Complete()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- backend.Run(ctx, y.store, &plane{}, backend.RunOptions{VerifyPeriod: time.Hour, OnAttempt: y.changes.Attempted, OnStatus: func(s backend.Status) {
			y.mu.Lock()
			defer y.mu.Unlock()
			y.status = s
		}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		y.store.Close()
	})
	return y
}

// plane is a dataplane that holds nothing.
type plane struct{ backend.None }

func (p *plane) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	time.Sleep(2 * time.Millisecond)
	return backend.Result{Written: 3*len(u.Changed) + len(u.Removed)}, nil
}

// Status implements [ui.Source].
func (y *yard) Status() *view.Status {
	snapshot := y.store.Snapshot()
	y.mu.Lock()
	defer y.mu.Unlock()
	return &view.Status{
		Program: "switchyard", Version: "v1.9.0", Node: "node-a", Mode: "nftables", Started: y.started, Revision: uint64(snapshot.Revision()), Applied: uint64(y.status.Applied),
		LastSuccess: y.status.LastSuccess, PendingSince: y.status.Pending, Services: snapshot.Len(), Healthy: true, Problems: y.problems, Edge: &view.Edge{Ports: 6, Left: 2, Draining: 1},
	}
}

// View implements [ui.Source].
func (y *yard) View() *view.View {
	return &view.View{Store: y.store, Standing: func(*state.Port, []netip.AddrPort) view.Standing { return y.standing }}
}

// Explain implements [ui.Source].
func (y *yard) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	answers, err := explain.New(explain.Options{Store: y.store}).Ask(ctx, from, to)
	for _, a := range answers {
		var held []netip.AddrPort
		for _, e := range a.Endpoints {
			if e.Gets {
				held = append(held, e.Addr)
			}
		}
		a.Compare(explain.Kernel{Dataplane: "nftables", Verdict: a.Verdict, Endpoints: held, Objects: []string{"map service_ips: 10.96.0.10 . tcp . 80", "map endpoints_v4: 2 elements"}})
	}
	return answers, err
}

// Changes implements [ui.Source].
func (y *yard) Changes() *ui.Changes { return &y.changes }

// streams is how many pages follow events.
func (y *yard) streams() (n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, r := range y.seen {
		if r.URL.Path == "/api/events" && r.Context().Err() == nil {
			n++
		}
	}
	return n
}

// serve serves the page at an address, a free one if it is empty, and returns it.
func (y *yard) serve(address string) string {
	at, stop := serve(y.T, address, func(ctx context.Context) http.Handler {
		page := ui.Handler(ctx, y)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			y.mu.Lock()
			y.seen = append(y.seen, r)
			y.mu.Unlock()
			page.ServeHTTP(w, r)
		})
	})
	y.stop = stop
	return at
}

// serve serves a page at an address, a free one if it is empty, until stop is called.
func serve(t *testing.T, address string, page func(context.Context) http.Handler) (at string, stop func()) {
	l, err := net.Listen("tcp", cmp.Or(address, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- httpserver.Serve(ctx, l, page(ctx), httpserver.Options{
			Connections: connlimit.New(connlimit.Options{Name: "page", Max: ui.MaxConnections, Replace: true, Logger: slog.New(slog.DiscardHandler)}),
			Logger:      slog.New(slog.DiscardHandler),
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// fleet is a relay as the page sees it.
type fleet struct {
	started time.Time

	mu      sync.Mutex // guards all below
	version uint64
	rows    []*ui.Node
}

func newFleet(nodes int) *fleet {
	f := &fleet{started: time.Now().Add(-26 * time.Hour)}
	for i := range nodes {
		f.rows = append(f.rows, &ui.Node{
			Name: fmt.Sprintf("node-%04d", i), Client: "nftables", Address: fmt.Sprintf("172.16.%d.%d:40312", i/250, i%250), Clients: 1,
			Since: time.Now().Add(-time.Duration(i) * time.Second), Revision: 4711, Applied: 4711, Took: new(float64(i%90) / 1000), Reported: time.Now(),
		})
		f.change(i, func(*ui.Node) {})
	}
	return f
}

// change changes node i.
func (f *fleet) change(i int, by func(n *ui.Node)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	row := *f.rows[i]
	by(&row)
	f.version++
	row.Version = f.version
	f.rows[i] = &row
}

// Status implements [ui.RelaySource].
func (f *fleet) Status() *view.Status {
	return &view.Status{Program: "switchyard", Version: "v1.9.0", Mode: "none", Started: f.started, Revision: 4711, Healthy: true}
}

// Nodes implements [ui.RelaySource].
func (f *fleet) Nodes(after uint64) (rows []*ui.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.rows {
		if n.Version > after {
			rows = append(rows, n)
		}
	}
	return rows
}

// laboratory is a yard that connects to its Services, and counts connections.
type laboratory struct {
	*yard
	round   atomic.Pointer[ui.Round]
	traffic atomic.Pointer[ui.Traffic]
}

// Lately implements [ui.Counting].
func (l *laboratory) Lately() *ui.Traffic { return l.traffic.Load() }

// count has connections be made to Services of the namespace shop in five seconds.
func (l *laboratory) count(of map[string]view.Counts) {
	grown := map[state.ServiceName]view.Counts{}
	for name, counts := range of {
		grown[state.ServiceName{Namespace: "shop", Name: name}] = counts
	}
	t := &ui.Traffic{}
	t.Add(time.Now().Add(-5*time.Second), nil)
	t.Add(time.Now(), grown)
	l.traffic.Store(t)
}

// Round implements [ui.Lab].
func (l *laboratory) Round() *ui.Round { return l.round.Load() }

// goRound has the Service shop/cart answer so many connections at each of its endpoints on node-a, and one path be wrong if fault says so.
func (l *laboratory) goRound(each int, fault string) {
	path := ui.Path{Client: "pod", Frontend: "cluster IP", Address: "10.96.0.11:80", Protocol: "TCP", Outcome: "answered", Connections: 2 * each, Source: "kept", Took: 0.0004,
		Endpoints: map[string]int{"10.244.1.10:8080": each, "10.244.1.11:8080": each}}
	if fault != "" {
		path.Faults = []string{fault}
	}
	l.round.Store(&ui.Round{Ended: time.Now(), Paths: map[state.ServiceName][]ui.Path{{Namespace: "shop", Name: "cart"}: {path}}})
}

// remember has the process know the last 14 minutes: connections to mail and newsletter, and an endpoint of mail that came and went.
func (l *laboratory) remember() {
	t, began := &ui.Traffic{}, time.Now().Add(-14*time.Minute)
	for i := range 57 {
		wave := uint64(60 + 40*(i%9))
		grown := map[state.ServiceName]view.Counts{{Namespace: "shop", Name: "mail"}: {Connections: wave, Drops: wave / 10}}
		if i > 20 {
			grown[state.ServiceName{Namespace: "shop", Name: "newsletter"}] = view.Counts{Connections: wave, Rejects: wave}
		}
		t.Add(began.Add(time.Duration(i)*15*time.Second), grown)
	}
	l.traffic.Store(t)
	now := l.store.Snapshot().Get(state.ServiceName{Namespace: "shop", Name: "mail"})
	without := *now
	without.Ports = slices.Clone(now.Ports)
	for _, r := range []*state.Route{&without.Ports[0].Internal.Inside, &without.Ports[0].Internal.Outside} {
		if len(r.Endpoints) > 0 {
			r.Endpoints = r.Endpoints[1:]
		}
	}
	l.changes.Attempted(backend.Attempt{Began: began, Update: &state.Update{Full: true, Changed: []*state.Service{now}}})
	for i := range 4 {
		was, is := now, &without
		if i%2 == 1 {
			was, is = is, was
		}
		l.changes.Attempted(backend.Attempt{Began: began.Add(time.Duration(2+3*i) * time.Minute), Update: &state.Update{Changed: []*state.Service{is}}, Before: map[state.ServiceName]*state.Service{was.Name: was}})
	}
}

func ip(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

// endpoints are so many on each of three nodes, ready.
func endpoints(subnet, perNode int) (list []model.Endpoint) {
	for n := range perNode {
		for i, node := range []string{"node-a", "node-b", "node-c"} {
			list = append(list, model.Endpoint{Addr: ip("10.244.%d.%d", 16*i+subnet, 10+n), Ready: true, Serving: true, NodeName: node})
		}
	}
	return list
}

// slice is the EndpointSlice of a Service. It changed in the cluster a moment ago.
func slice(s *model.Service, list []model.Endpoint) *model.EndpointSlice {
	e := &model.EndpointSlice{Namespace: s.Name.Namespace, Name: s.Name.Name + "-x7k2p", Service: s.Name.Name, Family: state.IPv4, Endpoints: list, TriggerTime: time.Now().Add(-35 * time.Millisecond)}
	for _, p := range s.Ports {
		e.Ports = append(e.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port + 8000})
	}
	names := make([]string, len(list))
	for i := range names {
		names[i] = fmt.Sprintf("%s-6d9f8c6b5d-%05d", s.Name.Name, i)
	}
	e.Pods = model.PackPods("", names)
	return e
}

func service(n int, namespace, name string, ports ...model.ServicePort) *model.Service {
	return &model.Service{
		Name: state.ServiceName{Namespace: namespace, Name: name}, Type: model.TypeClusterIP, ClusterIPs: []netip.Addr{ip("10.96.%d.%d", n/240, 10+n%240)}, Ports: ports,
	}
}

func tcp(name string, port uint16) model.ServicePort {
	return model.ServicePort{Name: name, Protocol: state.TCP, Port: port}
}

// shop is a small cluster with all that can be right and wrong.
func shop() (objects []model.Object) {
	objects = append(objects, &model.Node{Name: "node-a", Zone: "a", Addresses: []netip.Addr{ip("172.16.0.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}})
	add := func(s *model.Service, list []model.Endpoint) {
		objects = append(objects, s)
		if list != nil {
			objects = append(objects, slice(s, list))
		}
	}
	for i, name := range []string{"accounts", "cart", "catalog", "checkout", "mail", "payments", "reviews", "search", "shipping", "thumbnails"} {
		add(service(i, "shop", name, tcp("http", 80)), endpoints(i, 1+i%3))
	}
	front := service(20, "shop", "storefront", model.ServicePort{Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080}, model.ServicePort{Name: "https", Protocol: state.TCP, Port: 443, NodePort: 30443})
	front.Type, front.ExternalLocal, front.LoadBalancerIPs = model.TypeLoadBalancer, true, []netip.Addr{ip("203.0.113.10")}
	list := endpoints(20, 2)
	list[3].Ready = false
	list[4].Ready, list[4].Terminating, list[4].Serving = false, true, true
	add(front, list)
	add(service(21, "shop", "newsletter", tcp("", 8080)), nil)
	broken := endpoints(22, 1)
	for i := range broken {
		broken[i].Ready, broken[i].Serving = false, false
	}
	add(service(22, "shop", "recommendations", tcp("grpc", 9000)), broken)
	db := service(23, "data", "postgres", tcp("sql", 5432))
	add(db, endpoints(23, 1))
	headless := service(24, "data", "postgres-members", tcp("sql", 5432))
	headless.Headless, headless.ClusterIPs = true, nil
	add(headless, endpoints(23, 1))
	copied := service(25, "data", "replica", tcp("sql", 5432))
	copied.ClusterIPs = db.ClusterIPs
	add(copied, endpoints(25, 1))
	add(service(26, "kube-system", "kube-dns", model.ServicePort{Name: "dns", Protocol: state.UDP, Port: 53}, tcp("dns-tcp", 53), tcp("metrics", 9153)), endpoints(26, 1))
	add(service(27, "kube-system", "metrics-server", tcp("https", 443)), endpoints(27, 1))
	return objects
}

// many is a cluster with many Services.
func many(n int) (objects []model.Object) {
	for i := range n {
		s := service(i, fmt.Sprintf("team-%03d", i%100), fmt.Sprintf("service-%05d", i), tcp("http", 80))
		objects = append(objects, s, slice(s, endpoints(i%16, 1)))
	}
	return objects
}

// busy makes something happen that the log shows.
func (y *yard) busy() {
	for i := range 6 {
		s := service(1+i%3, "shop", []string{"cart", "catalog", "checkout"}[i%3], tcp("http", 80))
		list := endpoints(1+i%3, 3)
		y.sink.Update([]model.Object{slice(s, list[:len(list)-1-i%4])}, nil)
		time.Sleep(150 * time.Millisecond)
	}
	search := service(7, "shop", "search", tcp("http", 80)) // an endpoint comes and goes
	for i := range 3 {
		y.sink.Update([]model.Object{slice(search, endpoints(7, 2)[:5+i%2])}, nil)
		time.Sleep(150 * time.Millisecond)
	}
	y.changes.Attempted(backend.Attempt{Began: time.Now(), Took: 18 * time.Millisecond, Result: backend.Result{Repaired: 2, Written: 2}})
	y.changes.Attempted(backend.Attempt{Began: time.Now(), Took: 40 * time.Millisecond, Err: errors.New("write the table: no buffer space available; it is tried again")})
}
