//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/figures"
)

// The goals of modes other than nftables.
const (
	goalCold   = 5.0  // times faster
	goalChange = 10.0 // times faster
	goalGrowth = 2.0  // times as much for a first packet with most services as with the fewest, at most
)

// modeFigures are the measurements of a proxy in a mode.
type modeFigures struct {
	Variant  string `json:"variant"`
	Services int    `json:"services"`
	// Changes is how many single changes were timed.
	Changes int `json:"changes"`
	// Upstream and Ours are of kube-proxy and of Switchyard.
	Upstream modeResult `json:"upstream"`
	Ours     modeResult `json:"switchyard"`
	// Direct is a connection that no rule is for, in microseconds.
	Direct float64 `json:"direct_us"`
}

// modeResult is the measurements of one proxy.
type modeResult struct {
	SyncSeconds float64 `json:"sync_seconds"`
	// Late is set if the first sync took more than SyncSeconds, after which nothing else was measured.
	Late      bool    `json:"late,omitempty"`
	ChangeP50 float64 `json:"change_p50_ms"`
	ChangeP99 float64 `json:"change_p99_ms"`
	// Connect is how long a connection to one of the services takes, in microseconds.
	Connect float64 `json:"connect_us"`
}

// modeReport is the comparison in one mode.
type modeReport struct {
	Release   string        `json:"release"` // of kube-proxy
	Machine   string        `json:"machine"`
	Mode      string        `json:"mode"`
	Endpoints int           `json:"endpoints"`
	Results   []modeFigures `json:"results"`
}

// compareMode compares both in a mode, with more and more services.
func compareMode(ctx context.Context, o *options, dir string) error {
	sizes, err := parseSizes(o.sizes)
	if err != nil {
		return err
	}
	o.services = sizes[0]
	c, err := newCluster(ctx, dir, o)
	if err != nil {
		return err
	}
	defer c.stop()
	r := modeReport{Machine: figures.Machine(), Release: o.release, Mode: o.mode, Endpoints: o.endpoints}
	variants := []string{o.mode}
	if o.mode == "iptables" {
		variants = []string{"legacy", "nft"}
	}
	for _, size := range sizes {
		if err := c.grow(ctx, size); err != nil {
			return err
		}
		for _, v := range variants {
			f, err := measureMode(ctx, c, o, v, dir)
			if err != nil {
				return fmt.Errorf("%s with %d services: %w", v, size, err)
			}
			r.Results = append(r.Results, *f)
			fmt.Fprintf(os.Stderr, "== %+v\n", *f)
		}
	}
	fmt.Print(r.table())
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return r.write(o.out)
}

// parseSizes reads numbers of services, separated by commas, and returns them in order.
func parseSizes(text string) (sizes []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-sizes: %q is no number of services", field)
		}
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	return sizes, nil
}

// grow makes services until there are so many.
func (c *cluster) grow(ctx context.Context, services int) error {
	had := c.options.services
	c.options.services = services
	if had < services {
		logf("making %d services more", services-had)
	}
	return c.create(ctx, had, services)
}

// measureMode measures both proxies with one variant of the mode.
func measureMode(ctx context.Context, c *cluster, o *options, variant, dir string) (*modeFigures, error) {
	f := &modeFigures{Variant: variant, Services: o.services, Changes: o.slow}
	restore, err := onlyVariant(o.mode, variant, filepath.Join(dir, fmt.Sprintf("%s-%d", variant, o.services)))
	if err != nil {
		return nil, err
	}
	defer restore()
	for _, p := range []struct {
		proxy
		to *modeResult
	}{{upstream(o), &f.Upstream}, {switchyard(o, o.program), &f.Ours}} {
		err := measureInMode(ctx, c, p.proxy, f, p.to)
		if errors.Is(err, errLate) && p.to == &f.Upstream {
			logf("%s: not synced after %v", p.name, waitTimeout)
			*p.to = modeResult{SyncSeconds: waitTimeout.Seconds(), Late: true}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return f, nil
}

func measureInMode(ctx context.Context, c *cluster, p proxy, f *modeFigures, to *modeResult) error {
	n, err := newNode(ctx, c.options.attempt)
	if err != nil {
		return err
	}
	defer n.close()
	logf("%s: first full sync of %d services", p.name, f.Services)
	begun, err := begin(ctx, c, n, p)
	defer begun.end()
	if err != nil {
		return err
	}
	if err := servedBy(n, c.options.mode, f.Variant, begun.process); err != nil {
		return err
	}
	logf("%s: the marker answers after %.2f s, all after %.2f s; %d changes one by one", p.name, begun.marker.Seconds(), begun.synced.Seconds(), f.Changes)
	m := &measurement{cluster: c, node: n, process: begun.process, rounds: f.Changes}
	r := &result{}
	if err := m.latencies(ctx, r); err != nil {
		return err
	}
	to.SyncSeconds, to.ChangeP50, to.ChangeP99 = begun.synced.Seconds(), r.ChangeP50, r.ChangeP99
	if to.Connect, err = n.connect(c.frontends()); err != nil {
		return err
	}
	direct, err := n.connect([]unix.Sockaddr{socketAddr(endpoint(256).As4(), endpointPort)})
	if f.Direct == 0 || direct < f.Direct {
		f.Direct = direct
	}
	return err
}

// onlyVariant hides the programs of all but one variant of iptables from new processes, until restore is called. Elsewhere both proxies
// choose between the variants by the state of the node.
func onlyVariant(mode, variant, dir string) (restore func(), err error) {
	if mode != "iptables" {
		return func() {}, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	multi, err := exec.LookPath("xtables-" + variant + "-multi")
	if err != nil {
		return nil, fmt.Errorf("%w; install the package iptables", err)
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, of := range []string{family, family + "-" + variant} {
			for _, what := range []string{"", "-save", "-restore"} {
				if err := os.Symlink(multi, filepath.Join(dir, of+what)); err != nil {
					return nil, err
				}
			}
		}
	}
	was := os.Getenv("PATH")
	return func() { os.Setenv("PATH", was) }, os.Setenv("PATH", dir)
}

// servedBy returns an error unless the rules are of the mode that is measured.
func servedBy(n *node, mode, variant string, process *controlplane.Process) error {
	if mode != "iptables" {
		return nil
	}
	var text []byte
	err := n.Node().Do(func() (err error) {
		text, err = exec.Command("iptables-"+variant+"-save", "-t", "nat").Output()
		return err
	})
	if err != nil {
		return fmt.Errorf("iptables-%s-save: %w", variant, err)
	}
	if !strings.Contains(string(text), markerEndpoints[0]) && !strings.Contains(string(text), markerEndpoints[1]) {
		return fmt.Errorf("it does not serve by iptables-%s: %s", variant, process.Tail())
	}
	return nil
}

// frontends are those that first packets are measured with: spread over all of them, since upstream's cost depends on where in its list one is.
func (c *cluster) frontends() (list []unix.Sockaddr) {
	const most = 100
	for i := range min(c.options.services, most) {
		f := frontend(i * c.options.services / min(c.options.services, most))
		list = append(list, socketAddr(f.Addr().As4(), f.Port()))
	}
	return list
}

func socketAddr(addr [4]byte, port uint16) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: addr, Port: int(port)}
}

// connect returns how many microseconds a connection from a pod takes. It takes the fastest of several attempts for each destination,
// because other work on the machine can only make an attempt slower. The result is the mean over the destinations.
func (n *node) connect(to []unix.Sockaddr) (float64, error) {
	const times = 30
	total := time.Duration(0)
	err := n.client.Do(func() error {
		for _, dst := range to {
			best := time.Hour
			for range times {
				took, err := connectOnce(dst)
				if err != nil {
					return err
				}
				best = min(best, took)
			}
			total += best
		}
		return nil
	})
	return float64(total.Nanoseconds()) / 1000 / float64(len(to)), err
}

func connectOnce(dst unix.Sockaddr) (took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	linger := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	began := time.Now()
	err = unix.Connect(fd, dst)
	took = time.Since(began)
	return took, errors.Join(linger, os.NewSyscallError("connect", err), unix.Close(fd))
}

// table is the report as a Markdown table.
func (r *modeReport) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | Services | cold load: kube-proxy, Switchyard | factor | one change p50: kube-proxy, Switchyard | factor | connect: kube-proxy, Switchyard, direct |\n|---|---:|---:|---:|---:|---:|---:|\n", r.Mode)
	for _, f := range r.Results {
		cold := f.Upstream.SyncSeconds / f.Ours.SyncSeconds
		if f.Upstream.Late {
			fmt.Fprintf(&b, "| %s | %d | not after %.3g s, %.3g s | > %.1f | -, %.4g ms | - | -, %.1f µs, %.1f µs |\n", f.Variant, f.Services,
				f.Upstream.SyncSeconds, f.Ours.SyncSeconds, cold, f.Ours.ChangeP50, f.Ours.Connect, f.Direct)
			continue
		}
		fmt.Fprintf(&b, "| %s | %d | %.3g s, %.3g s | %.1f | %.4g ms, %.4g ms | %.1f | %.1f µs, %.1f µs, %.1f µs |\n", f.Variant, f.Services,
			f.Upstream.SyncSeconds, f.Ours.SyncSeconds, cold,
			f.Upstream.ChangeP50, f.Ours.ChangeP50, f.Upstream.ChangeP50/f.Ours.ChangeP50, f.Upstream.Connect, f.Ours.Connect, f.Direct)
	}
	return b.String()
}

// verdicts are the goals with what came out, a line each.
func (r *modeReport) verdicts() string {
	var b strings.Builder
	first := map[string]*modeFigures{}
	for i := range r.Results {
		f := &r.Results[i]
		few, ok := first[f.Variant]
		if !ok {
			first[f.Variant] = f
			continue
		}
		ours, theirs := growth(f.Ours.Connect-f.Direct, few.Ours.Connect-few.Direct), growth(f.Upstream.Connect-f.Direct, few.Upstream.Connect-few.Direct)
		if f.Upstream.Late {
			fmt.Fprintf(&b, "- %s, %d services: cold load more than %s. A first packet costs %.1f times as much as with %d services, %s.\n", f.Variant, f.Services,
				verdict(f.Upstream.SyncSeconds/f.Ours.SyncSeconds, goalCold), ours, few.Services, metIf(ours <= goalGrowth))
			continue
		}
		fmt.Fprintf(&b, "- %s, %d services: cold load %s. One change %s. A first packet costs %.1f times as much as with %d services (kube-proxy's: %.1f times), %s.\n",
			f.Variant, f.Services, verdict(f.Upstream.SyncSeconds/f.Ours.SyncSeconds, goalCold), verdict(f.Upstream.ChangeP50/f.Ours.ChangeP50, goalChange),
			ours, few.Services, theirs, metIf(ours <= goalGrowth))
	}
	return b.String()
}

// leastCost is the difference of two connections that can still be measured, in microseconds.
const leastCost = 1.0

// growth is the cost of a first packet with many services, in that with few. The cost is what a connection takes longer than a direct one.
func growth(many, few float64) float64 { return max(many, leastCost) / max(few, leastCost) }

func verdict(factor, goal float64) string {
	return fmt.Sprintf("%.1f times faster (goal %.0f: %s)", factor, goal, metIf(factor >= goal))
}

func metIf(ok bool) string {
	if ok {
		return "met"
	}
	return "missed"
}

// write writes the report as a document and as JSON.
func (r *modeReport) write(dir string) error {
	text := fmt.Sprintf(`# Comparison with upstream kube-proxy, mode %[1]s

Written by `+"`go run ./compare -mode %[1]s`"+` in test/e2e. Compared are kube-proxy %[2]s and Switchyard with the same configuration file and a real API server. Both ran on one machine (%s), in turn. Each had a node of its own. Each service has %d endpoints.

%s
%s
- Cold load is the time from the start of the process until connections to a sample of up to %d services are all answered. The time of as many connections to a programmed node is subtracted. - One change replaces an endpoint by another. It is the time from the API server's answer until a new connection reaches the new one. %d changes of each.
- Connect: a TCP connection from a pod, the mean over up to 100 services of the fastest of 30 each. The difference from a direct one is the cost of a first packet.
`, r.Mode, r.Release, r.Machine, r.Endpoints, r.table(), r.verdicts(), sampled, r.Results[0].Changes)
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, "compare-"+r.Mode)
	return errors.Join(os.WriteFile(name+".md", []byte(text), 0o644), os.WriteFile(name+".json", append(raw, '\n'), 0o644))
}
