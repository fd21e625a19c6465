package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/examples"
	"github.com/switchyard-net/switchyard/lab"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/sockethooks"
	"github.com/switchyard-net/switchyard/test/topology"
)

// labOptions are the flags of 'switchyard lab'.
type labOptions struct {
	sources   []string
	once      bool
	dataplane string
	log       logFlags
}

func newLabCommand() *cobra.Command {
	var o labOptions
	cmd := &cobra.Command{
		Use:   "lab [PATH...] [--once] [--dataplane nftables|iptables|ebpf|ipvs|userspace]",
		Short: "Show what manifests do, in a throw-away node",
		Long: `Lab builds a node in network namespaces, runs ordinary application manifests in it and
connects to every Service from a pod, from the node and from outside.

A PATH is a manifest, a directory of them or a Kustomize directory, which is built; - is
standard input. Any number may be given, also by -f. What is no manifest is skipped.

Pods of Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers and
plain Pods become namespaces with echo servers on their ports, spread over two nodes; no
image is pulled. Services get their addresses and EndpointSlices as in a cluster. What answers is
compared with what Kubernetes' rules demand. Editing the manifests changes the lab.
Nothing of it outlives the command, and nothing outside it is touched.

With --once it prints the table once. It exits with 0 exactly if everything was as it
must be.

With --dataplane userspace a relay above nftables accepts connections and continues them,
so that endpoints see the node's address. With --dataplane ebpf there are socket hooks above nftables on the node. The last line
says how many connections they have translated; nftables does the others. That needs root.`,
		Example: `  switchyard lab                         # a web shop, as an example
  switchyard lab my-app/                 # your own manifests
  switchyard lab my-app/overlays/test    # a Kustomize directory
  helm template my-chart | switchyard lab -
  switchyard lab --once my-app/ crd.yaml # in continuous integration`,
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
	f.BoolVar(&o.once, "once", false, "print the table once and exit")
	f.StringVar(&o.dataplane, "dataplane", string(config.ModeNFTables), "nftables, iptables, or above nftables: ebpf for socket hooks, ipvs, userspace for a relay")
	o.log.register(f)
	return cmd
}

func (o *labOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	// In the live view, messages would tear the table.
	logTo := stderr
	if !o.once && o.log.verbosity == 0 {
		logTo = io.Discard
	}
	log, err := o.log.logger(logTo)
	if err != nil {
		return &usageError{"switchyard lab", err}
	}
	known := []config.Mode{config.ModeNFTables, config.ModeIPTables, config.ModeEBPF, config.ModeIPVS, config.ModeUserspace}
	if !slices.Contains(known, config.Mode(o.dataplane)) {
		return &usageError{"switchyard lab", fmt.Errorf("--dataplane: %q is none of %v", o.dataplane, known)}
	}
	if err := enterNamespaces(); err != nil {
		return err
	}
	if len(o.sources) == 0 {
		path, err := writeExample()
		if err != nil {
			return err
		}
		defer os.RemoveAll(filepath.Dir(path))
		o.sources = []string{path}
	}
	in, err := inputs.New(o.sources, stdin)
	if err != nil {
		return err
	}
	if errs := in.Load().Errs; len(errs) > 0 && !o.once {
		return errors.Join(errs...)
	}
	size := terminalSize(stdout)
	width, _ := size()
	options := lab.Options{
		Inputs: in, Out: stdout, Size: size, Colour: width > 0 && os.Getenv("NO_COLOR") == "", Logger: log,
		Relays:    o.dataplane == string(config.ModeUserspace),
		Dataplane: func(l *topology.Lab) (lab.Dataplane, error) { return o.open(ctx, l, log) },
	}
	if !o.once {
		return lab.Live(ctx, options)
	}
	return lab.Once(ctx, options)
}

// open makes the dataplane of the node under test.
func (o *labOptions) open(ctx context.Context, l *topology.Lab, log *slog.Logger) (lab.Dataplane, error) {
	options := nftables.Options{Logger: log}
	switch config.Mode(o.dataplane) {
	case config.ModeNFTables:
		return nftables.New(ctx, options)
	case config.ModeIPTables:
		return iptables.New(ctx, iptables.Options{Logger: log})
	case config.ModeIPVS:
		return openIPVS(ctx, options)
	case config.ModeUserspace:
		return newRelayed(ctx, options)
	}
	pair, err := sockethooks.NewPair(ctx, sockethooks.Of(l), options, new(atomic.Uint64))
	if err != nil {
		return nil, fmt.Errorf("%w; leave out --dataplane to go without hooks", err)
	}
	return pair, nil
}

// withIPVS is IPVS above nftables.
type withIPVS struct {
	*ipvs.Backend
	base *nftables.Backend
}

func openIPVS(ctx context.Context, o nftables.Options) (lab.Dataplane, error) {
	var above atomic.Pointer[ipvs.Backend]
	o.Elsewhere = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Serves(k) }
	base, err := nftables.New(ctx, o)
	if err != nil {
		return nil, err
	}
	b, err := ipvs.New(base, ipvs.Options{Logger: o.Logger, Commit: base.Commit})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	above.Store(b)
	return withIPVS{b, base}, nil
}

// Close implements [lab.Dataplane].
func (d withIPVS) Close() error { return errors.Join(d.Backend.Close(), d.base.Close()) }

// relayed is a relay with nftables below.
type relayed struct {
	*userspace.Backend
	base *nftables.Backend
}

func newRelayed(ctx context.Context, o nftables.Options) (*relayed, error) {
	base, err := nftables.New(ctx, o)
	if err != nil {
		return nil, err
	}
	relay, err := userspace.New(base, userspace.Options{Logger: o.Logger})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return &relayed{relay, base}, nil
}

// Close closes both.
func (r *relayed) Close() error { return errors.Join(r.Backend.Close(), r.base.Close()) }

// enterNamespaces returns nil in a process that may make network namespaces. Where only a user namespace gives that right,
// it runs this program again in one and returns that program's exit code.
func enterNamespaces() error {
	err := netns.Check()
	if _, ok := errors.AsType[*netns.PermissionError](err); !ok {
		return err
	}
	code, reexecErr := netns.Reexec()
	if reexecErr != nil {
		return fmt.Errorf("%w; or run it with sudo", reexecErr)
	}
	return exitCode(code)
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
	f, ok := w.(*os.File)
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
