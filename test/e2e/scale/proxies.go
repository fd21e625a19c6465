//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/figures"
	"github.com/switchyard-net/switchyard/test/e2e/kubeproxy"
	"github.com/switchyard-net/switchyard/test/netns"
)

const (
	// together is how many proxies start at a time.
	together = 4
	// startTimeout is how long a proxy may take to program everything, on a machine that is busy with others.
	startTimeout = 10 * time.Minute
	// lookAgain is the time between two looks at the metrics of a proxy that is awaited.
	lookAgain = 200 * time.Millisecond
)

// kind is a program that can run on every node.
type kind struct {
	name  string
	start func(f *fleet, p *proxy) (*controlplane.Process, error)
}

func kubeProxy(release string) kind {
	return kind{"kube-proxy " + release, func(f *fleet, p *proxy) (*controlplane.Process, error) {
		return kubeproxy.Start(p.ns, f.proxyOptions(p))
	}}
}

// switchyard is started with the very configuration of kube-proxy. The admin API would be at one path of the machine.
func switchyard(program string) kind {
	return kind{"Switchyard", func(f *fleet, p *proxy) (*controlplane.Process, error) {
		return kubeproxy.StartProgram(p.ns, program, "proxy", f.proxyOptions(p), "--admin-bind-address=none")
	}}
}

// behindRelay is Switchyard in two processes, of which the first serves all nodes.
func behindRelay(program string, r *relay) kind {
	return kind{"Switchyard, one relay", func(_ *fleet, p *proxy) (*controlplane.Process, error) {
		cert, key, err := r.writeClient(p.dir, p.index)
		if err != nil {
			return nil, err
		}
		return controlplane.Run(p.ns, p.dir, "apply", program, "apply", "nftables", "--api=tcp://"+relayAddress, "--node="+nodeName(p.index),
			"--tls-ca="+r.file("ca.crt"), "--tls-cert="+cert, "--tls-key="+key, "--metrics-bind-address="+kubeproxy.MetricsAddress)
	}}
}

// fleet is nodes with the same proxy, each in a network namespace of its own.
type fleet struct {
	cluster *cluster
	dir     string
	proxies []*proxy
	// started is how long all of them took together until they had programmed everything.
	started time.Duration
	// before is the available memory without them, in MiB.
	before float64
}

// proxy is a proxy on its node.
type proxy struct {
	index   int
	dir     string
	ns      *netns.NS
	process *controlplane.Process
	http    *http.Client
}

// startFleet starts a proxy on each of so many nodes. It starts fewer if less than reserve MiB of memory are available. All of them have
// programmed everything when it returns. The caller must call close, also after an error.
func startFleet(ctx context.Context, c *cluster, dir string, k kind, nodes int, reserve float64) (f *fleet, err error) {
	f = &fleet{cluster: c}
	if f.before, err = figures.Available(); err != nil {
		return f, err
	}
	if f.dir, err = os.MkdirTemp(dir, "fleet"); err != nil {
		return f, err
	}
	logf("%s: starting on %d nodes", k.name, nodes)
	began := time.Now()
	for len(f.proxies) < nodes {
		free, err := figures.Available()
		if err != nil {
			return f, err
		}
		if free < reserve {
			logf("%s: no more than %d nodes, because only %.0f MiB of memory are left", k.name, len(f.proxies), free)
			break
		}
		first := len(f.proxies)
		for range min(together, nodes-first) {
			if err := f.add(k); err != nil {
				return f, err
			}
		}
		for _, p := range f.proxies[first:] {
			if err := p.awaitSync(ctx); err != nil {
				return f, err
			}
		}
		if n := len(f.proxies); n/20 > first/20 {
			logf("%s: %d of %d nodes after %v", k.name, n, nodes, time.Since(began).Round(time.Second))
		}
	}
	f.started = time.Since(began)
	if len(f.proxies) == 0 {
		return f, fmt.Errorf("less than %.0f MiB of memory are available: stop other programs, or lower -reserve", reserve)
	}
	return f, nil
}

// add starts a proxy on one more node.
func (f *fleet) add(k kind) error {
	p := &proxy{index: len(f.proxies), dir: filepath.Join(f.dir, nodeName(len(f.proxies)))}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return err
	}
	var err error
	if p.ns, err = netns.New(); err != nil {
		return err
	}
	f.proxies = append(f.proxies, p)
	if err := link(f.cluster.plane, p.ns, p.index); err != nil {
		return err
	}
	p.http = &http.Client{Timeout: startTimeout, Transport: &http.Transport{DialContext: p.dial}}
	p.process, err = k.start(f, p)
	return err
}

// proxyOptions are the configuration of a proxy that reads kube-proxy's.
func (f *fleet) proxyOptions(p *proxy) kubeproxy.Options {
	return kubeproxy.Options{Dir: p.dir, Kubeconfig: f.cluster.kubeconfig, Node: nodeName(p.index), ClusterCIDRs: []netip.Prefix{clusterCIDR}}
}

// dial connects inside the namespace of the node.
func (p *proxy) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = p.ns.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// metrics returns the metrics of the proxy.
func (p *proxy) metrics(ctx context.Context) (samples, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+kubeproxy.MetricsAddress+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := p.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return parseMetrics(string(text)), err
}

// awaitSync waits until the proxy has programmed everything.
func (p *proxy) awaitSync(ctx context.Context) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(lookAgain) {
		if err := errors.Join(p.process.Failure(), ctx.Err()); err != nil {
			return err
		}
		s, err := p.metrics(ctx) // it may not serve them yet
		if err == nil {
			for _, at := range s.values(syncedMetric, oneFamily) {
				if at > 0 {
					return nil
				}
			}
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%s: nothing is programmed after %v: %s", nodeName(p.index), startTimeout, p.process.Tail()), err)
		}
	}
}

// cpu returns the processor time of all proxies so far.
func (f *fleet) cpu() (total time.Duration, err error) {
	for _, p := range f.proxies {
		here, err := figures.CPU(p.process.PID())
		if err != nil {
			return 0, errors.Join(err, p.process.Failure())
		}
		total += here
	}
	return total, nil
}

// memory returns the mean resident memory of the proxies. It also returns the memory of a node: the proxy, and its rules in the kernel.
// Both are in MiB.
func (f *fleet) memory() (resident, machine float64, err error) {
	n := float64(len(f.proxies))
	for _, p := range f.proxies {
		here, err := figures.RSS(p.process.PID())
		if err != nil {
			return 0, 0, err
		}
		resident += here / n
	}
	now, err := figures.Available()
	return resident, (f.before - now) / n, err
}

// histograms returns the programming latencies of all proxies, by programmingMetric and by fineMetric.
func (f *fleet) histograms(ctx context.Context) (both, fine histogram, err error) {
	both, fine = histogram{}, histogram{}
	for _, p := range f.proxies {
		s, err := p.metrics(ctx)
		if err != nil {
			return nil, nil, err
		}
		both.add(s, programmingMetric, oneFamily)
		fine.add(s, fineMetric, "")
	}
	return both, fine, nil
}

// close ends all proxies and removes what they have left.
func (f *fleet) close() {
	for _, p := range f.proxies {
		if p.process != nil {
			p.process.Kill()
		}
		if p.http != nil {
			p.http.CloseIdleConnections()
		}
		_ = unlink(f.cluster.plane, p.index) // there is none if link has failed
		_ = p.ns.Close()
	}
	_ = os.RemoveAll(f.dir)
}
