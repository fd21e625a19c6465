package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
	"github.com/switchyard-net/switchyard/internal/kernel/leftovers"
	"github.com/switchyard-net/switchyard/node"
)

// kubeProxyName is the name under which the program takes kube-proxy's command line.
const kubeProxyName = "kube-proxy"

// proxyArgs returns the arguments for the root command. If the program is called by kube-proxy's name, they are the
// arguments of 'proxy'. If it is called as a plugin of kubectl, they are the arguments of 'kubectl'.
func proxyArgs(args []string) []string {
	switch strings.TrimSuffix(filepath.Base(args[0]), ".exe") {
	case kubeProxyName:
		return append([]string{"proxy"}, args[1:]...)
	case kubectlName:
		return append([]string{"kubectl"}, args[1:]...)
	}
	return args[1:]
}

func newProxyCommand() *cobra.Command {
	var p proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Be this node's kube-proxy",
		Long: `Proxy replaces kube-proxy on a node. It has the same flags, reads the same configuration files,
answers on the same ports, and shows the same metrics. The program also runs it when it is called
by the name kube-proxy.

The field mode chooses the dataplane: nftables if it is blank, on Windows kernelspace (HNS),
which is experimental.
Once the first state is programmed, it removes what kube-proxy has left in the kernel.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.files.stdin = standardInput(cmd)
			return runProxy(cmd.Context(), &p, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	p.register(cmd.Flags())
	cli.Complete(cmd, "proxy-mode", node.Modes(runtime.GOOS)...)
	cli.Complete(cmd, "detect-local-mode", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
	cli.Complete(cmd, "logging-format", cli.LogFormats...)
	cmd.SetFlagErrorFunc(explainRemoved)
	// As kube-proxy does, for the sake of old command lines.
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return cmd
}

// runProxy does what the flags say.
func runProxy(ctx context.Context, p *proxyFlags, stdout, stderr io.Writer) (err error) {
	if p.version != "false" {
		_, err := fmt.Fprintf(stdout, "Switchyard %s\n", currentVersion())
		return err
	}
	c, warnings, err := p.config()
	if err != nil {
		return err
	}
	v := newVerbosity()
	log := newLog(stdout, stderr, c, v)
	cli.LogLibraries(log)
	defer func() { err = cli.InFormat(err, c.Logging.Format) }()
	for _, w := range warnings {
		log.Warn("configuration warning", "problem", w)
	}
	switch {
	case p.writeConfigTo != "":
		return writeConfig(c, p.writeConfigTo)
	case p.cleanup:
		return cleanupAll(ctx, c, stdout)
	case p.initOnly:
		node.SetUp(c, log)
		return nil
	}
	warnWithoutEffect(c, log)
	d, err := newDaemon(ctx, p, c, log, v)
	if err != nil {
		return explainStart(err)
	}
	return d.run(ctx)
}

// writeConfig writes the configuration in the latest version.
func writeConfig(c *config.Config, path string) error {
	data, err := configfile.Marshal(c)
	if err != nil {
		return err
	}
	if err := writeFile(path, data); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// cleanupAll removes everything of ours and of kube-proxy from the kernel, or on Windows from the HNS network of c.
func cleanupAll(ctx context.Context, c *config.Config, stdout io.Writer) error {
	removed, err := node.Cleanup(ctx, c, runtime.GOOS)
	if err != nil {
		return withRemedy(err)
	}
	if removed {
		fmt.Fprintln(stdout, "removed all that Switchyard had programmed")
	}
	items, err := leftovers.Remove(ctx)
	for _, item := range items {
		fmt.Fprintf(stdout, "removed of kube-proxy: %v\n", item)
	}
	if !removed && len(items) == 0 && err == nil {
		fmt.Fprintln(stdout, "there was nothing to remove")
	}
	return err
}
