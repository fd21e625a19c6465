package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// dryRun prints what a run would program, and returns an error if it would leave something out. It asks nothing of the kernel, and needs no
// rights.
func (o *runOptions) dryRun(cmd *cobra.Command) error {
	settings := &o.dataplane.file
	c, err := settings.load()
	if err != nil {
		return err
	}
	if err := errors.Join(settings.log.Check(), o.routing.check()); err != nil {
		return cli.Usage(cmd.CommandPath(), err)
	}
	if err := o.set(c); err != nil {
		return err
	}
	name, err := nodeOrHost(c.HostnameOverride)
	if err != nil {
		return err
	}
	objects, err := manifestObjects(cmd, o.source)
	if err != nil {
		return err
	}
	nodes := objects.nodeNames()
	known := slices.Contains(nodes, name)
	if !known && len(nodes) > 0 {
		return fmt.Errorf("there is no Node %q in %s, only %s; choose one of them with --node, or add it", name, o.source, someOf(nodes, name))
	}
	s := objects.store(c, name)
	defer s.Close()

	stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if !known {
		fmt.Fprintf(stderr, "switchyard: Node %s is not in %s: no endpoint is local; add a Node with this node's name and addresses\n", name, o.source)
	}
	problems := slices.Concat(objects.problems, objects.leftOut(), s.Problems())
	for _, p := range problems {
		fmt.Fprintf(stderr, "switchyard: left out: %v\n", p)
	}
	if err := printPlan(stdout, name, s.Snapshot()); err != nil {
		return err
	}
	if len(problems) > 0 {
		return cli.ExitCode(cli.ExitError)
	}
	return nil
}

// printPlan prints what each frontend of a state does.
func printPlan(w io.Writer, name string, snapshot *store.Snapshot) error {
	var b strings.Builder
	services := 0
	for service := range snapshot.Services() {
		services++
		for i := range service.Ports {
			p := &service.Ports[i]
			fmt.Fprintf(&b, "%s\n", portTitle(service.Name, p))
			for _, f := range p.Frontends {
				fmt.Fprintf(&b, "  %s\n%s", frontendTitle(&f, p.Protocol), trafficText(p.Traffic(f.Kind)))
			}
		}
		if h := service.HealthCheck; h.Port != 0 {
			fmt.Fprintf(&b, "%v\n  health check node port %d\n", service.Name, h.Port)
		}
	}
	fmt.Fprintf(&b, "node %s would route %d %s; nothing was programmed\n", name, services, map[bool]string{true: "service", false: "services"}[services == 1])
	_, err := io.WriteString(w, b.String())
	return err
}

func portTitle(name state.ServiceName, p *state.Port) string {
	title := fmt.Sprintf("%v, %v", name, p.Family)
	if p.Name != "" {
		title = fmt.Sprintf("%v, port %s, %v", name, p.Name, p.Family)
	}
	if p.Affinity > 0 {
		title += fmt.Sprintf(", affinity %v", p.Affinity)
	}
	return title
}

func frontendTitle(f *state.Frontend, protocol state.Protocol) string {
	address := fmt.Sprintf("%v:%d", f.Addr, f.Port)
	switch {
	case !f.Addr.IsValid():
		address = fmt.Sprintf("*:%d", f.Port)
	case f.Addr.Is6():
		address = fmt.Sprintf("[%v]:%d", f.Addr, f.Port)
	}
	if f.LastPort != 0 {
		address += fmt.Sprintf("-%d", f.LastPort)
	}
	title := fmt.Sprintf("%v %s/%v", f.Kind, address, protocol)
	if f.Restricted {
		title += fmt.Sprintf(", only for %s", (*prefixes)(&f.Sources))
	}
	return title
}

// trafficText has a line for all clients, or one for those on the node and one for those outside.
func trafficText(t *state.Traffic) string {
	if t.Inside.Equal(&t.Outside) {
		return fmt.Sprintf("    %s\n", routeText(&t.Inside, t.Masquerade))
	}
	return fmt.Sprintf("    from pods and the node: %s\n    from outside: %s\n", routeText(&t.Inside, t.Masquerade), routeText(&t.Outside, t.Masquerade))
}

// masquerades are how connections are forwarded that get a source address of the node.
var masquerades = map[state.Masquerade]string{
	state.MasqueradeNever: "", state.MasqueradeAlways: "; masqueraded", state.MasqueradeUnlessPod: "; masqueraded unless it is from a pod",
	state.MasqueradeNode: "; masqueraded if it is from the node",
}

// maxEndpoints is how many endpoints a line lists.
const maxEndpoints = 16

func routeText(r *state.Route, m state.Masquerade) string {
	if r.Verdict != state.Forward {
		return strings.ToLower(r.Verdict.String())
	}
	var list []string
	for i, e := range r.Endpoints {
		if i == maxEndpoints {
			list = append(list, fmt.Sprintf("and %d more", len(r.Endpoints)-i))
			break
		}
		list = append(list, e.Addr.String())
	}
	return "to " + strings.Join(list, ", ") + masquerades[m]
}
