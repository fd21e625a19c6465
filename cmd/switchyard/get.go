package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/internal/admin/adminconv"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
)

// getOptions are the flags of 'switchyard get'.
type getOptions struct {
	socket    adminSocket
	namespace string
	all       bool
	output    string
	watch     bool
	limit     int
}

// getOutputs are the words of --output.
var getOutputs = []string{"wide", "json", "yaml"}

func newGetCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show the Services, endpoints and Node of a running process, or its status",
		Long: `Get asks the process that routes on this node, through its admin API. The process serves that API at a
socket for root and its own user (--admin-bind-address). Get changes nothing.

ENDPOINTS counts the endpoints that get new connections of pods and processes of this node, and all
endpoints. The reasons of the others are in the words of 'switchyard explain'.`,
		Example: `  switchyard get status
  switchyard get services -A
  switchyard get services -n shop 'cart*' --watch
  switchyard get endpoints -n shop db -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	o.socket.register(f)
	f.StringVarP(&o.output, "output", "o", "", "wide, json or yaml")
	cli.Complete(cmd, "output", getOutputs...)
	for _, k := range getKinds {
		cmd.AddCommand(o.rowsCommand(k))
	}
	status := &cobra.Command{
		Use: "status", Short: "Show how the process is doing", Args: cobra.NoArgs,
		Long: `Status shows the dataplane, how far it is, and all that is not as it should be. The exit code is 1 if
the dataplane does not keep up, or something makes the node unhealthy.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.status(cmd) },
	}
	cmd.AddCommand(status)
	return cmd
}

// rowsCommand returns the command for the rows of a kind.
func (o *getOptions) rowsCommand(k getKind) *cobra.Command {
	cmd := &cobra.Command{
		Use: k.name + " [NAME...]", Aliases: k.aliases, Short: "Show " + k.what,
		Long: fmt.Sprintf(`Show %s.

NAME may be a pattern: * stands for any characters, ? for one, [a-z] for one of several.

The exit code is 1 if there is nothing to show, or if a NAME matches nothing.`, k.what),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return o.rows(cmd, k, names) },
		ValidArgsFunction: func(cmd *cobra.Command, names []string, start string) ([]string, cobra.ShellCompDirective) {
			return o.complete(cmd.Context(), k, names, start), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "go on with what changes, until it is interrupted; of 1,000 rows at most")
	f.IntVar(&o.limit, "limit", 0, "how many rows to show at most; 0 for all")
	if k.namespaced {
		f.StringVarP(&o.namespace, "namespace", "n", corev1.NamespaceDefault, "namespace of the Services")
		f.BoolVarP(&o.all, "all-namespaces", "A", false, "show all namespaces")
		_ = cmd.RegisterFlagCompletionFunc("namespace", o.socket.completeNamespace)
	}
	return cmd
}

// check finds flags that cannot be used.
func (o *getOptions) check() error {
	if o.output != "" && !slices.Contains(getOutputs, o.output) {
		return cli.NoneOf("output", o.output, getOutputs...)
	}
	switch {
	case o.limit < 0:
		return fmt.Errorf("--limit: %d is negative; give a number of rows, or 0 for all", o.limit)
	case o.limit > 0 && o.watch:
		return errors.New("--limit and --watch exclude each other: name fewer rows to watch")
	}
	return o.socket.check()
}

func (o *getOptions) selection(k getKind, names []string) *adminv1.Selection {
	s := &adminv1.Selection{Kind: k.kind, Names: names}
	if k.namespaced && !o.all {
		s.Namespace = o.namespace
	}
	return s
}

// complete returns the names that begin as one does.
func (o *getOptions) complete(ctx context.Context, k getKind, names []string, start string) (found []string) {
	if o.check() != nil || strings.ContainsAny(start, patternChars) {
		return nil
	}
	client, err := o.socket.dial()
	if err != nil {
		return nil
	}
	defer client.Close()
	k = getKinds[k.completedBy]
	keys, err := client.keys(ctx, o.selection(k, []string{start + "*"}))
	if err != nil {
		return nil
	}
	for _, key := range keys {
		if name := nameIn(key); !slices.Contains(names, name) {
			found = append(found, name)
		}
	}
	return found
}

// nameIn returns the name in the key of a row, NAMESPACE/NAME or NAME.
func nameIn(key string) string { return key[strings.Index(key, "/")+1:] }

// dial checks the flags, and connects to the process.
func (o *getOptions) dial(cmd *cobra.Command) (*adminClient, error) {
	if err := o.check(); err != nil {
		return nil, cli.Usage(cmd.CommandPath(), err)
	}
	return o.socket.dial()
}

func (o *getOptions) rows(cmd *cobra.Command, k getKind, names []string) error {
	client, err := o.dial(cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	selection, out := o.selection(k, names), cmd.OutOrStdout()
	if o.watch {
		return o.follow(cmd.Context(), client, k, selection, out)
	}
	var rows []any
	more, err := client.list(cmd.Context(), selection, o.limit, func(m *adminv1.Row) error {
		row, err := rowOf(m)
		rows = append(rows, row)
		return err
	})
	if err != nil {
		return err
	}
	if o.output == "json" || o.output == "yaml" {
		err = writeValue(out, o.output, append([]any{}, rows...))
	} else if len(rows) > 0 {
		t := o.table(k)
		for _, row := range rows {
			t.add(k.cells(row, o.output == "wide"))
		}
		err = t.write(out)
	}
	if err != nil {
		return err
	}
	if more {
		fmt.Fprintf(cmd.ErrOrStderr(), "switchyard: more rows are left out: --limit %d\n", o.limit)
		return nil
	}
	return o.missing(cmd.Context(), client, k, rows, names)
}

// missing returns an error with a hint if no row was found, or none with one of the names.
func (o *getOptions) missing(ctx context.Context, client *adminClient, k getKind, rows []any, names []string) error {
	h := hints{ctx: ctx, client: client, kind: getKinds[k.completedBy].kind, what: "Service", namespace: o.namespace}
	switch {
	case !k.namespaced:
		h.what, h.namespace = "Node", ""
	case o.all:
		h.namespace = ""
	}
	if len(names) == 0 && len(rows) == 0 {
		return h.none(k.name)
	}
	found := map[string]bool{}
	for _, row := range rows {
		found[k.nameOf(row)] = true
	}
	var errs []error
	for _, name := range names {
		if isPattern := strings.ContainsAny(name, patternChars); !found[name] && !(isPattern && len(rows) > 0) {
			errs = append(errs, h.noName(name))
		}
	}
	return errors.Join(errs...)
}

// patternChars make a name a pattern.
const patternChars = `*?[\`

// follow prints rows and what changes about them.
func (o *getOptions) follow(ctx context.Context, client *adminClient, k getKind, selection *adminv1.Selection, out io.Writer) error {
	stream, err := client.Watch(ctx, &adminv1.WatchRequest{Selection: selection})
	if err != nil {
		return client.failed(err)
	}
	t := o.table(k)
	for {
		m, err := stream.Recv()
		if err != nil {
			if ctx.Err() != nil {
				return nil // interrupted
			}
			return client.failed(err)
		}
		changes := changes{Set: []any{}, Deleted: m.GetDeleted()}
		for _, r := range m.GetSet() {
			row, err := rowOf(r)
			if err != nil {
				return err
			}
			changes.Set = append(changes.Set, row)
			t.add(k.cells(row, o.output == "wide"))
		}
		if o.output == "json" || o.output == "yaml" {
			err = writeValue(out, o.output, changes)
		} else {
			for _, key := range m.GetDeleted() {
				t.note(key + " is gone")
			}
			err = t.write(out)
		}
		if err != nil {
			return err
		}
	}
}

// changes are what -o json and yaml print for each step of --watch.
type changes struct {
	Set     []any    `json:"set"`
	Deleted []string `json:"deleted,omitempty"`
}

// rowOf returns the row of a message, as package view has it.
func rowOf(m *adminv1.Row) (any, error) {
	switch {
	case m.GetService() != nil:
		return adminconv.ToService(m.GetService())
	case m.GetEndpoint() != nil:
		return adminconv.ToEndpoint(m.GetEndpoint())
	case m.GetNode() != nil:
		return adminconv.ToNode(m.GetNode())
	}
	return nil, fmt.Errorf("row %q is of a kind that this version does not know: use the version of the running process", m.GetKey())
}

func (o *getOptions) status(cmd *cobra.Command) error {
	client, err := o.dial(cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	m, err := client.GetStatus(cmd.Context(), &adminv1.GetStatusRequest{})
	if err != nil {
		return client.failed(err)
	}
	s, out := adminconv.ToStatus(m.GetStatus()), cmd.OutOrStdout()
	if o.output == "json" || o.output == "yaml" {
		err = writeValue(out, o.output, s)
	} else {
		err = writeStatus(out, s)
	}
	if err != nil {
		return err
	}
	if unwell(s) {
		return cli.ExitCode(cli.ExitError)
	}
	return nil
}

// writeValue prints a value for programs.
func writeValue(w io.Writer, format string, v any) error {
	if format == "json" {
		return writeJSON(w, v)
	}
	text, err := asYAML(v)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// orNone shows a missing value as kubectl does.
func orNone(text string) string { return cmp.Or(text, "<none>") }
