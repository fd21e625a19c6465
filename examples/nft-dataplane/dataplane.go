//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/client"
	api "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// dataplane is a client.Sink.
type dataplane struct {
	node *api.Node
	// services are those to show: of one that cannot be programmed, what it was before.
	services map[client.ServiceName]*api.ServiceEndpoints
	flows    flows
}

// Apply implements client.Sink.
func (d *dataplane) Apply(_ context.Context, c *client.Change) (map[client.ServiceName]error, error) {
	if d.services == nil {
		d.services = make(map[client.ServiceName]*api.ServiceEndpoints)
	}
	failed := make(map[client.ServiceName]error)
	for _, s := range c.Changed {
		// A newer server may say something that is not understood here. It must not be guessed.
		if err := client.Check(s); err != nil {
			failed[client.NameOf(s)] = err
			continue
		}
		d.services[client.NameOf(s)] = s
	}
	for _, name := range c.Removed {
		delete(d.services, name)
	}
	d.node = c.Node
	services := d.inOrder(failed)
	if err := d.write(services); err != nil {
		return nil, err
	}
	return failed, d.flows.cut(services)
}

// inOrder returns the services to show. Those that failed come first: if another service has a frontend of one by now, it comes later, and
// counts.
func (d *dataplane) inOrder(failed map[client.ServiceName]error) (services []*api.ServiceEndpoints) {
	names := slices.SortedFunc(maps.Keys(d.services), client.ServiceName.Compare)
	for _, programmed := range []bool{false, true} {
		for _, name := range names {
			if (failed[name] == nil) == programmed {
				services = append(services, d.services[name])
			}
		}
	}
	return services
}

// write writes all rules in one transaction, so that no packet meets half of them. Only sets outlive it: they hold which client
// is bound to which endpoint. What an earlier life of the program has left goes.
func (d *dataplane) write(services []*api.ServiceEndpoints) error {
	// A connection of this host to a node port on 127.0.0.1 has that as its source until it is masqueraded.
	const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"
	if is, err := os.ReadFile(routeLocalnet); err != nil || is[0] != '1' {
		if err := os.WriteFile(routeLocalnet, []byte("1"), 0); err != nil {
			return err
		}
	}
	w := &writer{dataplane: d, used: make(map[string]bool)}
	fmt.Fprintf(w, "add table %s\nflush table %s\n", table, table)
	w.chain("refuse", "meta l4proto tcp reject with tcp reset", "reject")
	for _, service := range services {
		for _, p := range service.Ports {
			w.port(service, p)
		}
	}
	w.hooks()
	old, _ := run("", "nft", "--terse", "list", "table", "inet", "example") // it fails if there is none
	for _, m := range regexp.MustCompile(`(?m)^\t(chain|set) (\w+) \{`).FindAllStringSubmatch(old, -1) {
		if !w.used[m[2]] {
			fmt.Fprintf(w, "delete %s %s %s\n", m[1], table, m[2])
		}
	}
	_, err := run(w.String(), "nft", "-f", "-")
	return err
}

// run runs a program and returns its output.
func run(stdin, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %.1000s", program, err, stderr.String())
	}
	return string(out), err
}
