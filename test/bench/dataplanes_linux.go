package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// measuredNodePort is the NodePort of the Service that is measured.
const measuredNodePort = 30080

// mostClients is how many clients connect at once at most: a bigger machine has other things to do than to be measured.
const mostClients = 4

// Dataplanes measures dataplanes one after the other, each on nodes of its own: programming, and connections through
// a cluster IP and a NodePort, next to direct ones. The rows of a dataplane say what it lacks on this machine. It
// fails if no connection can be measured at all.
func Dataplanes(ctx context.Context, o DataplanesOptions) (_ *DataplaneReport, err error) {
	o = o.withDefaults()
	slices.Sort(o.Services)
	began := time.Now()
	b := &dataplaneBench{options: o, until: began.Add(o.Limit), clients: min(max(runtime.NumCPU(), 2), mostClients)}
	b.report = newDataplaneReport(&o, b.clients)
	if err := describeMachine(b.report); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.cgroups.remove()) }()
	b.step("a node without a dataplane")
	if b.direct, err = b.newNode(ctx, nil); err != nil {
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
	cgroups cgroups
	direct  *benchNode
}

func (b *dataplaneBench) step(format string, args ...any) {
	fmt.Fprintf(b.options.Progress, format+" ...\n", args...)
}

func describeMachine(r *DataplaneReport) (err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return os.NewSyscallError("uname", err)
	}
	r.Kernel = unix.ByteSliceToString(name.Release[:])
	r.LoadBefore, err = loadAverage()
	return err
}

// loadAverage returns how busy the machine was in the last minute.
func loadAverage() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	average, _, _ := strings.Cut(string(text), " ")
	return average, nil
}

// benchNode is a node with clients, and mostly a dataplane.
type benchNode struct {
	*connectionLab
	clients []*connectionWorker
	// clusterIP and nodePort are where connections go to.
	clusterIP, nodePort netip.AddrPort
	holder              *connectionWorker // nil without a dataplane
}

func (n *benchNode) close() error {
	var errs []error
	for _, c := range n.clients {
		errs = append(errs, c.close())
	}
	if n.holder != nil {
		errs = append(errs, n.holder.close())
	}
	return errors.Join(append(errs, n.connectionLab.close())...)
}

// newNode makes a node whose clients are in a cgroup, unless that is nil. Connections go to the server itself.
func (b *dataplaneBench) newNode(ctx context.Context, cgroup *os.File) (*benchNode, error) {
	l, err := newConnectionLab(ctx, b.options.Connections)
	if err != nil {
		return nil, err
	}
	n := &benchNode{connectionLab: l, clusterIP: l.server, nodePort: l.server}
	for range b.clients {
		c, err := startConnectionWorker(b.options.Connections(ctx), cgroup, l.namespaces)
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		n.clients = append(n.clients, c)
	}
	return n, nil
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
func (b *dataplaneBench) program(ctx context.Context, row *DataplaneRow) (_ *benchNode, err error) {
	o := holderOrder{Dataplane: row.Dataplane, Services: row.Services, Endpoints: b.options.Endpoints}
	var cgroup *os.File
	if row.Dataplane == nameOfEBPF {
		if o.Cgroup, err = b.cgroups.make(); err != nil {
			return nil, err
		}
		if cgroup, err = os.Open(o.Cgroup); err != nil {
			return nil, err
		}
		defer cgroup.Close()
	}
	n, err := b.newNode(ctx, cgroup)
	if err != nil {
		return nil, err
	}
	o.Node = n.Node().Addrs[0]
	var answer holderAnswer
	err = n.Node().Do(func() error { // the process is in the network namespace of the thread that starts it
		n.holder, err = startConnectionWorker(b.options.Holder(ctx), nil, nil)
		return err
	})
	if err == nil {
		err = n.holder.ask(ctx, o, &answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err != nil {
		return nil, errors.Join(err, ignoreKilled(ctx, n.close()))
	}
	row.Programming = answer.Programming
	n.clusterIP, n.nodePort = clusterIP, netip.AddrPortFrom(o.Node, measuredNodePort)
	return n, nil
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
	order := connectionOrder{Do: doRequest, From: from, To: to, For: b.options.Slice}
	one, err := n.clients[0].do(ctx, order)
	if err != nil {
		return err
	}
	answers, errs := make([]connectionAnswer, len(n.clients)), make([]error, len(n.clients))
	var all sync.WaitGroup
	for i, c := range n.clients {
		all.Go(func() { answers[i], errs[i] = c.do(ctx, order) })
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
	ping, err := n.clients[0].do(ctx, order)
	best.PerSecond = max(best.PerSecond, perSecond)
	best.RequestP50, best.RequestP99 = min(best.RequestP50, Microseconds(one.P50)), min(best.RequestP99, Microseconds(one.P99))
	best.PingP50, best.PingP99 = min(best.PingP50, Microseconds(ping.P50)), min(best.PingP99, Microseconds(ping.P99))
	return err
}
