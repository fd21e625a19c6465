package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/plaintext"
	"github.com/switchyard-net/switchyard/internal/spelling"
)

// kubectlName is the name by which kubectl finds the program as a plugin: kubectl switchyard.
const kubectlName = "kubectl-switchyard"

// kubectlOptions are the flags of 'switchyard kubectl'.
type kubectlOptions struct {
	node                string
	namespace, selector string
	kubeconfig, context string
}

func newKubectlCommand() *cobra.Command {
	var o kubectlOptions
	cmd := &cobra.Command{
		Use:   "kubectl [--node NODE] get|top|explain|doctor ARG...",
		Short: "Run get, top, explain or doctor in Switchyard's pod on a node, by kubectl",
		Long: `Kubectl finds the pod of Switchyard's DaemonSet on a node. It runs 'switchyard get', 'switchyard top',
'switchyard explain' or 'switchyard doctor' in the pod, by 'kubectl exec'. Under the name
kubectl-switchyard the program is a plugin of kubectl: 'kubectl switchyard get status'.

Of explain, a client pod/NAMESPACE/NAME decides about the node, unless --node is given, and its address takes
its place. Flags of this command come before the other one.`,
		Example: `  kubectl switchyard --node node-a get services -A
  kubectl switchyard --node node-a top -A
  kubectl switchyard explain pod/shop/cart-0 svc/shop/db
  kubectl switchyard --node node-a doctor --problems`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || !slices.Contains([]string{"get", "top", "explain", "doctor"}, args[0]) {
				return errors.New("which command is to run in the pod? Name get, top, explain or doctor, after the flags of this one")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.node, "node", "", "node to ask (default: the node of the pod in FROM of explain, or the only one)")
	f.StringVar(&o.namespace, "daemonset-namespace", "kube-system", "namespace of the DaemonSet")
	f.StringVar(&o.selector, "selector", "app.kubernetes.io/name=switchyard", "labels of its pods")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig for kubectl")
	f.StringVar(&o.context, "context", "", "context for kubectl")
	return cmd
}

// kubectl returns a call of kubectl.
func (o *kubectlOptions) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	var flags []string
	if o.kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+o.kubeconfig)
	}
	if o.context != "" {
		flags = append(flags, "--context="+o.context)
	}
	return exec.CommandContext(ctx, "kubectl", append(flags, args...)...)
}

// output returns what a call of kubectl prints, a line an item, each with its columns.
func (o *kubectlOptions) output(ctx context.Context, args ...string) ([][]string, error) {
	var out, complaint bytes.Buffer
	cmd := o.kubectl(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%w: install kubectl, which this command calls", err)
		}
		return nil, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args[:2], " "), err, strings.TrimSpace(complaint.String()))
	}
	var lines [][]string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return lines, nil
}

func (o *kubectlOptions) run(ctx context.Context, args []string, in io.Reader, out, complaints io.Writer) error {
	args, err := o.resolve(ctx, args)
	if err != nil {
		return err
	}
	pod, container, err := o.pod(ctx, args[0])
	if err != nil {
		return err
	}
	call := []string{"exec", "--namespace=" + o.namespace, pod, "--container=" + container}
	if file, ok := plaintext.File(out); ok && args[0] == "top" && isTerminal(in) && isTerminal(file) {
		call = append(call, "--stdin", "--tty") // for its keys
		out = file                              // it draws there, and cleans its lines
	}
	cmd := o.kubectl(ctx, append(append(call, "--", "/switchyard"), args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, complaints
	err = cmd.Run()
	if code, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return cli.ExitCode(code.ExitCode())
	}
	return err
}

// resolve puts the address of a client that is a pod in its place, because the process on the node knows no pods.
func (o *kubectlOptions) resolve(ctx context.Context, args []string) ([]string, error) {
	at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "pod/") })
	if args[0] != "explain" || at < 0 {
		return args, nil
	}
	namespace, name, ok := strings.Cut(strings.TrimPrefix(args[at], "pod/"), "/")
	if !ok {
		namespace, name = "default", namespace
	}
	lines, err := o.output(ctx, "get", "pod", "--namespace="+namespace, name, `-o=jsonpath={.spec.nodeName}{"\t"}{.status.podIP}{"\n"}`)
	if err != nil {
		return nil, err
	}
	if len(lines) != 1 || len(lines[0]) != 2 || lines[0][0] == "" || lines[0][1] == "" {
		return nil, fmt.Errorf("pod %s/%s has no node or no address yet: it does not run; kubectl describe pod says why", namespace, name)
	}
	args = slices.Clone(args)
	args[at] = lines[0][1]
	if to := at + 1; to < len(args) {
		args[to] = explain.In(namespace, args[to]) // a name without a namespace is in the pod's
	}
	if o.node == "" {
		o.node = lines[0][0]
	}
	return args, nil
}

// podColumns are the name, node and containers of a pod.
const podColumns = `-o=jsonpath={range .items[*]}{.metadata.name}{"\t"}{.spec.nodeName}{"\t"}{.spec.containers[*].name}{"\n"}{end}`

// pod returns the pod on the node, and the container to run a command in.
func (o *kubectlOptions) pod(ctx context.Context, command string) (name, container string, err error) {
	fields := "status.phase=Running"
	if o.node != "" {
		fields += ",spec.nodeName=" + o.node
	}
	lines, err := o.output(ctx, "get", "pods", "--namespace="+o.namespace, "--selector="+o.selector, "--field-selector="+fields, podColumns)
	if err != nil {
		return "", "", err
	}
	var nodes []string
	for _, l := range lines {
		if len(l) == 3 {
			nodes = append(nodes, l[1])
			name, container = l[0], containerOf(command, strings.Fields(l[2]))
		}
	}
	switch {
	case len(nodes) == 1:
		return name, container, nil
	case len(nodes) > 1:
		slices.Sort(nodes)
		return "", "", fmt.Errorf("which node is to be asked? Choose one with --node: %s", someOf(nodes, o.node))
	}
	where := ""
	if o.node != "" {
		where = " on node " + o.node
	}
	return "", "", fmt.Errorf("no pod of Switchyard runs%s in namespace %s with %s; name another place with --daemonset-namespace or --selector", where, o.namespace, o.selector)
}

// containerOf returns which of the containers of a pod runs a command. Of two, serve has the cluster's objects, and apply the rights that
// doctor is to look with.
func containerOf(command string, containers []string) string {
	first := "serve"
	if command == "doctor" {
		first = "apply"
	}
	for _, name := range []string{first, "switchyard"} {
		if slices.Contains(containers, name) {
			return name
		}
	}
	return containers[0]
}

// someOf names a few of many. Of many, the one that is spelled like a name is the first.
func someOf(names []string, like string) string {
	const most = 10
	if len(names) > most {
		if i := slices.Index(names, spelling.Closest(like, names)); i > 0 {
			names = slices.Concat(names[i:i+1], names[:i], names[i+1:])
		}
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
