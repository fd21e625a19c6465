package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/internal/admin/adminconv"
	"github.com/switchyard-net/switchyard/internal/admin/top"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/plaintext"
)

// topOptions are the flags of 'switchyard top'.
type topOptions struct {
	socket    adminSocket
	namespace string
	all       bool
	sort      string
	output    string
	once      bool
	period    time.Duration
}

// minTopPeriod is how often the counts of a process are read at most.
const minTopPeriod = time.Second

func newTopCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [NAME...]",
		Short: "Show how many new connections each port of a Service gets",
		Long: `Top shows how many new connections a second each port of a Service gets. Once in each period it asks
the process that routes on this node for its counts, through its admin API. REJECTS/S are connections
without an endpoint. DROPS/S are connections that the traffic policy or the source ranges have dropped.
TOTAL is all connections since the port was programmed; in mode ebpf, since the process has started.
ENDPOINTS counts the endpoints that get new connections of pods and processes of this node, and all
endpoints. The process must count: nftables.counters in its configuration file, in any mode of Linux.

NAME may be a pattern: * stands for any characters, ? for one, [a-z] for one of several.

The exit code of --once is 1 if there is no port to show.

On a terminal the table stays, with keys: q ends it, the arrows and pages move, s sorts by something else, and
/ filters. Elsewhere, one table or object of JSON follows the other.`,
		Example: `  switchyard top -A
  switchyard top -n shop 'cart*' --sort rejects
  switchyard top -A --once -o json --period 10s`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return o.run(cmd, names) },
		ValidArgsFunction: func(cmd *cobra.Command, names []string, start string) ([]string, cobra.ShellCompDirective) {
			get := getOptions{socket: o.socket, namespace: o.namespace, all: o.all}
			return get.complete(cmd.Context(), getKinds[0], names, start), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	o.socket.register(f)
	f.StringVarP(&o.namespace, "namespace", "n", corev1.NamespaceDefault, "namespace of the Services")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "show all namespaces")
	_ = cmd.RegisterFlagCompletionFunc("namespace", o.socket.completeNamespace)
	f.StringVar(&o.sort, "sort", string(top.ByConnections), "by what to sort: "+strings.Join(topOrders(), ", "))
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.BoolVar(&o.once, "once", false, "print one table, after one period, and exit")
	f.DurationVar(&o.period, "period", 2*time.Second, "in which time connections are counted, 1s at least")
	cli.Complete(cmd, "output", "table", "json")
	cli.Complete(cmd, "sort", topOrders()...)
	return cmd
}

// topOrders are the words of --sort.
func topOrders() []string {
	var words []string
	for _, order := range top.Orders {
		words = append(words, string(order))
	}
	return words
}

// check finds flags that cannot be used.
func (o *topOptions) check() error {
	switch {
	case !slices.Contains(top.Orders, top.Order(o.sort)):
		return cli.NoneOf("sort", o.sort, topOrders()...)
	case o.output != "table" && o.output != "json":
		return cli.NoneOf("output", o.output, "table", "json")
	case o.period < minTopPeriod:
		return fmt.Errorf("--period: %v is too short; give %v at least", o.period, minTopPeriod)
	}
	return o.socket.check()
}

func (o *topOptions) run(cmd *cobra.Command, names []string) error {
	if err := o.check(); err != nil {
		return cli.Usage(cmd.CommandPath(), err)
	}
	client, err := o.socket.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	selection := &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE, Names: names}
	if !o.all {
		selection.Namespace = o.namespace
	}
	reports := func(ctx context.Context) iter.Seq2[*top.Report, error] {
		return client.reports(ctx, selection, o.period)
	}
	out := cmd.OutOrStdout()
	if file, ok := plaintext.File(out); ok && o.output == "table" && !o.once && isTerminal(file) { // the live table draws on it, and cleans its lines
		live := &top.Live{Waiting: fmt.Sprintf("switchyard top: counting new connections for %v", o.period), Namespaces: o.all, Order: top.Order(o.sort)}
		return live.Run(cmd.Context(), file, reports)
	}
	first := true
	for report, err := range reports(cmd.Context()) {
		if err != nil {
			return err
		}
		if !first && o.output == "table" {
			fmt.Fprintln(out)
		}
		first = false
		if err := o.print(out, cmd.ErrOrStderr(), report); err != nil || o.once && len(report.Ports) > 0 {
			return err
		}
		if o.once {
			return o.missing(cmd.Context(), client, names)
		}
	}
	return nil
}

// missing is the error of a table without rows.
func (o *topOptions) missing(ctx context.Context, client *adminClient, names []string) error {
	get := getOptions{namespace: o.namespace, all: o.all}
	if err := get.missing(ctx, client, getKinds[0], nil, names); err != nil {
		return err
	}
	return errors.New("there are no ports of such Services")
}

// print prints a report, and what a person must know about it as notes.
func (o *topOptions) print(out, notes io.Writer, r *top.Report) error {
	r.Sort(top.Order(o.sort))
	if o.output == "json" {
		return writeJSON(out, r)
	}
	if r.LeftOut > 0 {
		defer fmt.Fprintf(notes, "switchyard: %d ports with fewer connections are left out: name a namespace or fewer Services\n", r.LeftOut)
	}
	if len(r.Ports) == 0 {
		if o.once {
			return nil // the error says so
		}
		fmt.Fprintf(notes, "switchyard: there are no ports of such Services%s\n", map[bool]string{true: " in namespace " + o.namespace + "; -A shows all namespaces"}[!o.all])
		return nil
	}
	return r.Write(out, o.all)
}

// reports yields the counts of Services in each period, until ctx ends.
func (c *adminClient) reports(ctx context.Context, selection *adminv1.Selection, period time.Duration) iter.Seq2[*top.Report, error] {
	return func(yield func(*top.Report, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Traffic(ctx, &adminv1.TrafficRequest{Selection: selection, Period: durationpb.New(period)})
		if err != nil {
			yield(nil, c.failed(err))
			return
		}
		var last *view.Traffic
		for {
			m, err := stream.Recv()
			if err != nil {
				if ctx.Err() == nil { // else it is interrupted
					yield(nil, c.failed(err))
				}
				return
			}
			now := adminconv.ToTraffic(m)
			if last != nil && !yield(top.Between(last, now), nil) {
				return
			}
			last = now
		}
	}
}
