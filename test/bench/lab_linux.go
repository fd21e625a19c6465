package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/dataplanes"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/topology"
)

// The addresses of labs, which are the same in each. No pod of a synthetic cluster has any of them.
var (
	labPods   = netip.MustParsePrefix("10.255.0.0/24")
	labClient = nth(labPods, 10)
	labServer = nth(labPods, labServerNumber) // the first of the server's addresses; each address is an endpoint
	clusterIP = netip.AddrPortFrom(nth(ranges4.services, 1<<18), 80)
)

const (
	// labServerNumber is where the server is in labPods, and labServerPort where it listens.
	labServerNumber, labServerPort = 20, 8080
	// measuredEndpoints is how many endpoints the Service has that connections are made to. All are the same pod.
	measuredEndpoints = 5
	// measuredNodePort is the NodePort of the Service that is measured.
	measuredNodePort = 30080
	// mostClients is how many clients connect at once at most: a bigger machine has other things to do than to be measured.
	mostClients = 4
)

func clientsHere() int { return min(max(runtime.NumCPU(), 2), mostClients) }

// labDetector is how a node sees which clients are pods.
var labDetector = state.LocalDetector{ClusterCIDRs: []netip.Prefix{ranges4.pods}}

// The numbers of the namespaces of a lab.
const (
	fromPod = iota
	fromNode
	ofServer
	fromOutside
)

// connectionLab is a node with two pods, and a server in one of them.
type connectionLab struct {
	*topology.Lab
	closers
	namespaces []*os.File
	server     netip.AddrPort
}

// newConnectionLab makes a lab whose server answers.
func newConnectionLab(ctx context.Context) (_ *connectionLab, err error) {
	l := &connectionLab{server: netip.AddrPortFrom(labServer, labServerPort)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.Lab, err = topology.New(ctx, topology.Options{NodePodCIDRs: []netip.Prefix{labPods}}); err != nil {
		return nil, err
	}
	l.add(l.Lab.Close)
	client, err := l.AddPod(topology.PodOptions{Name: "client", Addrs: []netip.Addr{labClient}})
	if err != nil {
		return nil, err
	}
	server, err := l.AddPod(topology.PodOptions{Name: "server", Addrs: serverAddrs()})
	if err != nil {
		return nil, err
	}
	if err := l.open([]*topology.Host{fromPod: client, fromNode: l.Node(), ofServer: server, fromOutside: l.Client()}); err != nil {
		return nil, err
	}
	serving, err := l.worker(ctx, "")
	if err != nil {
		return nil, err
	}
	_, err = serving.connect(ctx, ConnectionOrder{Do: doServe, From: ofServer, To: netip.AddrPortFrom(netip.IPv4Unspecified(), labServerPort)})
	return l, err
}

// open opens the namespaces of hosts for processes that make connections.
func (l *connectionLab) open(hosts []*topology.Host) error {
	for _, h := range hosts {
		// Connections of a slice get ports of their own.
		if err := h.SetSysctls(netns.Sysctl{Path: "net/ipv4/ip_local_port_range", Value: "10000 65000"}, netns.Sysctl{Path: "net/core/somaxconn", Value: "4096"}); err != nil {
			return err
		}
		var ns *os.File
		if err := h.Do(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
			return err
		}
		l.namespaces = append(l.namespaces, ns)
		l.add(ns.Close)
	}
	return nil
}

// worker starts a process that makes connections, in a cgroup unless that is empty.
func (l *connectionLab) worker(ctx context.Context, cgroup string) (w *worker, err error) {
	var in *os.File
	if cgroup != "" {
		if in, err = os.Open(cgroup); err != nil {
			return nil, err
		}
		defer in.Close()
	}
	if w, err = startWorker(ctx, makesConnections, in, l.namespaces); err == nil {
		l.add(w.close)
	}
	return w, err
}

func (w *worker) connect(ctx context.Context, o ConnectionOrder) (a ConnectionAnswer, err error) {
	return a, w.do(ctx, "Do", o, &a)
}

// program starts a process whose dataplane has so many Services, and says what that took. The hooks are for a cgroup of their own.
func (l *connectionLab) program(ctx context.Context, o HolderOrder) (w *worker, a HolderAnswer, cgroup string, err error) {
	if o.Dataplane == nameOfEBPF || o.Dataplane == nameOfHooks {
		if cgroup, err = l.makeCgroup(); err != nil {
			return nil, a, "", err
		}
	}
	o.Node, o.Cgroup = l.Node().Addrs[0], cgroup
	err = l.Node().Do(func() error { // the process is in the network namespace of the thread that starts it
		w, err = startWorker(ctx, holdsDataplane, nil, nil)
		return err
	})
	if err == nil {
		l.add(w.close)
		err = w.do(ctx, "Program", o, &a)
	}
	return w, a, cgroup, err
}

func serverAddrs() (addrs []netip.Addr) {
	for i := range measuredEndpoints {
		addrs = append(addrs, nth(labPods, labServerNumber+i))
	}
	return addrs
}

// measuredObjects are the node, and the Service whose endpoints are the server of a lab.
func measuredObjects(node netip.Addr) []model.Object {
	name := state.ServiceName{Namespace: "bench", Name: "measured"}
	service := &model.Service{Name: name, Type: model.TypeNodePort, ClusterIPs: []netip.Addr{clusterIP.Addr()}}
	slice := &model.EndpointSlice{Namespace: name.Namespace, Name: name.Name + "-1", Service: name.Name, Family: state.IPv4}
	for _, p := range []state.Protocol{state.TCP, state.UDP} {
		service.Ports = append(service.Ports, model.ServicePort{Name: p.String(), Protocol: p, Port: clusterIP.Port(), NodePort: measuredNodePort})
		slice.Ports = append(slice.Ports, model.EndpointPort{Name: p.String(), Protocol: p, Port: labServerPort})
	}
	for _, addr := range serverAddrs() {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: NodeName})
	}
	return []model.Object{
		&model.Node{Name: NodeName, Zone: "zone-a", Addresses: []netip.Addr{node}, PodCIDRs: []netip.Prefix{labPods}}, service, slice,
	}
}

// HolderOrder has a process program Services.
type HolderOrder struct {
	Dataplane           string
	Services, Endpoints int
	// Changes is how many single changes are measured at most.
	Changes int
	// Parts has the parts of hooks and of the dataplane below them measured.
	Parts bool
	// Node is the node's address, and Cgroup what hooks are for.
	Node   netip.Addr
	Cgroup string
}

// HolderAnswer is what came of an order.
type HolderAnswer struct {
	Programming
	// Parts are the figures of hooks (own) and of the dataplane below them (nftables).
	Parts []Result
}

// nameOfEBPF is socket hooks above nftables, and nameOfHooks hooks above nothing.
const nameOfEBPF, nameOfHooks = "ebpf", "hooks"

// holder has a dataplane with Services. It is a process of its own because memory is measured, and because some
// dataplanes serve by themselves.
type holder struct {
	order HolderOrder
	plane dataplanes.Dataplane // nil if it is not open
	hooks *ebpf.Backend        // nil if it is not hooks
	base  timedBackend         // below the hooks
}

// Close ends the dataplane.
func (h *holder) Close() error {
	if h.plane == nil {
		return nil
	}
	err := h.plane.Close()
	h.plane = nil
	return err
}

func (h *holder) open(ctx context.Context) (err error) {
	if h.order.Dataplane == nameOfEBPF || h.order.Dataplane == nameOfHooks {
		h.plane, err = h.openHooks(ctx)
	} else {
		h.plane, err = dataplanes.Open(ctx, h.order.Dataplane, dataplanes.Options{LocalDetector: labDetector})
	}
	return err
}

// changesFor is how long single changes are measured at most.
const changesFor = 2 * time.Second

// Program loads Services, and goes on serving them until the process ends.
func (h *holder) Program(o HolderOrder, a *HolderAnswer) error {
	ctx := context.Background()
	h.order = o
	// The relay of mode userspace takes two for each connection.
	if err := allowFiles(1 << 12); err != nil {
		return err
	}
	s, _ := newStore(brain.Config{LocalDetector: labDetector}, append(Cluster(o.Services, o.Endpoints), measuredObjects(o.Node)...)...)
	defer s.Close()
	first, err := s.Next(ctx, 0)
	if err != nil {
		return err
	}
	runtime.GC() // what came before is not measured
	if a.ColdLoad, err = h.load(ctx, first); err != nil {
		return err
	}
	f := figures{NewReporter(io.Discard, io.Discard), "ebpf", o.Services, o.Endpoints}
	f.report("cold-load/nftables", in("ms", h.base.took), "ms")
	resident.Trim() // as a node does once it is up
	rss, err := RSS()
	if err != nil {
		return err
	}
	a.Memory = MiB(rss)
	var changes []*state.Update
	for _, s := range withNewEndpoint(first.Changed) {
		changes = append(changes, &state.Update{Node: first.Node, Changed: []*state.Service{s}})
	}
	took, below, err := h.each(ctx, changes)
	if err != nil {
		return err
	}
	f.parts("endpoint-change", took, below)
	a.Changes, a.ChangeP50, a.ChangeP99 = len(took), in("ms", Percentile(took, 50)), in("ms", Percentile(took, 99))
	if err := h.apply(ctx, first); err != nil {
		return err
	}
	if o.Parts {
		if err := h.measureHooks(ctx, f, first); err != nil {
			return err
		}
	}
	if err := h.Close(); err != nil {
		return err
	}
	runtime.GC()
	a.WarmRestart, err = h.load(ctx, first)
	if o.Parts {
		f.report("read-back/nftables", in("ms", h.base.took), "ms") // while a process owns the tables, it need not look
		for _, x := range f.results {
			a.Parts = append(a.Parts, x.Result)
		}
	}
	return err
}

// load opens the dataplane and gives it a state, and returns how many milliseconds that takes.
func (h *holder) load(ctx context.Context, u *state.Update) (float64, error) {
	began := time.Now()
	err := h.open(ctx)
	if err == nil {
		err = h.apply(ctx, u)
	}
	return in("ms", time.Since(began)), err
}

func (h *holder) apply(ctx context.Context, u *state.Update) error {
	result, err := h.plane.Apply(ctx, u)
	for name, failed := range result.Failed {
		err = errors.Join(err, fmt.Errorf("service %v: %w", name, failed))
	}
	return err
}

// each applies updates one after the other, as many as are measured. It returns how long each took, and how long the dataplane below hooks took.
func (h *holder) each(ctx context.Context, updates []*state.Update) (took, below []time.Duration, err error) {
	began := time.Now()
	for _, u := range updates {
		if len(took) == h.order.Changes || time.Since(began) > changesFor {
			break
		}
		start := time.Now()
		if err := h.apply(ctx, u); err != nil {
			return nil, nil, err
		}
		took, below = append(took, time.Since(start)), append(below, h.base.took)
	}
	return took, below, nil
}

// parts reports the two parts of changes. The part of the hooks is what the dataplane below them did not take.
func (f figures) parts(name string, took, below []time.Duration) {
	own := make([]time.Duration, len(took))
	for i := range took {
		own[i] = took[i] - below[i]
	}
	for _, part := range []struct {
		name string
		took []time.Duration
	}{{"own", own}, {"nftables", below}} {
		for _, p := range []float64{50, 99} {
			f.report(fmt.Sprintf("%s-p%.0f/%s", name, p, part.name), in("us", Percentile(part.took, p)), "us")
		}
	}
}

// coldLoads and readBacks are how often these are measured: the least counts.
const coldLoads, readBacks = 5, 3

// measureHooks makes measurements that only compare hooks: frontends that go and come, reading back, and a cold load
// without the base.
func (h *holder) measureHooks(ctx context.Context, f figures, first *state.Update) error {
	f.report("memory", MiB(uint64(h.hooks.Status().Memory)), "MiB")
	var changes []*state.Update
	for _, s := range first.Changed[:min(len(first.Changed), nodeChanges)] {
		changes = append(changes, &state.Update{Node: first.Node, Removed: []state.ServiceName{s.Name}},
			&state.Update{Node: first.Node, Changed: []*state.Service{s}})
	}
	took, below, err := h.each(ctx, changes)
	if err != nil {
		return err
	}
	for i, name := range []string{"frontend-removed", "frontend-added"} {
		f.parts(name, everyOther(took[i:]), everyOther(below[i:]))
	}
	if err := h.apply(ctx, first); err != nil {
		return err
	}
	readBack, load := math.MaxFloat64, math.MaxFloat64
	for range readBacks {
		runtime.GC()
		began := time.Now()
		result, err := h.plane.Verify(ctx)
		if err == nil && result.Repaired != 0 {
			err = fmt.Errorf("%d elements were repaired that nobody had touched", result.Repaired)
		}
		if err != nil {
			return err
		}
		readBack = min(readBack, in("ms", time.Since(began)-h.base.took))
	}
	f.report("read-back/own", readBack, "ms")
	defer func(name string) { h.order.Dataplane = name }(h.order.Dataplane)
	h.order.Dataplane = nameOfHooks
	for range coldLoads {
		if err := h.Close(); err != nil {
			return err
		}
		runtime.GC() // what the last load left is not measured
		took, err := h.load(ctx, first)
		if err != nil {
			return err
		}
		load = min(load, took)
	}
	f.report("cold-load/own", load, "ms")
	return nil
}

// everyOther returns the first of each two durations.
func everyOther(all []time.Duration) (half []time.Duration) {
	for pair := range slices.Chunk(all, 2) {
		half = append(half, pair[0])
	}
	return half
}

// Translated returns how many connections the hooks have translated. It fails if they are off, because then they are
// not measured.
func (h *holder) Translated(_ bool, count *uint64) error {
	s := h.hooks.Status()
	if s.State != ebpf.On {
		return fmt.Errorf("hooks are %v: %w", s.State, s.Reason)
	}
	*count = s.Translated
	return nil
}

// timedBackend is a backend, with the time that it took last. Without one it does nothing.
type timedBackend struct {
	backend.Backend
	took time.Duration
}

func (b *timedBackend) Apply(ctx context.Context, u *state.Update) (result backend.Result, err error) {
	began := time.Now()
	if b.Backend != nil {
		result, err = b.Backend.Apply(ctx, u)
	}
	b.took = time.Since(began)
	return result, err
}

func (b *timedBackend) Verify(ctx context.Context) (result backend.Result, err error) {
	began := time.Now()
	if b.Backend != nil {
		result, err = b.Backend.Verify(ctx)
	}
	b.took = time.Since(began)
	return result, err
}

func (b *timedBackend) Disturbed() <-chan struct{} {
	if b.Backend == nil {
		return nil
	}
	return b.Backend.Disturbed()
}

// hooked is socket hooks with their base.
type hooked struct {
	*ebpf.Backend
	closers
}

// Close closes both.
func (h *hooked) Close() error { return h.close() }

// openHooks opens hooks for the processes of a cgroup: only these connect through them. It fails if they are off.
func (h *holder) openHooks(ctx context.Context) (_ dataplanes.Dataplane, err error) {
	all := &hooked{}
	defer func() {
		if err != nil {
			err = errors.Join(err, all.Close())
		}
	}()
	h.base.Backend = nil
	if h.order.Dataplane == nameOfEBPF {
		base, err := nftables.New(ctx, nftables.Options{LocalDetector: labDetector})
		if err != nil {
			return nil, err
		}
		h.base.Backend = base
		all.add(base.Close)
	}
	if all.Backend, err = ebpf.New(&h.base, ebpf.Options{LocalDetector: labDetector, CgroupPath: h.order.Cgroup}); err != nil {
		return nil, err
	}
	all.add(all.Backend.Close)
	h.hooks = all.Backend
	if s := h.hooks.Status(); s.State != ebpf.On {
		return nil, fmt.Errorf("hooks are %v: %w", s.State, s.Reason)
	}
	return all, nil
}

// cgroupPrefix is what the names of cgroups begin with that this makes.
const cgroupPrefix = "switchyard-bench-"

// makeCgroup makes a cgroup, which is removed with the lab, when the processes in it have ended.
func (l *connectionLab) makeCgroup() (string, error) {
	mounted, err := cgroupMount()
	if err != nil {
		return "", err
	}
	path, err := os.MkdirTemp(mounted, cgroupPrefix)
	if err != nil {
		return "", fmt.Errorf("hooks need a cgroup (root): %w", err)
	}
	l.add(func() error { return os.Remove(path) })
	return path, nil
}

// cgroupMount returns where the cgroup2 file system is mounted.
func cgroupMount() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// proc(5): ID, parent, device, root, mount point, options, optional fields, "-", type, ...
		mount, fs, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mount); len(fields) > 4 && strings.HasPrefix(fs, "cgroup2 ") {
			return fields[4], nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted")
}
