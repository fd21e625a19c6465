//go:build linux

// Command proof lets upstream kube-proxy take part in the scenarios of Switchyard's proof, and writes what came of them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/chaos"
	"github.com/switchyard-net/switchyard/test/e2e/apicluster"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/e2e/kubeproxy"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/topology"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := netns.Run(func() int {
		if err := run(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "proof: %v\n", err)
			return 1
		}
		return 0
	})
	stop()
	os.Exit(code)
}

func run(ctx context.Context) error {
	o := chaos.Options{Log: os.Stdout, Subject: newUpstream}
	var names, out string
	flag.StringVar(&names, "scenarios", "", "names of the scenarios to run, separated by commas (default: all in which it can take part)")
	flag.Float64Var(&o.Scale, "scale", 0.05, "how much happens in each scenario; 1 has a thousand kills")
	flag.IntVar(&o.Rate, "rate", 2400, "new connections a second")
	flag.Uint64Var(&o.Seed, "seed", 1, "what decides about all that is random")
	flag.StringVar(&out, "out", "", "file for the results, for the comparison in test/cmd/proof")
	flag.Parse()
	if names != "" {
		o.Scenarios = strings.Split(names, ",")
	}
	if _, err := controlplane.Binary(); err != nil {
		return err
	}
	if err := chaos.GoFirst(); err != nil {
		return fmt.Errorf("the load cannot run before all other programs: %w", err)
	}
	var err error
	if o.Dir, err = os.MkdirTemp("", "upstream-proof-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.Dir)
	beside := chaos.Beside{Machine: chaos.DescribeMachine(), Scale: o.Scale, Rate: o.Rate}
	beside.Results, err = chaos.Run(ctx, o)
	if err != nil || out == "" {
		return err
	}
	text, err := json.Marshal(beside)
	if err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o644)
}

// upstream is kube-proxy, with a real API server.
type upstream struct {
	lab     *topology.Lab
	dir     string
	plane   *controlplane.ControlPlane
	exposed io.Closer
	client  *apicluster.Client
	running *controlplane.Process // nil if it is not meant to run
}

func newUpstream(l *topology.Lab, dir string) (chaos.Subject, error) {
	plane, err := controlplane.Start(context.Background(), controlplane.Options{Dir: dir, ServiceCIDRs: "10.96.0.0/16,fd00:10:96::/112"})
	if err != nil {
		return nil, err
	}
	u := &upstream{lab: l, dir: dir, plane: plane}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		err = errors.Join(err, chaos.AsOthers(plane.Process(name).PID()))
	}
	if err == nil {
		u.client, err = apicluster.NewClient(plane.Config())
	}
	if err == nil {
		u.exposed, err = plane.Expose(l.Node())
	}
	if err != nil {
		plane.Stop()
		return nil, err
	}
	return u, nil
}

// Put implements [chaos.Subject].
func (u *upstream) Put(changed []chaos.Object) error {
	for _, o := range changed {
		m, _, err := kubeconv.Object(o)
		if err != nil {
			return err
		}
		if _, ok := m.(*model.ServiceCIDR); ok {
			continue // the API server has made it itself
		}
		if _, err := u.client.Set(context.Background(), m); err != nil {
			return fmt.Errorf("%v: %w", m.Ref(), err)
		}
	}
	return nil
}

// Start implements [chaos.Subject].
func (u *upstream) Start() (err error) {
	u.running, err = kubeproxy.Start(u.lab.Node(), kubeproxy.Options{
		Dir: u.dir, Kubeconfig: u.plane.Kubeconfig(), Node: u.lab.Node().Name, ClusterCIDRs: chaos.ClusterCIDRs(),
	})
	if err != nil {
		return err
	}
	return chaos.AsOthers(u.running.PID())
}

// Kill implements [chaos.Subject].
func (u *upstream) Kill() error { return u.end((*controlplane.Process).Kill) }

// Stop implements [chaos.Subject].
func (u *upstream) Stop() error { return u.end((*controlplane.Process).Stop) }

func (u *upstream) end(how func(*controlplane.Process)) error {
	if u.running == nil {
		return nil
	}
	err := u.running.Failure()
	how(u.running)
	u.running = nil
	return err
}

// Failure implements [chaos.Subject].
func (u *upstream) Failure() error {
	if u.running == nil {
		return nil
	}
	return u.running.Failure()
}

// PID implements [chaos.Subject].
func (u *upstream) PID() int { return u.running.PID() }

// Close implements [chaos.Subject].
func (u *upstream) Close() error {
	err := errors.Join(u.Kill(), u.exposed.Close())
	u.plane.Stop()
	return err
}
