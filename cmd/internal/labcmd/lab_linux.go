package labcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/examples"
	"github.com/switchyard-net/switchyard/internal/plaintext"
	"github.com/switchyard-net/switchyard/lab"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/test/dataplanes"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// defaultLabPage is where the lab's page is if --ui names no address.
const defaultLabPage = "127.0.0.1:10270"

// labOptions are the flags of 'switchyard lab'.
type labOptions struct {
	sources   []string
	namespace string
	once      bool
	format    string
	strict    bool
	dataplane string
	edge      bool
	page      cli.PageAddress
	log       cli.LogFlags
}

func newLabCommand() *cobra.Command {
	var o labOptions
	cmd := &cobra.Command{
		Use:   "lab [PATH...] [--once] [--dataplane nftables|iptables|ebpf|ipvs|userspace]",
		Short: cli.LabCommands["lab"],
		Long: `Lab builds a node in network namespaces and runs ordinary application manifests in it. It
connects to every Service from a pod, from the node and from outside.

A PATH is a manifest, a directory of them or a Kustomize directory, which is built; - is
standard input. Any number may be given, also with -f. Other documents than manifests are skipped.

Pods of Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers and
plain Pods become namespaces with echo servers on their ports, spread over two nodes. No
image is pulled. Services get their addresses and EndpointSlices as in a cluster. The lab compares
the answers with Kubernetes' rules. Editing the manifests changes the lab.
Nothing of it outlives the command, and nothing outside it is touched.

Below each Service, a line reports each fault, warning and remark about its manifests. The last line
counts them. The lab also checks the names in Ingresses, StatefulSets and probes.

With --once it prints the table once. It exits with 0 exactly if every connection was as it
must be. With --strict, faults and warnings about the manifests also make it exit with 1.

With --ui it serves a page for browsers. The page has the Services of the node under test, each
connection of the last round, and a form for explain.

With --dataplane userspace a relay above nftables accepts connections and continues them,
so that endpoints see the node's address. With --dataplane ebpf there are socket hooks above
nftables on the node. The last line says how many connections the hooks have translated; nftables
translates the others. That needs root.

With --edge three nodes hand connections from outside over to each other, for Services with the
annotation switchyard.net/edge: "true". Their pods see the client. The table has the number of
connections that were handed over. That needs root, and Linux 6.6.`,
		Example: `  switchyard lab                         # a web shop, as an example
  switchyard lab my-app/                 # your own manifests
  switchyard lab my-app/overlays/test    # a Kustomize directory
  helm template my-chart | switchyard lab -
  switchyard lab --edge examples/edge    # with nodes that hand connections over; as root
  switchyard lab --ui my-app/            # and look at http://127.0.0.1:10270/
  switchyard lab --once --strict my-app/ # in continuous integration
  switchyard lab --once --strict -o github my-app/  # with annotations at the lines of the manifests`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.sources = append(args, o.sources...)
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	const usage = "manifest, directory of manifests, Kustomize directory, or - for standard input; any number of times (default: an example that is built in)"
	f.StringArrayVarP(&o.sources, "filename", "f", nil, usage)
	f.Var(f.Lookup("filename").Value, "source", "the same as --filename")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of objects that name none, as 'kubectl apply -n' puts them there (default: default)")
	f.BoolVar(&o.once, "once", false, "print the table once and exit")
	f.StringVarP(&o.format, "output", "o", "", "with --once, print json, junit or github (annotations of GitHub Actions) in place of the table")
	f.BoolVar(&o.strict, "strict", false, "with --once, exit with 1 if the manifests have faults or warnings")
	f.StringVar(&o.dataplane, "dataplane", string(config.ModeNFTables), "nftables, iptables, or above nftables: ebpf for socket hooks, ipvs, userspace for a relay")
	f.BoolVar(&o.edge, "edge", false, "have three nodes hand connections from outside over to each other, with dataplane nftables or ebpf; needs root")
	f.Var(&o.page, "ui", "serve a page for browsers at 127.0.0.1:10270, or at an IP and port that are given as --ui=IP:PORT; everybody who can connect may read it")
	f.Lookup("ui").NoOptDefVal = defaultLabPage
	o.log.Register(f)
	cli.Complete(cmd, "output", lab.Formats...)
	cli.Complete(cmd, "dataplane", labDataplanes...)
	cli.Complete(cmd, "logging-format", cli.LogFormats...)
	return cmd
}

// labDataplanes are the words of --dataplane.
var labDataplanes = []string{
	string(config.ModeNFTables), string(config.ModeIPTables), string(config.ModeEBPF), string(config.ModeIPVS), string(config.ModeUserspace),
}

func (o *labOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	// In the live view, messages would tear the table.
	logTo := stderr
	if !o.once && o.log.Verbosity == 0 {
		logTo = io.Discard
	}
	log, err := o.log.Logger(logTo)
	if err != nil {
		return cli.Usage("switchyard lab", err)
	}
	if !slices.Contains(labDataplanes, o.dataplane) {
		return cli.Usage("switchyard lab", cli.NoneOf("dataplane", o.dataplane, labDataplanes...))
	}
	edgeBelow := []string{string(config.ModeNFTables), string(config.ModeEBPF)}
	switch {
	case o.edge && !slices.Contains(edgeBelow, o.dataplane):
		return cli.Usage("switchyard lab", fmt.Errorf("--edge is for --dataplane %s: leave one of them out", strings.Join(edgeBelow, " and ")))
	case o.format != "" && !slices.Contains(lab.Formats, o.format):
		return cli.Usage("switchyard lab", cli.NoneOf("output", o.format, lab.Formats...))
	case o.format != "" && !o.once:
		return cli.Usage("switchyard lab", errors.New("--output is for --once: give both, or leave it out"))
	case o.strict && !o.once:
		return cli.Usage("switchyard lab", errors.New("--strict is for --once: give both, or leave it out"))
	case o.once && o.page.IsValid():
		return cli.Usage("switchyard lab", errors.New("--ui is not for --once, which ends after one round: leave one of them out"))
	case o.page.IsValid() && o.page.Addr().IsUnspecified():
		return cli.Usage("switchyard lab", fmt.Errorf("--ui: %v is a wildcard; give one address, such as %s", o.page.AddrPort, defaultLabPage))
	}
	if o.edge {
		if err := lab.EdgeAvailable(); err != nil {
			return fmt.Errorf("--edge: %w; run it with sudo, or leave out --edge", err)
		}
	}
	page, err := o.enter()
	if err != nil {
		return err
	}
	if page != nil {
		defer page.Close()
	}
	if len(o.sources) == 0 {
		path, err := writeExample()
		if err != nil {
			return err
		}
		defer os.RemoveAll(filepath.Dir(path))
		o.sources = []string{path}
	}
	in, err := inputs.New(inputs.Options{Paths: o.sources, Stdin: stdin, Namespace: o.namespace, Command: kustomizeCommand})
	if err != nil {
		return err
	}
	size := terminalSize(stdout)
	width, _ := size()
	if file, ok := plaintext.File(stdout); ok && width > 0 && !o.once {
		stdout = file // the live table draws on it, and cleans its lines
	}
	options := lab.Options{
		Inputs: in, Format: o.format, Strict: o.strict, Out: stdout, Size: size, Colour: width > 0 && os.Getenv("NO_COLOR") == "", Logger: log,
		Relays: o.dataplane == string(config.ModeUserspace), Edge: o.edge, Page: page, Mode: o.dataplane,
		Dataplane: func(l *topology.Lab) (lab.Dataplane, error) { return o.open(ctx, l, log) },
	}
	if !o.once {
		return lab.Live(ctx, options)
	}
	return lab.Once(ctx, options)
}

// open makes the dataplane of the node under test.
func (o *labOptions) open(ctx context.Context, l *topology.Lab, log *slog.Logger) (lab.Dataplane, error) {
	base := nftables.Options{Logger: log}
	if o.edge {
		base.Edge = lab.EdgeMark
	}
	switch {
	case config.Mode(o.dataplane) == config.ModeEBPF:
	case o.edge:
		return nftables.New(ctx, base)
	default:
		return dataplanes.Open(ctx, o.dataplane, dataplanes.Options{Logger: log})
	}
	pair, err := sockethooks.NewPair(ctx, sockethooks.Of(l), base, new(atomic.Uint64))
	if err != nil {
		return nil, fmt.Errorf("%w; leave out --dataplane to go without hooks", err)
	}
	return pair, nil
}

// enter is enterNamespaces with the listener of the page, if there is to be one. It listens in the network that the command was called in, where
// browsers are.
func (o *labOptions) enter() (page net.Listener, err error) {
	if !o.page.IsValid() {
		return nil, enterNamespaces()
	}
	if file := netns.Inherited(0); file != nil {
		defer file.Close()
		if err := enterNamespaces(); err != nil {
			return nil, err
		}
		return net.FileListener(file)
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(o.page.AddrPort))
	if err != nil {
		return nil, fmt.Errorf("--ui: %w; give another address as --ui=IP:PORT", err)
	}
	file, err := l.File()
	if err == nil {
		defer file.Close()
		err = enterNamespaces(file)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// enterNamespaces returns nil in a process that may make network namespaces. Where only a user namespace gives that right,
// it runs this program again in one, with some files, and returns that program's exit code.
func enterNamespaces(files ...*os.File) error {
	err := netns.Check()
	if _, ok := errors.AsType[*netns.PermissionError](err); !ok {
		return err
	}
	code, reexecErr := netns.Reexec(files...)
	if reexecErr != nil {
		return fmt.Errorf("%w; or run it with sudo", reexecErr)
	}
	return cli.ExitCode(code)
}

// kustomizeName is the command that builds a Kustomize directory for the lab.
const kustomizeName = "lab-kustomize"

func kustomizeCommand(dir string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{cli.Lab, kustomizeName, "--", dir}}
}

// writeExample puts the built-in manifests into a temporary directory, where they can be edited while the lab runs. The
// caller removes its parent.
func writeExample() (string, error) {
	dir, err := os.MkdirTemp("", "switchyard-lab-")
	if err != nil {
		return "", fmt.Errorf("write the example: %w", err)
	}
	path := filepath.Join(dir, "shop")
	shop, err := fs.Sub(examples.Shop, "shop")
	if err == nil {
		err = os.CopyFS(path, shop)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("write the example: %w", err), os.RemoveAll(dir))
	}
	return path, nil
}

// terminalSize returns a function that returns the size of the terminal that w is, or zeros.
func terminalSize(w io.Writer) func() (width, height int) {
	f, ok := plaintext.File(w)
	if !ok {
		return func() (int, int) { return 0, 0 }
	}
	return func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0, 0
		}
		return int(size.Col), int(size.Row)
	}
}
