package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/explain"
)

// Exit codes of 'switchyard explain' for connections that are not forwarded.
const (
	exitRejected  = 3
	exitDropped   = 4
	exitNotServed = 5
)

// explainOptions are the flags of 'switchyard explain'.
type explainOptions struct {
	source     string
	lab        []string
	kubeconfig string
	master     string
	node       string
	files      fileNames
	output     string
	all        bool
	routing    routingFlags
	socket     adminSocket
	flags      *pflag.FlagSet
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain FROM TO",
		Short: "Say why a connection goes where it goes, or nowhere",
		Long: `Explain says what a node does with a connection to a Service, and why. It shows the frontend, the
kind of client, each policy that applies, and every endpoint with the reason why it gets connections
or not. It also shows whose address the server sees, and how answers come back. It needs no rights
on the node.

FROM is pod/NAMESPACE/NAME, node, outside or an IP address, maybe with a port. TO is one of these:

    svc/NAMESPACE/NAME[:PORT]         a Service; PORT is a name or a number, and all ports count without it
    NAMESPACE/NAME[:PORT]             the same
    NAME, NAME.NAMESPACE[:PORT]       the name of a Service in DNS, also with .svc.CLUSTER-DOMAIN
    http://NAME.NAMESPACE/PATH        a URL
    IP:PORT[/PROTOCOL]                any address

A running process on this node answers through its admin API (--socket), by its own objects and configuration.
With --source or --kubeconfig, or if no process serves that socket, explain computes the answer itself. The
objects come from manifests (--source, or - for standard input) or from an API server. Explain needs the
Services, EndpointSlices, Nodes, Namespaces and Pods of a cluster. Give it the routing flags, or the
configuration file, of the node's proxy. With --lab, explain reads manifests of applications, and adds the
addresses, pods and EndpointSlices that 'switchyard lab' gives them.

The exit code is 0 if the connection is forwarded, 3 if it is rejected, and 4 if it is dropped. It is 5
if the service proxy does nothing with the connection. It is 1 if there is no answer, and 2 for mistakes
in the command line. Of several ports, it is the highest.`,
		Example: `  switchyard explain 10.244.1.5 svc/shop/db
  switchyard explain pod/shop/cart-0 db --cluster-cidr 10.244.0.0/16
  switchyard explain pod/shop/cart-0 http://db.shop.svc.cluster.local:8080/ --source dump.yaml
  switchyard explain node db.shop --lab my-app/
  switchyard explain outside 203.0.113.10:443 --node node-a
  kubectl get services,endpointslices,nodes,namespaces,pods -A -o yaml | switchyard explain node svc/shop/db:5432 --source - --node node-a`,
		Args: questionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0], args[1])
		},
		ValidArgsFunction: o.complete,
	}
	f := cmd.Flags()
	o.flags = f
	f.StringVar(&o.source, "source", "", "manifest or directory of manifests, or - for standard input, instead of an API server")
	f.StringArrayVar(&o.lab, "lab", nil, "manifests of applications, a Kustomize directory, or - for standard input: answer as 'switchyard lab' would run them, with its pods; any number of times")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", kubeconfigUsage)
	f.StringVar(&o.master, "master", "", "address of the API server, in place of the kubeconfig's")
	f.StringVar(&o.node, "node", "", "node whose proxy handles the connection (default: the node of the pod in FROM, or the only one)")
	f.Var(&o.files, "config", "configuration file of the node's proxy, as for 'switchyard run'; flags about routing override it")
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	f.BoolVar(&o.all, "all", false, "list all endpoints, however many there are")
	o.socket.register(f)
	o.routing.register(f, "")
	cli.Complete(cmd, "output", "text", "json")
	_ = cmd.RegisterFlagCompletionFunc("node", o.completeNode)
	return cmd
}

// questionArgs requires a client and a destination. Its errors show how to name them.
func questionArgs(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 2:
		return nil
	case 0:
		return fmt.Errorf("which connection? Name who connects (FROM) and to what (TO), such as:\n%s", cmd.Example)
	case 1:
		return fmt.Errorf("TO is missing: name the destination of %s, such as svc/NAMESPACE/NAME, cart.shop:http, http://cart.shop/ or 10.96.0.10:53/udp", args[0])
	}
	return fmt.Errorf("explain takes FROM and TO, and got %d words: %s; ask about one connection at a time", len(args), strings.Join(args, " "))
}

func (o *explainOptions) run(cmd *cobra.Command, fromText, toText string) error {
	from, err := explain.ParseFrom(fromText)
	to, toErr := explain.ParseTo(toText)
	if err := errors.Join(err, toErr, o.check()); err != nil {
		return cli.Usage(cmd.CommandPath(), err)
	}
	if o.asksProcess() {
		return o.askProcess(cmd, fromText, toText)
	}
	c, err := o.config(cmd)
	if err != nil {
		return err
	}
	objects, err := o.objects(cmd, c, from, to)
	if err != nil {
		return err
	}
	for _, p := range objects.problems {
		fmt.Fprintf(cmd.ErrOrStderr(), "switchyard: ignored: %v\n", p)
	}
	given := c.HostnameOverride
	if len(o.lab) > 0 {
		setLab(c)
		given = cmp.Or(given, objects.nodeOf(from), labNode)
	}
	name, err := objects.nodeFor(from, given)
	if err != nil {
		return err
	}
	if o.source == "" && len(o.lab) == 0 {
		objects.only(name)
	}
	s := objects.store(c, name)
	defer s.Close()
	answers, err := explain.New(explain.Options{Store: s, Facts: objects.facts}).Ask(cmd.Context(), from, to)
	if err != nil {
		return err
	}
	return o.report(cmd, answers)
}

// report prints answers, and returns their exit code.
func (o *explainOptions) report(cmd *cobra.Command, answers []*explain.Answer) error {
	if err := o.print(cmd.OutOrStdout(), answers); err != nil {
		return err
	}
	return verdictCode(answers)
}

// asksProcess reports whether a running process answers: one is named, or there is one and nothing else is named.
func (o *explainOptions) asksProcess() bool {
	return o.flags.Changed("socket") || o.source == "" && len(o.lab) == 0 && o.kubeconfig == "" && o.master == "" && len(o.files) == 0 && o.socket.exists()
}

// beforeProcess are the flags that mean something to a running process.
var beforeProcess = []string{"socket", "node", "output", "all"}

// askProcess has a running process answer.
func (o *explainOptions) askProcess(cmd *cobra.Command, from, to string) error {
	var others []string
	o.flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains(beforeProcess, f.Name) {
			others = append(others, "--"+f.Name)
		}
	})
	if len(others) > 0 {
		return cli.Usage(cmd.CommandPath(), fmt.Errorf("%s: the process at %s answers, by its own objects and configuration: leave that out, or name objects with --source or --kubeconfig",
			strings.Join(others, ", "), o.socket.path()))
	}
	client, err := o.socket.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	answers, err := client.ask(cmd.Context(), from, to)
	if err != nil {
		return err
	}
	if o.node != "" && len(answers) > 0 && answers[0].Node != o.node {
		return fmt.Errorf("--node: the process at %s serves node %s: ask on node %s, or name objects with --source or --kubeconfig", o.socket.path(), answers[0].Node, o.node)
	}
	return o.report(cmd, answers)
}

// check finds flags that contradict each other, or that cannot be used.
func (o *explainOptions) check() error {
	switch {
	case len(o.lab) > 0 && (o.source != "" || o.kubeconfig != "" || o.master != "" || o.flags.Changed("socket")):
		return errors.New("--lab and --source, --kubeconfig, --master or --socket exclude each other: objects come from one place; leave out all but one")
	case o.flags.Changed("socket") && (o.source != "" || o.kubeconfig != "" || o.master != "" || len(o.files) > 0):
		return errors.New("--socket and --source, --kubeconfig, --master or --config exclude each other: a running process has objects and a configuration of its own; leave out all but one")
	case o.output != "text" && o.output != "json":
		return cli.NoneOf("output", o.output, "text", "json")
	case o.source != "" && (o.kubeconfig != "" || o.master != ""):
		return errors.New("--source and --kubeconfig or --master exclude each other: objects come from one place; leave out all but one")
	}
	return errors.Join(o.socket.check(), o.routing.check())
}

// config is the configuration of the node's proxy, by the file and the flags.
func (o *explainOptions) config(cmd *cobra.Command) (*config.Config, error) {
	if o.source == stdinName && fromStdin(o.files) {
		return nil, cli.Usage(cmd.CommandPath(), fmt.Errorf("--source and --config both name standard input (%s), which can be read once: leave one out", stdinName))
	}
	c, err := configOf(cmd, o.files)
	if err != nil {
		return nil, err
	}
	o.routing.set(c, func(flag string) bool { return len(o.files) == 0 || o.flags.Changed(flag) })
	if o.node != "" {
		c.HostnameOverride = o.node
	}
	if o.kubeconfig != "" {
		c.ClientConnection.Kubeconfig = o.kubeconfig
	}
	return c, nil
}

// objects returns the cluster's objects.
func (o *explainOptions) objects(cmd *cobra.Command, c *config.Config, from explain.From, to explain.To) (*clusterObjects, error) {
	switch {
	case o.source != "":
		return manifestObjects(cmd, o.source)
	case len(o.lab) > 0:
		return o.labObjects(cmd)
	}
	return apiObjects(cmd.Context(), c, o.master, from, to)
}

func (o *explainOptions) print(w io.Writer, answers []*explain.Answer) error {
	if o.output == "json" {
		return writeJSON(w, answers)
	}
	style := explain.Style{Colour: hasColour(w), All: o.all}
	for i, a := range answers {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := style.Write(w, a); err != nil {
			return err
		}
	}
	return nil
}

// verdictCode returns the exit code as an error, nil if all connections are forwarded.
func verdictCode(answers []*explain.Answer) error {
	code := cli.ExitOK
	for _, a := range answers {
		switch a.Verdict {
		case explain.Rejected:
			code = max(code, exitRejected)
		case explain.Dropped:
			code = max(code, exitDropped)
		case explain.NotServed:
			code = max(code, exitNotServed)
		}
	}
	if code == cli.ExitOK {
		return nil
	}
	return cli.ExitCode(code)
}

// nodeFor returns the node on which a connection is looked at: the given node, the client's node, or the only node.
func (c *clusterObjects) nodeFor(from explain.From, given string) (string, error) {
	names := c.nodeNames()
	if given != "" {
		if len(names) > 0 && !slices.Contains(names, given) {
			return "", fmt.Errorf("there is no Node %q, only %s; choose one of them with --node", given, someOf(names, given))
		}
		return given, nil
	}
	if name := c.nodeOf(from); name != "" {
		return name, nil
	}
	if len(names) == 1 {
		return names[0], nil
	}
	host, err := nodeOrHost("")
	if err != nil || len(names) == 0 || slices.Contains(names, host) {
		return host, err
	}
	return "", fmt.Errorf("which node handles the connection? Choose one with --node: %s", someOf(names, host))
}
