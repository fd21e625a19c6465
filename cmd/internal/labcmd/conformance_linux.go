package labcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/sockethooks"
)

// exitIncomplete is the exit code of 'switchyard conformance' if nothing has failed, and something could not be checked here.
const exitIncomplete = 3

// conformanceOptions are the flags of 'switchyard conformance'.
type conformanceOptions struct {
	run, skip string
	list      bool
	limits    []string
	detector  string
	shares    bool
	edge      bool
	seeds     int
	firstSeed uint64
	atOnce    int
	verbose   bool
}

func newConformanceCommand() *cobra.Command {
	var o conformanceOptions
	cmd := &cobra.Command{
		Use:                   "conformance [FLAG...] -- PROGRAM [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 cli.LabCommands["conformance"],
		Long: `Conformance starts a program that follows the node-local API in a small cluster of network
namespaces. It changes Services, sends packets and checks their outcome. docs/write-a-dataplane.md
is the guide to a dataplane that passes, and conformance/README.md describes the stories.

In the arguments of PROGRAM, {socket} stands for the path of the API's unix socket, and {target} for
its address, unix:///PATH. {namespaces} stands for the path of a pinned BPF map, for programs that
attach to all sockets of the kernel. Its keys are the cookies of network namespaces. The value is 2 for
the namespace of the node, and 1 for the namespaces of its pods.

The program runs in the network namespace of the node, once for each story and several at the same
time. It reports what it shows in WatchRequest.status, and ends at SIGTERM; what it has programmed
stays then. If a story fails, the output of PROGRAM is printed.

A line for each story and history says ok, FAIL or skip. The exit code is 0 if all passed, 1 if
something failed, and 2 for a mistake in the command line. It is 3 if nothing failed but this machine
had to skip something, such as SCTP: leave it out with --skip, or run it elsewhere.

It needs root, or user namespaces. Nothing of it outlives the command, and nothing outside of its
namespaces is touched. SIGINT and SIGTERM end the stories that are under way, and what they started.`,
		Example: `  switchyard conformance -- ./my-dataplane --socket {socket}
  switchyard conformance --run stories/cluster_ip -v -- python3 dataplane.py {target}
  switchyard conformance --limit TCPOnly,ClientSourceLost -- ./my-relay {socket}
  switchyard conformance --list`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.check(cmd.Context(), cmd.CommandPath(), args, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.run, "run", "", "regular expression: only stories and histories with such names")
	f.StringVar(&o.skip, "skip", "", "regular expression: none with such names")
	f.BoolVar(&o.list, "list", false, "print the names and end")
	f.StringSliceVar(&o.limits, "limit", nil, "what the dataplane cannot do, checked as such: "+strings.Join(limitNames(), ", "))
	f.StringVar(&o.detector, "detect", "", "how the node recognizes pods in stories that do not say: cluster-cidr, node-cidr or prefix:pod (default: cluster-cidr)")
	f.BoolVar(&o.shares, "shares-tables", false, "the rules are in iptables-nft's tables, together with other programs' rules")
	f.BoolVar(&o.edge, "edge", false, "the node takes part in the edge: it takes packets that others hand over, at UDP port 7635")
	f.IntVar(&o.seeds, "seeds", 4, "number of random histories")
	f.Uint64Var(&o.firstSeed, "first-seed", 1, "seed of the first of them, to repeat one")
	f.IntVar(&o.atOnce, "at-once", 0, "number of stories at the same time (default: one for each processor)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "also print why stories are skipped")
	cli.Complete(cmd, "limit", limitNames()...)
	return cmd
}

// limitNames are the words of --limit.
func limitNames() (names []string) {
	for _, l := range conformance.Limits() {
		names = append(names, string(l))
	}
	return names
}

// check runs what the flags select.
func (o *conformanceOptions) check(ctx context.Context, command string, program []string, stdout io.Writer) error {
	d := conformance.Dataplane{Detector: o.detector, SharesTables: o.shares, Edge: o.edge, Seeds: o.seeds, FirstSeed: o.firstSeed}
	selected, err := o.selector()
	if err == nil {
		d.Limits, err = o.claims()
	}
	if err == nil && (o.seeds < 1 || o.firstSeed < 1) {
		err = errors.New("--seeds and --first-seed: give 1 or more; leave the histories out by --run stories/")
	}
	if err != nil {
		return cli.Usage(command, err)
	}
	names := slices.DeleteFunc(conformance.Names(d), func(name string) bool { return !selected(name) })
	if len(names) == 0 {
		return cli.Usage(command, errors.New("--run and --skip leave nothing: 'switchyard conformance --list' prints the names"))
	}
	if o.list {
		_, err := fmt.Fprintln(stdout, strings.Join(names, "\n"))
		return err
	}
	if len(program) == 0 {
		return cli.Usage(command, errors.New("which program? Give it behind --, as in: switchyard conformance -- ./my-dataplane --socket {socket}"))
	}
	if !slices.ContainsFunc(program[1:], func(arg string) bool { return strings.Contains(arg, "{socket}") || strings.Contains(arg, "{target}") }) {
		return cli.Usage(command, errors.New("the program would not know where the API is: put {socket} or {target} into one of its arguments"))
	}
	path, err := exec.LookPath(program[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fmt.Errorf("find the dataplane: %w", err)
	}
	if err := enterNamespaces(); err != nil {
		return err
	}
	d.Name, d.Follow = filepath.Base(path), followBy(path, program[1:])
	return o.report(ctx, d, len(names), selected, stdout)
}

// selector returns what --run and --skip select.
func (o *conformanceOptions) selector() (func(name string) bool, error) {
	run, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	skip, err := regexp.Compile(o.skip)
	if err != nil {
		return nil, fmt.Errorf("--skip: %w", err)
	}
	return func(name string) bool { return run.MatchString(name) && (o.skip == "" || !skip.MatchString(name)) }, nil
}

func (o *conformanceOptions) claims() (limits []conformance.Limit, err error) {
	for _, name := range o.limits {
		limit := conformance.Limit(name)
		if !slices.Contains(conformance.Limits(), limit) {
			return nil, cli.NoneOf("limit", name, limitNames()...)
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

// report runs the suite and prints a line for each result.
func (o *conformanceOptions) report(ctx context.Context, d conformance.Dataplane, total int, selected func(string) bool, stdout io.Writer) error {
	began := time.Now()
	var counts [3]int
	isTCPOnly, unchecked := slices.Contains(d.Limits, conformance.TCPOnly), 0
	err := conformance.Check(ctx, d, conformance.CheckOptions{Select: selected, AtOnce: o.atOnce, OnResult: func(r conformance.Result) {
		counts[r.Outcome]++
		if r.Outcome == conformance.Skipped && !(isTCPOnly && r.Name == "stories/sctp") { // else SCTP is not its concern
			unchecked++
		}
		fmt.Fprintf(stdout, "%-5s %-40s %6.1f s\n", []string{"ok", "FAIL", "skip"}[r.Outcome], r.Name, r.Took.Seconds())
		if r.Outcome == conformance.Failed || r.Outcome == conformance.Skipped && o.verbose {
			for line := range strings.Lines(strings.TrimSpace(r.Log)) {
				fmt.Fprintf(stdout, "      %s\n", strings.TrimRight(line, "\n"))
			}
		}
	}})
	fmt.Fprintf(stdout, "\n%s: %d passed, %d failed, %d skipped, of %d, in %d s\n", d.Name, counts[0], counts[1], counts[2], total, int(time.Since(began).Seconds()))
	switch {
	case err != nil:
		return fmt.Errorf("the rest was not run: %w", err)
	case counts[conformance.Failed] > 0:
		fmt.Fprintln(stdout, "It does not conform. Run one of them alone: --run 'NAME$'")
		return cli.ExitCode(cli.ExitError)
	case unchecked > 0:
		fmt.Fprintln(stdout, "NOT CHECKED: the skipped stories, because this machine cannot run them. For SCTP, load the kernel's module sctp, or leave it out: --skip sctp")
		return cli.ExitCode(exitIncomplete)
	}
	return nil
}

// endTimeout is how long a program may take to end after SIGTERM.
const endTimeout = 5 * time.Second

// followBy returns what runs a program until its context ends, in the network namespace of the calling thread.
func followBy(path string, args []string) func(context.Context, string, conformance.Settings) error {
	hooks := slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "{namespaces}") })
	return func(ctx context.Context, target string, s conformance.Settings) (err error) {
		replace := []string{"{socket}", strings.TrimPrefix(target, "unix://"), "{target}", target}
		if hooks {
			pinned, remove, failed := pinNamespaces(s)
			if failed != nil {
				return failed
			}
			defer func() { err = errors.Join(err, remove()) }()
			replace = append(replace, "{namespaces}", pinned)
		}
		cmd := exec.CommandContext(ctx, path)
		for _, arg := range args {
			cmd.Args = append(cmd.Args, strings.NewReplacer(replace...).Replace(arg))
		}
		cmd.Stdout, cmd.Stderr = s.Output, s.Output
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = endTimeout
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Run()
	}
}

// pinNamespaces pins the set of the node's network namespaces until remove is called.
func pinNamespaces(s conformance.Settings) (path string, remove func() error, err error) {
	namespaces, err := sockethooks.Namespaces(s.OnNamespace)
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "switchyard-conformance-")
	if err != nil {
		return "", nil, errors.Join(err, namespaces.Close())
	}
	path, unpin, err := sockethooks.Pin(namespaces, dir)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir), namespaces.Close())
	}
	return path, func() error { return errors.Join(unpin(), os.Remove(dir), namespaces.Close()) }, nil
}
