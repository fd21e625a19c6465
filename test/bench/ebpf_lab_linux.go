package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/topology"
)

// The addresses of labs, which are the same in each. No pod of a synthetic cluster has any of them.
var (
	labPods   = netip.MustParsePrefix("10.255.0.0/24")
	labClient = nth(labPods, 10)
	labServer = nth(labPods, labServerNumber) // the first of the server's addresses, each of which is an endpoint
	clusterIP = netip.AddrPortFrom(nth(ranges4.services, 1<<18), 80)
)

// Where the server is in labPods, and where it listens.
const labServerNumber, labServerPort = 20, 8080

// labDetector is how a node sees which clients are pods.
var labDetector = state.LocalDetector{ClusterCIDRs: []netip.Prefix{ranges4.pods}}

// The numbers of the namespaces of a lab.
const (
	fromPod = iota
	fromNode
	ofServer
)

// ebpfLab is a node with two pods, and so many Services in netfilter.
type ebpfLab struct {
	*topology.Lab
	services   int
	namespaces []*os.File
	server     netip.AddrPort
	serving    *connectionWorker
	// first is the state of the node, and added are more Services. base is nftables and hooks are above it; all are nil without Services.
	first *state.Update
	added []*state.Service
	base  *timedBackend
	hooks *hooks
	// coldLoad is how long nftables has needed for the first state.
	coldLoad time.Duration
	// alone are hooks without nftables.
	alone []*hooks
	// closers are called in reverse order.
	closers []func() error
}

func (l *ebpfLab) close() (err error) {
	for _, h := range l.alone {
		err = errors.Join(err, h.close())
	}
	for i := range l.closers {
		err = errors.Join(err, l.closers[len(l.closers)-1-i]())
	}
	return err
}

func (l *ebpfLab) allHooks() []*hooks {
	if l.hooks == nil {
		return l.alone
	}
	return append([]*hooks{l.hooks}, l.alone...)
}

// newLab makes a lab with so many Services and the one that is measured, or none at all.
func (b *ebpfBench) newLab(ctx context.Context, services int) (_ *ebpfLab, err error) {
	l := &ebpfLab{services: services, server: netip.AddrPortFrom(labServer, labServerPort)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.Lab, err = topology.New(ctx, topology.Options{NodePodCIDRs: []netip.Prefix{labPods}}); err != nil {
		return nil, err
	}
	l.closers = append(l.closers, l.Close)
	client, err := l.AddPod(topology.PodOptions{Name: "client", Addrs: []netip.Addr{labClient}})
	if err != nil {
		return nil, err
	}
	server, err := l.AddPod(topology.PodOptions{Name: "server", Addrs: serverAddrs()})
	if err != nil {
		return nil, err
	}
	for _, h := range []*topology.Host{fromPod: client, fromNode: l.Node(), ofServer: server} {
		// Connections of a slice get ports of their own.
		if err := h.SetSysctls(netns.Sysctl{Path: "net/ipv4/ip_local_port_range", Value: "10000 65000"}, netns.Sysctl{Path: "net/core/somaxconn", Value: "4096"}); err != nil {
			return nil, err
		}
		var ns *os.File
		if err := h.Do(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
			return nil, err
		}
		l.namespaces = append(l.namespaces, ns)
		l.closers = append(l.closers, ns.Close)
	}
	if l.serving, err = startConnectionWorker(b.options.Worker(ctx), nil, l.namespaces); err != nil {
		return nil, err
	}
	l.closers = append(l.closers, l.serving.close)
	listen := netip.AddrPortFrom(netip.IPv4Unspecified(), labServerPort)
	if _, err := l.serving.do(ctx, connectionOrder{Do: doServe, From: ofServer, To: listen}); err != nil {
		return nil, err
	}
	if services == 0 {
		return l, nil
	}
	return l, b.program(ctx, l)
}

func serverAddrs() (addrs []netip.Addr) {
	for i := range measuredEndpoints {
		addrs = append(addrs, nth(labPods, labServerNumber+i))
	}
	return addrs
}

// program loads the Services of a lab.
func (b *ebpfBench) program(ctx context.Context, l *ebpfLab) (err error) {
	node := &model.Node{Name: NodeName, Zone: "zone-a", Addresses: l.Node().Addrs[:1], PodCIDRs: []netip.Prefix{labPods}}
	service := &model.Service{
		Name:       state.ServiceName{Namespace: "bench", Name: "measured"},
		Ports:      []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: clusterIP.Port()}},
		ClusterIPs: []netip.Addr{clusterIP.Addr()},
	}
	slice := &model.EndpointSlice{
		Namespace: service.Name.Namespace, Name: service.Name.Name + "-1", Service: service.Name.Name, Family: state.IPv4,
		Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: labServerPort}},
	}
	for _, addr := range serverAddrs() {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: NodeName})
	}
	config := brain.Config{NodeName: NodeName, LocalDetector: labDetector}
	if l.first, l.added, err = records(ctx, config, l.services, b.options.Endpoints, node, service, slice); err != nil {
		return err
	}
	l.base = &timedBackend{}
	if err := l.openBase(ctx); err != nil {
		return err
	}
	l.closers = append(l.closers, func() error { return l.base.close() })
	if l.hooks, err = b.cgroups.newHooks(l, l.base); err != nil {
		return err
	}
	l.closers = append(l.closers, l.hooks.close)
	_, err = l.hooks.Apply(ctx, l.first)
	l.coldLoad = l.base.took
	return err
}

// openBase opens the nftables dataplane on the node.
func (l *ebpfLab) openBase(ctx context.Context) error {
	return l.Node().Do(func() error {
		base, err := nftables.New(ctx, nftables.Options{LocalDetector: labDetector})
		if err == nil {
			l.base.Backend, l.base.close = base, base.Close
		}
		return err
	})
}

// restart starts the nftables dataplane anew, and returns how long it needs for a state that has not changed. The hooks cannot be used after it.
func (l *ebpfLab) restart(ctx context.Context) (time.Duration, error) {
	if err := l.base.close(); err != nil {
		return 0, err
	}
	if err := l.openBase(ctx); err != nil {
		return 0, err
	}
	runtime.GC() // what was there before is not measured
	_, err := l.base.Apply(ctx, l.first)
	return l.base.took, err
}

// timedBackend is a backend, with the time that it took last.
type timedBackend struct {
	backend.Backend
	took  time.Duration
	close func() error
}

func (b *timedBackend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	began := time.Now()
	result, err := b.Backend.Apply(ctx, u)
	b.took = time.Since(began)
	return result, err
}

func (b *timedBackend) Verify(ctx context.Context) (backend.Result, error) {
	began := time.Now()
	result, err := b.Backend.Verify(ctx)
	b.took = time.Since(began)
	return result, err
}

// nothing is a dataplane that does nothing, below hooks that are measured alone.
type nothing struct{}

func (nothing) Apply(context.Context, *state.Update) (backend.Result, error) {
	return backend.Result{}, nil
}
func (nothing) Verify(context.Context) (backend.Result, error) { return backend.Result{}, nil }
func (nothing) Disturbed() <-chan struct{}                     { return nil }

// hooks are those of one cgroup: only processes in it connect through them, so that other variants on the same machine do without.
type hooks struct {
	*ebpf.Backend
	cgroup *os.File
	// expected counts the connections that the processes have made through a cluster IP.
	expected uint64
}

func (h *hooks) close() error { return errors.Join(h.Backend.Close(), h.cgroup.Close()) }

// cgroupPrefix is what the names of cgroups begin with that this makes.
const cgroupPrefix = "switchyard-bench-"

// cgroups are directories for hooks, in one that is made with the first.
type cgroups struct {
	parent string
	made   []string
}

// newHooks attaches hooks on a lab's node, in a cgroup of their own. It fails if they are off.
func (c *cgroups) newHooks(l *ebpfLab, base backend.Backend) (*hooks, error) {
	path, err := c.make()
	if err != nil {
		return nil, err
	}
	h := &hooks{}
	if h.cgroup, err = os.Open(path); err != nil {
		return nil, err
	}
	err = l.Node().Do(func() error {
		h.Backend, err = ebpf.New(base, ebpf.Options{LocalDetector: labDetector, CgroupPath: path})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, h.cgroup.Close())
	}
	if err := h.check(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// make makes a cgroup.
func (c *cgroups) make() (string, error) {
	if c.parent == "" {
		mounted, err := cgroupMount()
		if err != nil {
			return "", err
		}
		if c.parent, err = os.MkdirTemp(mounted, cgroupPrefix); err != nil {
			return "", fmt.Errorf("hooks need a cgroup (root): %w", err)
		}
	}
	path := filepath.Join(c.parent, fmt.Sprint(len(c.made)))
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", err
	}
	c.made = append(c.made, path)
	return path, nil
}

// remove removes all cgroups. The processes in them must have ended.
func (c *cgroups) remove() error {
	if c.parent == "" {
		return nil
	}
	var errs []error
	for _, path := range append(c.made, c.parent) {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
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
