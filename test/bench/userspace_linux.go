package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// UserspaceOptions specify what [Userspace] measures.
type UserspaceOptions struct {
	// Rounds is how many slices are measured of everything, and Slice how long each is. Default: 8, 250 ms.
	Rounds int
	Slice  time.Duration
	// Held is the number of open connections that memory is measured with. Default: 10,000.
	Held int
	// Out is the directory for userspace.md, empty for none.
	Out string
}

// The ways of connections that are compared with the relay.
const (
	wayDirect  = "direct"   // to the pod
	wayKernel  = "nftables" // by cluster IP, translated by the kernel
	wayRelay   = "userspace"
	wayHAProxy = "haproxy"
)

var userspaceWays = []string{wayDirect, wayKernel, wayRelay, wayHAProxy}

// userspaceRows are the rows of the table, in this order.
var userspaceRows = []struct{ name, unit, title string }{
	{"connections", "1/s", "connections in a second"},
	{"request-p50", "us", "request, p50, µs"},
	{"request-p99", "us", "request, p99, µs"},
	{"ping-p50", "us", "ping, p50, µs"},
	{"ping-p99", "us", "ping, p99, µs"},
	{"request-cpu", "us", "processor time of the relay for a connection, µs"},
	{"ping-cpu", "us", "... for a byte there and back, µs"},
	{"stream-cpu", "ms", "... for a gigabyte of 100 streams, ms"},
	{"stream-1", "Gbit/s", "one stream, Gbit/s"},
	{"stream-100", "Gbit/s", "100 streams, Gbit/s"},
	{"memory-idle", "MiB", "memory without connections, MiB"},
	{"memory-held", "MiB", "memory with so many open connections, MiB"},
	{"datagrams", "1/s", "UDP packets there and back in a second"},
}

const userspaceText = `# Comparison of the relay and HAProxy

Written by ` + "`bench userspace --out docs/benchmarks`" + ` (%v). %s. One run, in network namespaces of one machine, which also ran the clients and the server.

%s
- **direct** goes to the pod itself, **nftables** to a cluster IP that the kernel translates, and **userspace** to one of the relay of [mode userspace](../userspace.md). **haproxy** goes to HAProxy in TCP mode, with a thread for each CPU and splicing. It runs on the node of nftables: the kernel tracks its connections and the relay's alike.
- **connections** is how many %d clients make: a connection, a byte there and back, and a reset. **request** is the time of this sequence for one client. **ping** is the time of a byte there and back on a connection that stays.
- **Processor time** is the time of the process in user mode and in the kernel. Other work on the machine adds little to it.
- **memory** is the resident memory of the process; %d connections are open. The memory of the kernel's sockets is not included.
- UDP packets are of one flow with 32 on their way at a time.
- Each figure is from the best of %d slices of %s ms, which take turns, because other work on the machine makes it worse.
`

// userspaceServices is how many Services there are in addition to the measured one.
const userspaceServices = 10

// Userspace measures the relay of mode userspace, HAProxy, the kernel and direct connections, in one run. Without
// HAProxy, its column stays empty.
func Userspace(ctx context.Context, r *Reporter, o UserspaceOptions) (err error) {
	setDefault(&o.Rounds, 8)
	setDefault(&o.Slice, 250*time.Millisecond)
	setDefault(&o.Held, 10_000)
	if err := allowFiles(1<<12 + 4*o.Held); err != nil {
		return err
	}
	machine, err := thisMachine()
	if err != nil {
		return err
	}
	b := &userspaceBench{
		dataplaneBench: dataplaneBench{options: DataplanesOptions{Options: Options{Endpoints: measuredEndpoints}, Slice: o.Slice}, clients: clientsHere()},
		options:        o, reporter: r, values: map[string]float64{},
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.setUp(ctx); err != nil {
		return err
	}
	for range o.Rounds {
		for _, w := range b.ways {
			if err := b.round(ctx, w); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	for _, w := range b.ways {
		if err := b.memory(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	t := table(append([]string{""}, userspaceWays...)...)
	for _, row := range userspaceRows {
		cells := []string{row.title}
		for _, way := range userspaceWays {
			v, ok := b.values[row.name+"/"+way]
			if !ok {
				cells = append(cells, "")
				continue
			}
			cells = append(cells, readable(v))
			r.Report(Result{"userspace/" + row.name + "/" + way, userspaceServices, measuredEndpoints, v, row.unit})
		}
		t.row(cells...)
	}
	if machine.LoadAfter, err = loadAverage(); err != nil || o.Out == "" {
		return err
	}
	return writePage(o.Out, "userspace.md", fmt.Sprintf(userspaceText, &machine, strings.TrimSpace(b.haproxy), t, b.clients, o.Held, o.Rounds, readable(in("ms", o.Slice))))
}

type userspaceBench struct {
	dataplaneBench
	closers
	options  UserspaceOptions
	reporter *Reporter
	ways     []*way
	values   map[string]float64 // by what and way, such as "ping-p50/haproxy"
	haproxy  string             // its version
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

func (b *userspaceBench) setUp(ctx context.Context) error {
	direct, err := b.newNode(ctx)
	if err != nil {
		return err
	}
	b.add(direct.close)
	b.ways = append(b.ways, &way{wayDirect, direct, direct.server, 0, true})
	for _, name := range []string{wayKernel, wayRelay} {
		n, err := b.program(ctx, &DataplaneRow{Dataplane: name, Services: userspaceServices})
		if err != nil {
			return err
		}
		b.add(n.close)
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
		b.haproxy = "HAProxy was not installed"
		b.reporter.Note("HAProxy is not measured: %v; apt-get install haproxy", err)
		return nil
	}
	version, err := exec.CommandContext(ctx, program, "-v").Output()
	if err != nil {
		return err
	}
	b.haproxy, _, _ = strings.Cut(string(version), " - ")
	dir, err := os.MkdirTemp("", "switchyard-bench-")
	if err != nil {
		return err
	}
	b.add(func() error { return os.RemoveAll(dir) })
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
	b.add(func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // by that signal
		return err
	})
	to := netip.AddrPortFrom(n.Node().Addrs[0], haproxyPort)
	b.ways = append(b.ways, &way{wayHAProxy, n, to, cmd.Process.Pid, false})
	for range 1000 { // until it accepts connections
		if _, err = n.clients[0].connect(ctx, ConnectionOrder{Do: doPing, From: fromPod, To: to}); err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// better notes a value if it is better than that which is there.
func (b *userspaceBench) better(what string, w *way, value float64, less bool) {
	key := what + "/" + w.name
	if old, ok := b.values[key]; !ok || (value < old) == less {
		b.values[key] = value
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
		a, used, err := b.processorTime(ctx, w, ConnectionOrder{Do: do, From: fromPod, To: w.to, For: b.options.Slice})
		if err != nil {
			return err
		}
		b.betterOfProcess(do+"-cpu", w, in("us", used)/float64(a.Times))
	}
	for _, n := range []int{1, 100} {
		a, used, err := b.processorTime(ctx, w, ConnectionOrder{Do: doStream, From: fromPod, To: w.to, For: b.options.Slice, Count: n})
		if err != nil {
			return err
		}
		b.better(fmt.Sprintf("stream-%d", n), w, a.PerSecond*8/1e9, false)
		if n > 1 {
			b.betterOfProcess("stream-cpu", w, in("ms", used)/(float64(a.Bytes)/1e9))
		}
	}
	if !w.udp {
		return nil
	}
	a, err := client.connect(ctx, ConnectionOrder{Do: doDatagrams, From: fromPod, To: w.to, For: b.options.Slice, Count: 32})
	b.better("datagrams", w, a.PerSecond, false)
	return err
}

func (b *userspaceBench) betterOfProcess(what string, w *way, value float64) {
	if w.process > 0 {
		b.better(what, w, value, true)
	}
}

// processorTime has an order carried out, and returns how long the process that relays has computed for it.
func (b *userspaceBench) processorTime(ctx context.Context, w *way, o ConnectionOrder) (a ConnectionAnswer, used time.Duration, err error) {
	if w.process == 0 {
		a, err = w.node.clients[0].connect(ctx, o)
		return a, 0, err
	}
	before, err := computed(w.process)
	if err == nil {
		a, err = w.node.clients[0].connect(ctx, o)
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

// memory measures the process that relays, if there is one, with open connections.
func (b *userspaceBench) memory(ctx context.Context, w *way) error {
	if w.process == 0 {
		return nil
	}
	order := ConnectionOrder{Do: doHold, From: fromPod, To: w.to}
	for _, m := range []struct {
		what string
		held int
	}{{"memory-idle", 0}, {"memory-held", b.options.Held}} {
		order.Count = m.held
		if _, err := w.node.clients[0].connect(ctx, order); err != nil {
			return err
		}
		rss, _, err := residentMemory(w.process)
		if err != nil {
			return err
		}
		b.better(m.what, w, MiB(rss), true)
	}
	order.Count = 0
	_, err := w.node.clients[0].connect(ctx, order)
	return err
}
