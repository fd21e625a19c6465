package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// userspaceServices is how many Services there are in addition to the measured one.
const userspaceServices = 10

// Userspace measures the relay of mode userspace, HAProxy, the kernel and direct connections, in one run. Without
// HAProxy, its column stays empty.
func Userspace(ctx context.Context, r *Reporter, o UserspaceOptions) (_ *UserspaceReport, err error) {
	setDefault(&o.Rounds, 8)
	setDefault(&o.Slice, 250*time.Millisecond)
	setDefault(&o.Held, 10_000)
	if err := allowFiles(1<<12 + 4*o.Held); err != nil {
		return nil, err
	}
	b := &userspaceBench{
		dataplaneBench: dataplaneBench{
			options: DataplanesOptions{Options: Options{Endpoints: measuredEndpoints}, Slice: o.Slice, Connections: o.Connections, Holder: o.Holder, Progress: r.table},
			clients: min(max(runtime.NumCPU(), 2), mostClients),
		},
		options: o, reporter: r,
		result: &UserspaceReport{Values: map[string]float64{}, Held: o.Held, Rounds: o.Rounds, Slice: o.Slice},
	}
	b.result.Clients = b.clients
	if b.result.LoadBefore, err = loadAverage(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.setUp(ctx); err != nil {
		return nil, err
	}
	for range o.Rounds {
		for _, w := range b.ways {
			if err := b.round(ctx, w); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	for _, w := range b.ways {
		if w.process > 0 {
			if err := b.memory(ctx, w); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	for _, row := range userspaceRows {
		for _, w := range b.ways {
			if v, ok := b.result.Values[row.name+"/"+w.name]; ok {
				r.Report(Result{"userspace/" + row.name + "/" + w.name, userspaceServices, measuredEndpoints, v, unitOfUserspace(row.name)})
			}
		}
	}
	b.result.LoadAfter, err = loadAverage()
	return b.result, err
}

func unitOfUserspace(row string) string {
	switch what, _, _ := strings.Cut(row, "-"); what {
	case "stream":
		if row == "stream-cpu" {
			return "ms"
		}
		return "Gbit/s"
	case "memory":
		return "MiB"
	case "request", "ping":
		return "us" // also processor time
	}
	return "1/s"
}

type userspaceBench struct {
	dataplaneBench
	options  UserspaceOptions
	reporter *Reporter
	ways     []*way
	closers  []func() error
	result   *UserspaceReport
}

// way is a way of connections.
type way struct {
	name string
	node *benchNode
	to   netip.AddrPort
	// process is the relaying process, 0 if there is none. udp reports whether datagrams also go this way.
	process int
	udp     bool
}

func (b *userspaceBench) close() (err error) {
	for i := range b.closers {
		err = errors.Join(err, b.closers[len(b.closers)-1-i]())
	}
	return err
}

func (b *userspaceBench) setUp(ctx context.Context) error {
	direct, err := b.newNode(ctx, nil)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, direct.close)
	b.ways = append(b.ways, &way{wayDirect, direct, direct.server, 0, true})
	for _, name := range []string{wayKernel, wayRelay} {
		n, err := b.program(ctx, &DataplaneRow{Dataplane: name, Services: userspaceServices})
		if err != nil {
			return err
		}
		b.closers = append(b.closers, n.close)
		w := &way{name, n, n.clusterIP, 0, true}
		if name == wayRelay {
			w.process = n.holder.cmd.Process.Pid
		}
		b.ways = append(b.ways, w)
	}
	return b.startHAProxy(ctx, b.ways[1].node)
}

// haproxyPort is where HAProxy listens on its node.
const haproxyPort = 8888

// startHAProxy starts HAProxy on a node, if it is installed.
func (b *userspaceBench) startHAProxy(ctx context.Context, n *benchNode) error {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		b.result.HAProxy = "HAProxy was not installed"
		b.reporter.Note("HAProxy is not measured: %v; apt-get install haproxy", err)
		return nil
	}
	version, err := exec.CommandContext(ctx, program, "-v").Output()
	if err != nil {
		return err
	}
	b.result.HAProxy, _, _ = strings.Cut(string(version), " - ")
	dir, err := os.MkdirTemp("", "switchyard-bench-")
	if err != nil {
		return err
	}
	b.closers = append(b.closers, func() error { return os.RemoveAll(dir) })
	var servers strings.Builder
	for i, addr := range serverAddrs() {
		fmt.Fprintf(&servers, "  server s%d %v:%d\n", i, addr, labServerPort)
	}
	config := fmt.Sprintf(`global
  nbthread %d
  maxconn %d
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen measured
  bind 0.0.0.0:%d
  balance random
%s`, runtime.NumCPU(), b.options.Held+1000, haproxyPort, &servers)
	path := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-db", "-f", path)
	cmd.Stderr = os.Stderr
	if err := n.Node().Do(cmd.Start); err != nil {
		return err
	}
	b.closers = append(b.closers, func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // by that signal
		return err
	})
	to := netip.AddrPortFrom(n.Node().Addrs[0], haproxyPort)
	b.ways = append(b.ways, &way{wayHAProxy, n, to, cmd.Process.Pid, false})
	return awaitListener(ctx, n, to)
}

// awaitListener waits until somebody accepts connections.
func awaitListener(ctx context.Context, n *benchNode, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := n.Node().Do(func() error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// better notes a value if it is better than that which is there.
func (b *userspaceBench) better(what string, w *way, value float64, less bool) {
	key := what + "/" + w.name
	if old, ok := b.result.Values[key]; !ok || (value < old) == less {
		b.result.Values[key] = value
	}
}

// round measures everything but memory once.
func (b *userspaceBench) round(ctx context.Context, w *way) error {
	f := worstPaths().ClusterIP
	if err := b.slice(ctx, w.node, fromPod, w.to, &f); err != nil {
		return err
	}
	b.better("connections", w, f.PerSecond, false)
	b.better("request-p50", w, f.RequestP50, true)
	b.better("request-p99", w, f.RequestP99, true)
	b.better("ping-p50", w, f.PingP50, true)
	b.better("ping-p99", w, f.PingP99, true)
	client := w.node.clients[0]
	for _, do := range []string{doRequest, doPing} {
		a, used, err := b.processorTime(ctx, w, connectionOrder{Do: do, From: fromPod, To: w.to, For: b.options.Slice})
		if err != nil {
			return err
		}
		b.betterOfProcess(do+"-cpu", w, Microseconds(used)/float64(a.Times))
	}
	for _, n := range []int{1, 100} {
		a, used, err := b.processorTime(ctx, w, connectionOrder{Do: doStream, From: fromPod, To: w.to, For: b.options.Slice, Count: n})
		if err != nil {
			return err
		}
		b.better(fmt.Sprintf("stream-%d", n), w, a.PerSecond*8/1e9, false)
		if n > 1 {
			b.betterOfProcess("stream-cpu", w, Milliseconds(used)/(float64(a.Bytes)/1e9))
		}
	}
	if !w.udp {
		return nil
	}
	a, err := client.do(ctx, connectionOrder{Do: doDatagrams, From: fromPod, To: w.to, For: b.options.Slice, Count: 32})
	b.better("datagrams", w, a.PerSecond, false)
	return err
}

func (b *userspaceBench) betterOfProcess(what string, w *way, value float64) {
	if w.process > 0 {
		b.better(what, w, value, true)
	}
}

// processorTime has an order carried out, and returns how long the process that relays has computed for it.
func (b *userspaceBench) processorTime(ctx context.Context, w *way, o connectionOrder) (a connectionAnswer, used time.Duration, err error) {
	if w.process == 0 {
		a, err = w.node.clients[0].do(ctx, o)
		return a, 0, err
	}
	before, err := computed(w.process)
	if err == nil {
		a, err = w.node.clients[0].do(ctx, o)
	}
	if err != nil {
		return a, 0, err
	}
	after, err := computed(w.process)
	return a, after - before, err
}

// computed returns the processor time of a process, of all its threads.
func computed(pid int) (total time.Duration, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, err
	}
	for _, t := range threads {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, t.Name()))
		if err != nil {
			continue // it has ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return 0, fmt.Errorf("schedstat %q: %w", text, err)
		}
		total += time.Duration(ns)
	}
	return total, nil
}

// memory measures the process that relays with open connections.
func (b *userspaceBench) memory(ctx context.Context, w *way) error {
	client := w.node.clients[0]
	order := connectionOrder{Do: doHold, From: fromPod, To: w.to, Count: b.options.Held}
	idle, err := rssOf(w.process)
	if err != nil {
		return err
	}
	if _, err := client.do(ctx, order); err != nil {
		return err
	}
	held, err := rssOf(w.process)
	if err != nil {
		return err
	}
	b.better("memory-idle", w, float64(idle)/(1<<20), true)
	b.better("memory-held", w, float64(held)/(1<<20), true)
	order.Count = 0
	_, err = client.do(ctx, order)
	return err
}

// rssOf returns the resident memory of a process in bytes.
func rssOf(pid int) (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseStatus(string(status), "VmRSS")
}
