package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// DataplanesOptions specify what [Dataplanes] measures.
type DataplanesOptions struct {
	// Options has numbers of Services, 10 and 10,000 by default.
	Options
	// Names are the dataplanes to measure. Default: [DataplaneNames].
	Names []string
	// Rounds is how many slices are measured of each kind of connection, and Slice how long each is. Default: 5, 120 ms.
	Rounds int
	Slice  time.Duration
	// Limit is how long all may take. Measurements that do not fit into it are left out. Default: 3 minutes.
	Limit time.Duration
	// Progress gets a line for each step. Nothing is written if it is nil.
	Progress io.Writer
}

func (o DataplanesOptions) withDefaults() DataplanesOptions {
	o.Options = o.Options.withDefaults(10, 10_000)
	setDefault(&o.Rounds, 5)
	setDefault(&o.Slice, 120*time.Millisecond)
	setDefault(&o.Limit, 3*time.Minute)
	if len(o.Names) == 0 {
		o.Names = DataplaneNames()
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// DataplaneNames are the dataplanes of Linux, with both variants of iptables.
func DataplaneNames() []string {
	return []string{"nftables", nameOfEBPF, "iptables-legacy", "iptables-nft", "ipvs", "userspace"}
}

// DataplaneReport is what [Dataplanes] has measured.
type DataplaneReport struct {
	Machine
	Endpoints   int     `json:"endpoints"`
	Clients     int     `json:"clients"`
	Rounds      int     `json:"rounds"`
	SliceMillis float64 `json:"sliceMillis"`
	// Direct are connections to an endpoint itself, from a pod of its node and from outside, without any dataplane.
	Direct Paths `json:"direct"`
	// Rows are the dataplanes, each with all numbers of Services in order.
	Rows []DataplaneRow `json:"dataplanes"`
}

// DataplaneRow is the measurements of a dataplane at one number of Services.
type DataplaneRow struct {
	Dataplane string `json:"dataplane"`
	Services  int    `json:"services"`
	// Missing is why there is nothing else, or no connections: the dataplane cannot run here, or there was no time left.
	Missing string `json:"missing,omitempty"`
	Programming
	Paths
}

// Programming is what a dataplane needs for Services. Times are milliseconds, memory is MiB.
type Programming struct {
	// ColdLoad is the time from opening the dataplane until all Services are in the kernel. WarmRestart is the same
	// time for another dataplane, which finds them there.
	ColdLoad    float64 `json:"coldLoadMillis"`
	WarmRestart float64 `json:"warmRestartMillis"`
	// ChangeP50 and ChangeP99 are of changes of one endpoint of one Service, Changes how many were made.
	ChangeP50 float64 `json:"changeP50Millis"`
	ChangeP99 float64 `json:"changeP99Millis"`
	Changes   int     `json:"changes"`
	// Memory is the resident memory of a process with all objects of the cluster in it.
	Memory float64 `json:"memoryMiB"`
}

// Paths are connections through the two kinds of frontends.
type Paths struct {
	// ClusterIP is from a pod on the node, NodePort from outside.
	ClusterIP ConnectionFigures `json:"clusterIP"`
	NodePort  ConnectionFigures `json:"nodePort"`
}

// ConnectionFigures are what connections cost. Times are microseconds.
type ConnectionFigures struct {
	// PerSecond is how many connections all clients together make and use in a second.
	PerSecond float64 `json:"connectionsPerSecond"`
	// RequestP50 and RequestP99 are of one client: a connection, a byte there and back, and a reset.
	RequestP50 float64 `json:"requestP50Micros"`
	RequestP99 float64 `json:"requestP99Micros"`
	// PingP50 and PingP99 are of a byte there and back on a connection that stays.
	PingP50 float64 `json:"pingP50Micros"`
	PingP99 float64 `json:"pingP99Micros"`
}

// WriteTables writes the report for people, as two tables in Markdown.
func (r *DataplaneReport) WriteTables(w io.Writer) error {
	programming := table("dataplane", "Services", "cold load, ms", "one change p50, p99, ms", "warm restart, ms", "memory, MiB")
	var neither, noConnections strings.Builder
	for _, row := range r.Rows {
		why := fmt.Sprintf("| %s | %s | %s |\n", row.Dataplane, short(row.Services), row.Missing)
		if row.ColdLoad == 0 {
			neither.WriteString(why)
			continue
		}
		programming.row(row.Dataplane, short(row.Services), readable(row.ColdLoad), both(row.ChangeP50, row.ChangeP99), readable(row.WarmRestart),
			readable(row.Memory))
		if row.Missing != "" {
			noConnections.WriteString(why)
		}
	}
	connections := table("dataplane", "Services", "connections/s", "request p50, p99, µs", "ping p50, p99, µs",
		"by NodePort: connections/s", "request p50, p99, µs", "ping p50, p99, µs")
	add := func(name, services string, p *Paths) {
		cells := []string{name, services}
		for _, f := range []ConnectionFigures{p.ClusterIP, p.NodePort} {
			cells = append(cells, readable(f.PerSecond), both(f.RequestP50, f.RequestP99), both(f.PingP50, f.PingP99))
		}
		connections.row(cells...)
	}
	add("direct", "-", &r.Direct)
	for _, row := range r.Rows {
		if row.Missing == "" {
			add(row.Dataplane, short(row.Services), &row.Paths)
		}
	}
	_, err := fmt.Fprintf(w, "%s%s\n%s%s", programming, neither.String(), connections, noConnections.String())
	return err
}

// both is a median and a 99th percentile.
func both(p50, p99 float64) string { return readable(p50) + ", " + readable(p99) }

const dataplanesText = `# Comparison of the dataplanes

Written by ` + "`switchyard bench dataplanes --out docs/benchmarks`" + ` (%v). Run it on your own node: it works in network namespaces and touches nothing else. [Choose a dataplane](../choose-a-dataplane.md) explains the figures.

%s
- **Cold load** is from opening the dataplane until all Services, with %d endpoints each, are in the kernel. **One change** replaces an endpoint. A **warm restart** is
  another process that finds everything in the kernel as it should be. **Memory** is the resident memory of a process with all objects of the cluster in it.
- **direct** is a connection to the pod itself, without any dataplane. The other connections go to one of that many Services. From a pod on the node they go to the cluster IP, and from outside to the NodePort.
- **connections/s** is how many %d clients and a server on the same machine make: a connection, a byte there and back, and a reset. **request** is the time of this sequence for one client. **ping** is the time of a byte there and back on a connection that stays.
- Other work on the machine only adds to a time. So connections are measured in %d slices of %s ms, with direct and all numbers of Services in turn. Each figure is from the best slice.
`

// WriteDataplanes writes a report to a directory, as dataplanes.md.
func WriteDataplanes(dir string, r *DataplaneReport) error {
	var tables strings.Builder
	if err := r.WriteTables(&tables); err != nil {
		return err
	}
	text := fmt.Sprintf(dataplanesText, &r.Machine, tables.String(), r.Endpoints, r.Clients, r.Rounds, readable(r.SliceMillis))
	return writePage(dir, "dataplanes.md", text)
}

// mostChanges is how many single changes are measured of a dataplane at most.
const mostChanges = 500

// Dataplanes measures dataplanes one after the other, each on nodes of its own. It measures programming, and
// connections through a cluster IP and a NodePort, compared with direct ones. The rows of a dataplane name the features
// that it lacks on this machine. It fails if no connection can be measured at all.
func Dataplanes(ctx context.Context, o DataplanesOptions) (_ *DataplaneReport, err error) {
	o = o.withDefaults()
	slices.Sort(o.Services)
	began := time.Now()
	b := &dataplaneBench{options: o, until: began.Add(o.Limit), clients: clientsHere()}
	b.report = &DataplaneReport{Endpoints: o.Endpoints, Clients: b.clients, Rounds: o.Rounds, SliceMillis: in("ms", o.Slice)}
	if b.report.Machine, err = thisMachine(); err != nil {
		return nil, err
	}
	b.step("a node without a dataplane")
	if b.direct, err = b.newNode(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.direct.close()) }()
	b.report.Direct = worstPaths()
	for i, name := range o.Names {
		left := time.Until(b.until)
		if i < len(o.Names)-1 {
			left /= 2 // one that is slow leaves something to the others
		}
		if err := b.measure(ctx, name, time.Now().Add(left)); err != nil {
			return nil, err
		}
	}
	if b.report.Direct.ClusterIP.RequestP50 == math.MaxFloat64 {
		if err := b.slices(ctx, []*benchNode{b.direct}, []*Paths{&b.report.Direct}); err != nil {
			return nil, err
		}
	}
	b.report.LoadAfter, err = loadAverage()
	return b.report, err
}

// dataplaneBench is what there is while [Dataplanes] measures.
type dataplaneBench struct {
	options DataplanesOptions
	until   time.Time
	clients int
	report  *DataplaneReport
	direct  *benchNode
}

func (b *dataplaneBench) step(format string, args ...any) {
	fmt.Fprintf(b.options.Progress, format+" ...\n", args...)
}

// benchNode is a node with clients, and mostly a dataplane.
type benchNode struct {
	*connectionLab
	clients []*worker
	// clusterIP and nodePort are where connections go to.
	clusterIP, nodePort netip.AddrPort
	holder              *worker // nil without a dataplane
}

// newNode makes a node without a dataplane. Connections go to the server itself.
func (b *dataplaneBench) newNode(ctx context.Context) (*benchNode, error) {
	l, err := newConnectionLab(ctx)
	if err != nil {
		return nil, err
	}
	n := &benchNode{connectionLab: l, clusterIP: l.server, nodePort: l.server}
	return n, b.addClients(ctx, n, "")
}

// addClients makes the node's clients, in a cgroup unless that is empty.
func (b *dataplaneBench) addClients(ctx context.Context, n *benchNode, cgroup string) error {
	for range b.clients {
		c, err := n.worker(ctx, cgroup)
		if err != nil {
			return errors.Join(err, n.close())
		}
		n.clients = append(n.clients, c)
	}
	return nil
}

// measure measures a dataplane with each number of Services, until the deadline at most.
func (b *dataplaneBench) measure(ctx context.Context, name string, deadline time.Time) (err error) {
	limited, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var nodes []*benchNode
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, ignoreKilled(limited, n.close()))
		}
	}()
	first := len(b.report.Rows)
	for _, services := range b.options.Services {
		b.report.Rows = append(b.report.Rows, DataplaneRow{Dataplane: name, Services: services, Paths: worstPaths()})
	}
	rows := b.report.Rows[first:]
	paths := []*Paths{&b.report.Direct}
	for i := range rows {
		b.step("%s: %d services", name, rows[i].Services)
		n, err := b.program(limited, &rows[i])
		if err != nil {
			if err := b.miss(ctx, limited, &rows[i], err); err != nil {
				return err
			}
			if i == 0 { // more Services will not help
				b.report.Rows = b.report.Rows[:first+1]
				return nil
			}
			continue
		}
		nodes, paths = append(nodes, n), append(paths, &rows[i].Paths)
	}
	b.step("%s: connections", name)
	err = b.slices(limited, append([]*benchNode{b.direct}, nodes...), paths)
	for i := range rows {
		if err != nil && rows[i].Missing == "" {
			if err := b.miss(ctx, limited, &rows[i], err); err != nil {
				return err
			}
		}
	}
	return nil
}

// miss notes why there is nothing of a row. It returns an error if everything ends.
func (b *dataplaneBench) miss(ctx, limited context.Context, row *DataplaneRow, err error) error {
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	row.Paths = Paths{}
	row.Missing = strings.Join(strings.Fields(err.Error()), " ")
	if limited.Err() != nil {
		row.Missing = fmt.Sprintf("there is no time for it within %v", b.options.Limit)
	}
	b.step("%s: %s", row.Dataplane, row.Missing)
	return nil
}

// ignoreKilled returns nil for processes that were killed because ctx has ended.
func ignoreKilled(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() != nil {
		return nil
	}
	return err
}

// program makes a node whose dataplane has so many Services.
func (b *dataplaneBench) program(ctx context.Context, row *DataplaneRow) (n *benchNode, err error) {
	l, err := newConnectionLab(ctx)
	if err != nil {
		return nil, err
	}
	n = &benchNode{connectionLab: l, clusterIP: clusterIP, nodePort: netip.AddrPortFrom(l.Node().Addrs[0], measuredNodePort)}
	holder, answer, cgroup, err := l.program(ctx, HolderOrder{
		Dataplane: row.Dataplane, Services: row.Services, Endpoints: b.options.Endpoints, Changes: mostChanges,
	})
	if err != nil {
		return nil, errors.Join(err, ignoreKilled(ctx, n.close()))
	}
	n.holder, row.Programming = holder, answer.Programming
	return n, b.addClients(ctx, n, cgroup)
}

// worstPaths is what any measurement is better than.
func worstPaths() Paths {
	worst := ConnectionFigures{0, math.MaxFloat64, math.MaxFloat64, math.MaxFloat64, math.MaxFloat64}
	return Paths{worst, worst}
}

// slices measures the connections of nodes in turn.
func (b *dataplaneBench) slices(ctx context.Context, nodes []*benchNode, paths []*Paths) error {
	for range b.options.Rounds {
		for i, n := range nodes {
			if err := b.slice(ctx, n, fromPod, n.clusterIP, &paths[i].ClusterIP); err != nil {
				return err
			}
			if err := b.slice(ctx, n, fromOutside, n.nodePort, &paths[i].NodePort); err != nil {
				return err
			}
		}
	}
	return nil
}

// slice measures each kind of connection once.
func (b *dataplaneBench) slice(ctx context.Context, n *benchNode, from int, to netip.AddrPort, best *ConnectionFigures) error {
	order := ConnectionOrder{Do: doRequest, From: from, To: to, For: b.options.Slice}
	one, err := n.clients[0].connect(ctx, order)
	if err != nil {
		return err
	}
	answers, errs := make([]ConnectionAnswer, len(n.clients)), make([]error, len(n.clients))
	var all sync.WaitGroup
	for i, c := range n.clients {
		all.Go(func() { answers[i], errs[i] = c.connect(ctx, order) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	perSecond := 0.0
	for _, a := range answers {
		perSecond += a.PerSecond
	}
	order.Do = doPing
	ping, err := n.clients[0].connect(ctx, order)
	best.PerSecond = max(best.PerSecond, perSecond)
	best.RequestP50, best.RequestP99 = min(best.RequestP50, in("us", one.P50)), min(best.RequestP99, in("us", one.P99))
	best.PingP50, best.PingP99 = min(best.PingP50, in("us", ping.P50)), min(best.PingP99, in("us", ping.P99))
	return err
}
