//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/client"
	api "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// routeLocalnet lets a connection of this host to a node port on 127.0.0.1 leave with that as its source, until it is masqueraded. The
// kernel then also takes packets of other hosts to loopback addresses in (CVE-2020-8558). So it is set only if node ports are there, and
// after the rules that drop these packets.
const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

// dataplane is a client.Sink.
type dataplane struct {
	node *api.Node
	// services are the services to program; a service that cannot be programmed keeps its previous state.
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

// write writes all rules in one transaction, so that no packet meets half of them. Only sets outlive the transaction:
// they hold each client's endpoint. It removes rules that an earlier run of the program left.
func (d *dataplane) write(services []*api.ServiceEndpoints) error {
	list, _ := run("", "nft", "--terse", "list", "table", "inet", "example") // it fails if there is none
	old := regexp.MustCompile(`(?m)^\t(chain|set) (\w+) \{`).FindAllStringSubmatch(list, -1)
	on, _ := os.ReadFile(routeLocalnet)
	serves := d.servesLoopback()
	// The setting may outlive its reason, and so must what guards it.
	isGuarded := string(on) == "1\n" && slices.ContainsFunc(old, func(m []string) bool { return m[2] == guard })
	w := d.script(services, serves || isGuarded)
	for _, m := range old {
		if !w.used[m[2]] {
			fmt.Fprintf(w, "delete %s %s %s\n", m[1], table, m[2])
		}
	}
	if _, err := run(w.String(), "nft", "-f", "-"); err != nil || !serves || string(on) == "1\n" {
		return err
	}
	return os.WriteFile(routeLocalnet, []byte("1"), 0) // the guard is there by now
}

// script is all rules.
func (d *dataplane) script(services []*api.ServiceEndpoints, guarded bool) *writer {
	w := &writer{dataplane: d, used: make(map[string]bool)}
	fmt.Fprintf(w, "add table %s\nflush table %s\n", table, table)
	w.chain("refuse", "meta l4proto tcp reject with tcp reset", "reject")
	for _, service := range services {
		for _, p := range service.Ports {
			w.port(service, p)
		}
	}
	w.hooks()
	if guarded {
		w.guard()
	}
	return w
}

// servesLoopback reports whether node ports are served on 127.0.0.1, or on others of its range.
func (d *dataplane) servesLoopback() bool {
	return slices.ContainsFunc(d.node.NodePortAddresses.GetCidrs(), func(c *api.Prefix) bool { return isLoopback(client.Prefix(c)) })
}

// isLoopback reports whether a range lies in the loopback range of IPv4.
func isLoopback(p netip.Prefix) bool { return p.Bits() >= 8 && p.Addr().Is4() && p.Addr().IsLoopback() }

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
