package balance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/dataplanes"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// EBPF is the mode that [dataplanes] does not have.
const EBPF = "ebpf"

// Modes are all modes of Linux.
func Modes() []string {
	return []string{dataplanes.NFTables, dataplanes.IPTablesLegacy, dataplanes.IPTablesNFT, dataplanes.Userspace, EBPF, dataplanes.IPVS}
}

// Options are what is measured. The zero value is useful.
type Options struct {
	// Modes are the dataplanes. Default: [Modes].
	Modes []string
	// Connections is the number of connections of each row. Default: 20,000.
	Connections int
	// Sigmas is how many standard deviations a share may be off. Default: 4, which chance exceeds once in 16,000 shares.
	Sigmas float64
	// Wait is how long a client may wait that meets a silent endpoint. Default: 4 s, for a quiet machine. Without ejection, it waits for two minutes.
	Wait time.Duration
}

// Row is what came of one check of a mode.
type Row struct {
	Mode, Check string
	Connections int
	// Wanted and Got are shares, as people read them.
	Wanted, Got string
	// Missing is why nothing was measured: the mode cannot do it, or not on this machine.
	Missing string
	// Err is what is wrong.
	Err error
}

// verdict is the last column of a row.
func (r *Row) verdict() string {
	switch {
	case r.Err != nil:
		return "FAIL: " + r.Err.Error()
	case r.Missing != "":
		return r.Missing
	}
	return "ok"
}

// WriteTable writes rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "mode\tcheck\tconnections\twanted\tgot\tresult")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", r.Mode, r.Check, r.Connections, r.Wanted, r.Got, r.verdict())
	}
	return t.Flush()
}

// Failed reports whether something is wrong.
func Failed(rows []Row) bool {
	return slices.ContainsFunc(rows, func(r Row) bool { return r.Err != nil })
}

// mostMoved is the share of other endpoints' clients that may move when one of ten endpoints leaves.
const mostMoved = 0.03

// Measure checks the modes one after the other. The error says why it could not go on. The rows say where a dataplane is wrong.
func Measure(ctx context.Context, o Options, progress func(Row)) (rows []Row, err error) {
	if len(o.Modes) == 0 {
		o.Modes = Modes()
	}
	if o.Connections == 0 {
		o.Connections = 20_000
	}
	if o.Sigmas == 0 {
		o.Sigmas = 4
	}
	if o.Wait == 0 {
		o.Wait = 4 * time.Second
	}
	for _, mode := range o.Modes {
		m := measurement{mode: mode, connections: o.Connections, sigmas: o.Sigmas, wait: o.Wait, report: func(r Row) {
			rows = append(rows, r)
			progress(r)
		}}
		if err := m.run(ctx); err != nil {
			return rows, fmt.Errorf("mode %s: %w", mode, err)
		}
	}
	return rows, nil
}

// measurement is one mode.
type measurement struct {
	mode        string
	connections int
	sigmas      float64
	wait        time.Duration
	report      func(Row)
}

func (m *measurement) run(ctx context.Context) (err error) {
	var nodes [2]*node
	for i := range nodes {
		nodes[i], err = newNode(ctx, m.mode)
		if _, absent := errors.AsType[*absentError](err); absent {
			m.report(Row{Mode: m.mode, Check: "all", Missing: "cannot run here: " + err.Error()})
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, nodes[i].close()) }()
	}
	if err := m.weights(ctx, nodes[0]); err != nil {
		return err
	}
	for _, by := range []string{"hash", "hash-connection"} {
		if err := m.hash(ctx, nodes, by); err != nil {
			return err
		}
	}
	return m.stuck(ctx, nodes[0])
}

// weights checks shares by weights, also next to a share that is refused. Three of the weights are exact in slots of any class.
func (m *measurement) weights(ctx context.Context, n *node) error {
	for _, c := range []struct {
		check   string
		refused uint32
		weights []int
		// rounding is by how much a dataplane with slots may miss a share.
		rounding float64
	}{
		{"weights", 0, []int{20, 8, 4}, 0},
		{"weights, changed", 0, []int{4, 4, 24}, 0},
		{"weights, rounded", 0, []int{80, 15, 5}, 0.01},
		{"refused share", 48, []int{12, 4}, 0},
	} {
		row := Row{Mode: m.mode, Check: c.check, Connections: m.connections}
		if backend.FeaturesOf(n.dataplane)&state.Weights == 0 {
			row.Missing = "this mode has no weights"
			m.report(row)
			continue
		}
		var parts []slicePart
		for i, w := range c.weights {
			parts = append(parts, slicePart{fmt.Sprint(w), []int{i}})
		}
		n.refused = c.refused
		if err := n.apply(ctx, "", parts...); err != nil {
			return err
		}
		before := n.through()
		got, err := n.count(ctx, m.connections)
		if err != nil {
			row.Err = err
			m.report(row)
			continue
		}
		// A refused share is left to the base.
		if through := n.through() - before; m.mode == EBPF && c.refused == 0 && through < uint64(m.connections) {
			row.Err = fmt.Errorf("hooks have translated %d of the connections", through)
		}
		sum := float64(c.refused)
		for _, w := range c.weights {
			sum += float64(w)
		}
		var wanted, counted []string
		check := func(name string, weight float64) {
			share := weight / sum
			wanted = append(wanted, percent(share))
			counted = append(counted, percent(float64(got[name])/float64(m.connections)))
			if err := offBy(got[name], m.connections, share, m.sigmas, c.rounding); err != nil && row.Err == nil {
				row.Err = err
			}
			delete(got, name)
		}
		for i, w := range c.weights {
			check(serverName(i), float64(w))
		}
		if c.refused > 0 {
			check("", float64(c.refused))
		}
		if len(got) > 0 && row.Err == nil {
			row.Err = fmt.Errorf("other outcomes: %v", got)
		}
		row.Wanted, row.Got = strings.Join(wanted, " "), strings.Join(counted, " ")
		m.report(row)
	}
	n.refused = 0
	return nil
}

// offBy returns an error if a number of connections differs from a share by more than chance and rounding explain.
func offBy(got, connections int, share, sigmas, rounding float64) error {
	n := float64(connections)
	deviation := math.Sqrt(share * (1 - share) / n)
	if off := math.Abs(float64(got)/n - share); off > sigmas*deviation+rounding {
		return fmt.Errorf("%d of %d connections are %.1f standard deviations from %s", got, connections, off/deviation, percent(share))
	}
	return nil
}

// hash checks on two nodes that a client, or a connection, has the same endpoint on both. The second node gets the endpoints in another order, and comes
// from another state. Then one endpoint leaves.
func (m *measurement) hash(ctx context.Context, nodes [2]*node, by string) error {
	row := Row{Mode: m.mode, Check: by + ", two nodes", Connections: 2 * m.connections, Wanted: "the same"}
	if backend.FeaturesOf(nodes[0].dataplane)&state.Balances == 0 {
		row.Missing = "this mode draws at random"
		m.report(row)
		return nil
	}
	if err := nodes[1].apply(ctx, "random", slicePart{"", []int{3, 5}}); err != nil {
		return err
	}
	orders := [2][]slicePart{
		{{"", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}},
		{{"", []int{9, 8, 7, 6}}, {"", []int{5, 4, 3, 2, 1, 0}}},
	}
	var went [2]map[netip.AddrPort]string
	for i, n := range nodes {
		if err := n.apply(ctx, by, orders[i]...); err != nil {
			return err
		}
		var err error
		if went[i], err = n.survey(ctx, m.connections); err != nil {
			row.Err = err
			m.report(row)
			return nil
		}
	}
	row.Connections = len(went[0]) + len(went[1])
	differ, ofClient, torn := 0, map[netip.Addr]string{}, map[netip.Addr]bool{}
	for from, server := range went[0] {
		if went[1][from] != server {
			differ++
		}
		if was := ofClient[from.Addr()]; was != "" && was != server {
			torn[from.Addr()] = true
		}
		ofClient[from.Addr()] = server
	}
	row.Got = fmt.Sprintf("%d differ", differ)
	switch {
	case differ > 0:
		row.Err = fmt.Errorf("%d connections have another endpoint on the second node", differ)
	case by == "hash" && len(torn) > 0:
		row.Err = fmt.Errorf("%d clients have several endpoints", len(torn))
	case by != "hash" && len(torn) == 0:
		row.Err = errors.New("each client has a single endpoint, whatever its port")
	}
	m.report(row)
	return m.leave(ctx, nodes[0], by, went[0])
}

// leave checks how many connections to other endpoints move when one of ten endpoints leaves.
func (m *measurement) leave(ctx context.Context, n *node, by string, before map[netip.AddrPort]string) error {
	row := Row{Mode: m.mode, Check: by + ", one of ten leaves", Connections: m.connections, Wanted: "at most " + percent(mostMoved)}
	if err := n.apply(ctx, by, slicePart{"", []int{0, 1, 2, 3, 5, 6, 7, 8, 9}}); err != nil {
		return err
	}
	after, err := n.survey(ctx, m.connections)
	if err != nil {
		row.Err = err
		m.report(row)
		return nil
	}
	row.Connections = len(after)
	others, moved := 0, 0
	for from, server := range before {
		if server == serverName(4) {
			continue
		}
		if others++; after[from] != server {
			moved++
		}
	}
	share := float64(moved) / float64(max(1, others))
	row.Got = fmt.Sprintf("%s of %d", percent(share), others)
	if share > mostMoved || others < len(before)/2 || others == len(before) {
		row.Err = fmt.Errorf("%d of %d connections to other endpoints have moved", moved, others)
	}
	m.report(row)
	return nil
}

func percent(share float64) string { return fmt.Sprintf("%.2f%%", 100*share) }

// absentError is why a mode cannot run on this machine.
type absentError struct{ error }

const (
	// endpoints is how many servers a node has, in each family.
	endpoints = 10
	// clients is how many addresses clients have in each family.
	clients = 500
	// atOnce is how many connections are made at the same time.
	atOnce = 32
	// patience is how long an answer may take. It is only used up by a fault.
	patience = 20 * time.Second
	port     = 8080
)

func serverName(i int) string { return fmt.Sprint("server-", i) }

var (
	podCIDRs   = []netip.Prefix{netip.MustParsePrefix("10.240.0.0/16"), netip.MustParsePrefix("fd00:10:240::/64")}
	clusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}
	families   = []state.Family{state.IPv4, state.IPv6}
	service    = state.ServiceName{Namespace: "default", Name: "web"}
)

// node is a node with a dataplane, servers and clients.
type node struct {
	lab       *topology.Lab
	dataplane dataplanes.Dataplane
	// through counts connections that hooks have translated, if there are any.
	through func() uint64
	clients *topology.Host

	store   *store.Store
	sink    model.Sink
	applied state.Revision
	slices  []string // names of those that are there
	// refused is the weight of a share that is refused, and ejects whether the service asks for ejection.
	refused uint32
	ejects  bool
	// disturbed has a value when the dataplane asks for a comparison.
	disturbed <-chan struct{}
}

func newNode(ctx context.Context, mode string) (_ *node, err error) {
	lab, err := topology.New(ctx, topology.Options{NodePodCIDRs: podCIDRs})
	if err != nil {
		return nil, err
	}
	detector := state.LocalDetector{ClusterCIDRs: podCIDRs}
	n := &node{lab: lab, through: func() uint64 { return 0 }}
	n.store = store.New(store.Options{Brain: brain.Config{NodeName: lab.Node().Name, LocalDetector: detector}})
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	servers, err := lab.AddPod(topology.PodOptions{Name: "servers", Addrs: addrs(1, endpoints)})
	if err != nil {
		return nil, err
	}
	for i, a := range servers.Addrs {
		if err := servers.Serve(state.TCP, netip.AddrPortFrom(a, port), serverName(i%endpoints)); err != nil {
			return nil, err
		}
	}
	if n.clients, err = lab.AddPod(topology.PodOptions{Name: "clients", Addrs: addrs(1000, clients)}); err != nil {
		return nil, err
	}
	err = lab.Node().Do(func() (err error) {
		if mode == EBPF {
			var translated atomic.Uint64
			pair, err := sockethooks.NewPair(ctx, sockethooks.Of(lab), nftables.Options{LocalDetector: detector}, &translated)
			if err == nil {
				n.dataplane, n.through = pair, func() uint64 { return pair.Status().Translated }
			}
			return err
		}
		n.dataplane, err = dataplanes.Open(ctx, mode, dataplanes.Options{LocalDetector: detector})
		return err
	})
	if err != nil {
		return nil, &absentError{err}
	}
	n.disturbed = n.dataplane.Disturbed()
	n.sink = n.store.Source("balance")
	n.sink.Update([]model.Object{&model.Node{Name: lab.Node().Name, Addresses: lab.Node().Addrs}}, nil)
	n.sink.Complete()
	return n, nil
}

// addrs returns n addresses of each family, from a number on, one family after the other.
func addrs(from, n int) (list []netip.Addr) {
	for _, cidr := range podCIDRs {
		addr := cidr.Addr()
		for range from {
			addr = addr.Next()
		}
		for range n {
			list = append(list, addr)
			addr = addr.Next()
		}
	}
	return list
}

func (n *node) close() error {
	n.store.Close()
	var err error
	if n.dataplane != nil {
		err = n.dataplane.Close()
	}
	return errors.Join(err, n.lab.Close())
}

// slicePart is an EndpointSlice in each family, with a weight, or without one if that is empty.
type slicePart struct {
	weight  string
	servers []int
}

// apply programs the service with endpoints, and with an annotation unless that is empty.
func (n *node) apply(ctx context.Context, balance string, parts ...slicePart) error {
	svc := &model.Service{Name: service, ClusterIPs: clusterIPs, Ports: []model.ServicePort{{Protocol: state.TCP, Port: port}}}
	if balance != "" {
		svc.Annotations = []model.Annotation{{Name: model.BalanceAnnotation, Value: balance}}
	}
	if n.ejects {
		svc.Annotations = append(svc.Annotations, model.Annotation{Name: model.EjectAnnotation, Value: "true"})
	}
	var deleted []model.Ref
	for _, name := range n.slices {
		deleted = append(deleted, model.Ref{Kind: model.KindEndpointSlice, Namespace: service.Namespace, Name: name})
	}
	n.sink.Update(nil, deleted)
	n.slices = nil
	set := []model.Object{svc}
	for i, p := range parts {
		for j, f := range families {
			name := fmt.Sprintf("web-%d-%d", i, j)
			n.slices = append(n.slices, name)
			s := &model.EndpointSlice{
				Namespace: service.Namespace, Name: name, Service: service.Name, Family: f, Weight: p.weight,
				Ports: []model.EndpointPort{{Protocol: state.TCP, Port: port}},
			}
			for _, server := range p.servers {
				s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: n.endpoint(j, server), Ready: true, Serving: true, NodeName: n.lab.Node().Name})
			}
			set = append(set, s)
		}
	}
	n.sink.Update(set, nil)
	u, err := n.store.Next(ctx, n.applied)
	if err != nil {
		return err
	}
	if n.refused > 0 {
		u = u.Convert(n.refusing)
	}
	result, err := n.dataplane.Apply(ctx, u.For(backend.FeaturesOf(n.dataplane)))
	if err != nil {
		return err
	}
	n.applied = u.Revision
	return result.Failed[service]
}

// endpoint returns the address of a server in a family, by their numbers.
func (n *node) endpoint(family, server int) netip.Addr {
	if server >= endpoints {
		return n.lab.Pod(serverName(server)).Addrs[family]
	}
	return n.lab.Pod("servers").Addrs[family*endpoints+server]
}

// refusing returns a record whose routes refuse a share.
func (n *node) refusing(s *state.Service) *state.Service {
	with := *s
	with.Ports = slices.Clone(s.Ports)
	for i := range with.Ports {
		for _, r := range with.Ports[i].Routes() {
			if r.Weighted() {
				r.Refused = n.refused
			}
		}
	}
	return &with
}

// count makes connections, half of them in each family, and returns how often each server answered. The empty name is for what was refused.
func (n *node) count(ctx context.Context, connections int) (map[string]int, error) {
	got := map[string]int{}
	for _, ip := range clusterIPs {
		answers := n.clients.ProbeMany(ctx, connections/len(clusterIPs), atOnce, state.TCP, netip.AddrPortFrom(ip, port), topology.ProbeOptions{Timeout: patience})
		for _, a := range answers {
			// A relay has accepted a connection before it refuses it.
			isRefused := n.refused > 0 && (a.Outcome == topology.Refused || a.Outcome == topology.Broken)
			if a.Outcome != topology.Answered && !isRefused {
				return nil, fmt.Errorf("a connection was %v: %w", a.Outcome, a.Err)
			}
			got[a.Server]++
		}
	}
	return got, nil
}

// survey makes connections from all clients, two from each at least, from the same ports each time, and returns who answered.
func (n *node) survey(ctx context.Context, connections int) (map[netip.AddrPort]string, error) {
	const firstPort = 20_000
	went := map[netip.AddrPort]string{}
	var mu sync.Mutex // guards went and errs
	var errs []error
	var workers sync.WaitGroup
	work := make(chan netip.Addr)
	each := max(2, connections/len(n.clients.Addrs))
	for range atOnce {
		workers.Go(func() {
			for from := range work {
				to := clusterIPs[0]
				if from.Is6() {
					to = clusterIPs[1]
				}
				for i := range each {
					source := netip.AddrPortFrom(from, uint16(firstPort+i))
					a := n.clients.Probe(ctx, state.TCP, netip.AddrPortFrom(to, port), topology.ProbeOptions{Timeout: patience, Source: from, SourcePort: source.Port()})
					mu.Lock()
					if went[source] = a.Server; a.Outcome != topology.Answered {
						errs = append(errs, fmt.Errorf("a connection from %v was %v: %w", source, a.Outcome, a.Err))
					}
					mu.Unlock()
				}
			}
		})
	}
	for _, from := range n.clients.Addrs {
		work <- from
	}
	close(work)
	workers.Wait()
	if len(errs) > 0 {
		return nil, fmt.Errorf("%d connections failed, the first: %w", len(errs), errs[0])
	}
	return went, nil
}
