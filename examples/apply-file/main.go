// Command apply-file is a dataplane of its own mode: a [backend.Backend] that a server programs over the node-local API. 'switchyard apply'
// does the same for the modes of Switchyard. It writes the TCP ports of Services to a file, in the way of programs that reload a
// configuration.
//
// It shows the duties of a backend. Apply is whole or nothing, services fail individually, and Verify repairs foreign changes. Package
// apifeed does the rest: following, retries, and reports to the server.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/switchyard-net/switchyard/apifeed"
	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/state"
)

func main() {
	api := flag.String("api", client.DefaultTarget, "where the node-local API is served")
	path := flag.String("file", "services.conf", "the file to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := apifeed.Program(ctx, apifeed.Options{
		Client: client.Options{Target: *api, Name: "apply-file", Logger: log}, Logger: log,
	}, newDataplane(*path), backend.RunOptions{Logger: log})
	if err != nil {
		fmt.Fprintln(os.Stderr, "apply-file:", err)
		os.Exit(1)
	}
}

// dataplane is a file.
type dataplane struct {
	path     string
	services map[state.ServiceName]*state.Service
	text     []byte // the state of the last Apply, nil before the first
}

var _ backend.Backend = (*dataplane)(nil)

func newDataplane(path string) *dataplane {
	return &dataplane{path: path, services: make(map[state.ServiceName]*state.Service)}
}

var errNotTCP = errors.New("it has a port that is not of TCP, which this dataplane does not serve: give it to another one")

// Apply implements [backend.Backend].
func (d *dataplane) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	services := maps.Clone(d.services)
	if u.Full { // services that are not in it do not exist
		clear(services)
	}
	for _, s := range u.Changed {
		services[s.Name] = s
	}
	for _, name := range u.Removed {
		delete(services, name)
	}
	text := bytes.NewBufferString("# Written by apply-file, which puts changes right.\n")
	for _, name := range slices.SortedFunc(maps.Keys(services), state.ServiceName.Compare) {
		write(text, services[name])
	}
	// An error leaves all as it was, and the same comes again.
	written, err := d.put(text.Bytes())
	if err != nil {
		return backend.Result{}, err
	}
	d.services, d.text = services, text.Bytes()
	result := backend.Result{Written: written, Failed: make(map[state.ServiceName]error)}
	for _, s := range u.Changed {
		if slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.Protocol != state.TCP }) {
			result.Failed[s.Name] = errNotTCP
		}
	}
	return result, nil
}

// Verify implements [backend.Backend].
func (d *dataplane) Verify(context.Context) (backend.Result, error) {
	if d.text == nil {
		return backend.Result{}, nil
	}
	repaired, err := d.put(d.text)
	return backend.Result{Written: repaired, Repaired: repaired}, err
}

// Disturbed implements [backend.Backend]: nothing watches the file, which Verify looks at every 30 seconds.
func (*dataplane) Disturbed() <-chan struct{} { return nil }

// put makes the file have a text, at once, and returns how many files it has written.
func (d *dataplane) put(text []byte) (int, error) {
	if old, err := os.ReadFile(d.path); err == nil && bytes.Equal(old, text) {
		return 0, nil
	}
	if err := os.WriteFile(d.path+".new", text, 0o644); err != nil {
		return 0, err
	}
	return 1, os.Rename(d.path+".new", d.path)
}

// write writes a line for each frontend, with the endpoints of clients in the cluster and of those outside.
func write(to *bytes.Buffer, s *state.Service) {
	for p, f := range s.Frontends() {
		if p.Protocol != state.TCP {
			continue
		}
		traffic := p.Traffic(f.Kind)
		at := fmt.Sprintf("*:%d", f.Port)
		if f.Kind != state.NodePort {
			at = fmt.Sprint(f.Addr, " ", f.Port)
		}
		fmt.Fprintf(to, "%s %s inside %s outside %s\n", s.Name, at, route(&traffic.Inside), route(&traffic.Outside))
	}
}

func route(r *state.Route) string {
	switch r.Verdict {
	case state.Reject:
		return "reject"
	case state.Forward:
		var list []string
		for _, e := range r.Endpoints {
			list = append(list, e.Addr.String())
		}
		return strings.Join(list, ",")
	}
	return "drop"
}
