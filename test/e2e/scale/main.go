//go:build linux

// Command scale measures network programming latency as SIG Scalability defines it, p50 and p99 over all nodes. The latency begins with a
// change of a Service's endpoints and ends when the rules are in the kernel. Many proxies, each in a network namespace of its own, follow one API server during rolling
// updates. The command measures upstream kube-proxy, Switchyard, Switchyard behind one relay, and a relay with simulated nodes, in this order.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/figures"
	"github.com/switchyard-net/switchyard/test/netns"
)

// options are the sizes of the measurement.
type options struct {
	services  int
	proxies   []int     // numbers of nodes, ascending
	rates     []float64 // changes a second
	length    time.Duration
	settle    time.Duration
	sample    int
	simulated int
	simRate   float64
	reserve   float64 // MiB
	program   string
	command   string // line, for the page
	only      string
	out       string
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(2)
	}
	os.Exit(netns.Main(run{o}))
}

// parse reads the command line. Absent flags get the values of a short run, or of a full one.
func parse(args []string) (*options, error) {
	o := &options{command: strings.Join(append([]string{"go run ./scale"}, args...), " ")}
	var full bool
	var proxies, rates string
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.BoolVar(&full, "full", false, "the measurement of docs/benchmarks/scale.md, which it writes (an hour; an idle machine with 24 GiB)")
	f.IntVar(&o.services, "services", 5000, "number of Services")
	f.StringVar(&proxies, "proxies", "10", "numbers of nodes with a proxy, separated by commas (full: 10,100)")
	f.StringVar(&rates, "rates", "1,20", "changes a second, separated by commas (full: 1,20,100)")
	f.DurationVar(&o.length, "length", 20*time.Second, "length of a rolling update (full: 1m0s)")
	f.DurationVar(&o.settle, "settle", time.Minute, "longest wait until the last changes of a rolling update are programmed")
	f.IntVar(&o.sample, "sample", 5, "number of nodes whose kernels are watched (full: 10)")
	f.IntVar(&o.simulated, "simulated", 500, "number of simulated nodes behind a relay (full: 5000)")
	f.Float64Var(&o.simRate, "simulated-rate", 1, "changes a second with simulated nodes")
	f.Float64Var(&o.reserve, "reserve", 2048, "MiB of memory that must stay available; with less, no further proxy starts")
	f.StringVar(&o.program, "switchyard", "../../bin/switchyard", "Switchyard's program")
	f.StringVar(&o.only, "only", "", "measure only programs whose name begins like this: kube-proxy, Switchyard, relay or simulated")
	f.StringVar(&o.out, "out", "", "directory for scale.md and scale.json (full: ../../docs/benchmarks)")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if full {
		for name, value := range map[string]string{"proxies": "10,100", "rates": "1,20,100", "length": "1m", "sample": "10", "simulated": "5000", "out": "../../docs/benchmarks"} {
			if !given(f, name) {
				if err := f.Set(name, value); err != nil {
					return nil, err
				}
			}
		}
	}
	var err error
	if o.proxies, err = numbers("proxies", proxies, strconv.Atoi); err != nil {
		return nil, err
	}
	if o.rates, err = numbers("rates", rates, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); err != nil {
		return nil, err
	}
	return o, o.check()
}

func given(f *flag.FlagSet, name string) (found bool) {
	f.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// numbers reads positive numbers that are separated by commas, and sorts them.
func numbers[T int | float64](name, text string, parse func(string) (T, error)) (list []T, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := parse(field)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("-%s: %q is no positive number", name, field)
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return list, nil
}

func (o *options) check() error {
	const mostServices, mostNodes = 60_000, 60_000 // their addresses
	switch {
	case o.services < deployments || o.services > mostServices:
		return fmt.Errorf("-services: %d is not between %d and %d", o.services, deployments, mostServices)
	case o.simulated < 1 || o.nodes() > mostNodes:
		return fmt.Errorf("-proxies, -simulated: want 1 to %d nodes", mostNodes)
	case o.sample < 1 || o.simRate <= 0:
		return fmt.Errorf("-sample, -simulated-rate: want positive numbers")
	}
	return nil
}

// nodes is how many nodes the cluster has.
func (o *options) nodes() int { return max(o.proxies[len(o.proxies)-1], o.proxies[0]+o.simulated) }

// run is the program in the form that netns.Main takes.
type run struct{ *options }

func (r run) Run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := scale(ctx, r.options); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		return 1
	}
	return 0
}

// scale measures everything, and writes what came out.
func scale(ctx context.Context, o *options) ([]row, error) {
	if err := allowFiles(uint64(4*o.nodes() + 1024)); err != nil {
		return nil, err
	}
	release, err := controlplane.Release()
	if err != nil {
		return nil, err
	}
	if o.program, err = filepath.Abs(o.program); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	b := &bench{options: o, dir: dir, report: report{
		Command: o.command, Machine: figures.Machine(), Busy: figures.Load() > 1, Release: release, Services: o.services, Seconds: o.length.Seconds(), SettleSeconds: o.settle.Seconds(),
	}}
	if b.cluster, err = newCluster(ctx, dir, o.services, o.nodes()); err != nil {
		return nil, err
	}
	defer b.cluster.plane.Stop()
	b.report.Endpoints = b.cluster.endpoints()
	if err := b.all(ctx); err != nil {
		return nil, err
	}
	b.report.Minutes = time.Since(began).Minutes()
	fmt.Print(b.report.table())
	if o.out == "" {
		return b.report.Rows, nil
	}
	return b.report.Rows, b.report.write(o.out)
}

// bench is one run.
type bench struct {
	options *options
	dir     string
	cluster *cluster
	report  report
}

// all measures each program in turn. Switchyard also runs on as many nodes as kube-proxy fits on.
func (b *bench) all(ctx context.Context) error {
	o := b.options
	sizes := slices.Clone(o.proxies)
	if b.wants("kube-proxy") {
		for _, n := range o.proxies {
			fits, err := b.measure(ctx, kubeProxy(b.report.Release), n, nil, nil)
			if err != nil {
				return err
			}
			sizes = append(sizes, fits)
			if fits < n {
				break
			}
		}
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	if b.wants("Switchyard") {
		for _, n := range sizes {
			if _, err := b.measure(ctx, switchyard(o.program), n, nil, nil); err != nil {
				return err
			}
		}
	}
	if b.wants("relay") {
		if err := b.relayed(ctx, sizes[len(sizes)-1], 0); err != nil {
			return err
		}
	}
	if b.wants("simulated") {
		return b.relayed(ctx, sizes[0], o.simulated)
	}
	return nil
}

func (b *bench) wants(name string) bool { return strings.HasPrefix(name, b.options.only) }

// relayed measures nodes behind one relay, and with them so many simulated nodes.
func (b *bench) relayed(ctx context.Context, nodes, others int) error {
	r, err := startRelay(b.cluster, b.dir, b.options.program, nodes+others)
	defer r.close()
	if err != nil {
		return err
	}
	k := behindRelay(b.options.program, r)
	if others == 0 {
		_, err := b.measure(ctx, k, nodes, r, nil)
		return err
	}
	logf("connecting %d simulated nodes to a relay", others)
	s, err := simulate(ctx, b.cluster.plane, r, nodes, nodes+others)
	defer s.close()
	if err != nil {
		return err
	}
	_, err = b.measure(ctx, k, nodes, r, s)
	return err
}

// measure makes the rolling updates with a program on so many nodes, or on as many as fit. It returns how many these are.
func (b *bench) measure(ctx context.Context, k kind, nodes int, r *relay, s *simulated) (fits int, err error) {
	f, err := startFleet(ctx, b.cluster, b.dir, k, nodes, b.options.reserve)
	defer f.close()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", k.name, err)
	}
	rates := b.options.rates
	if s != nil {
		rates = []float64{b.options.simRate}
	}
	for _, rate := range rates {
		setup := &setup{cluster: b.cluster, kind: k, fleet: f, relay: r, nodes: s, options: b.options}
		row, err := setup.measure(ctx, rate)
		if err != nil {
			return 0, fmt.Errorf("%s on %d nodes: %w", k.name, len(f.proxies), err)
		}
		b.report.Rows = append(b.report.Rows, row)
	}
	return len(f.proxies), nil
}

// allowFiles raises the limit of open files of this process, and of those that it starts.
func allowFiles(n uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	raised := unix.Rlimit{Cur: max(l.Cur, n), Max: max(l.Max, n)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return fmt.Errorf("the limit of open files is %d, and must be %d: %w: raise the hard limit with ulimit -Hn", l.Max, n, err)
	}
	return nil
}
