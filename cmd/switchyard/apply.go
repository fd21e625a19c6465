package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/internal/configfile"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
)

// applyOptions are the flags of a command below 'switchyard apply'.
type applyOptions struct {
	mode          config.Mode // of the command
	api           string
	tls           client.TLSFiles
	users         []string
	node          string
	routing       routingFlags
	dataplane     programmingFlags
	ports         bool
	fallback      bool
	fallbackAfter time.Duration
	kubeconfig    string
}

func newApplyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Program this node with the state that an API serves",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newApplyModeCommand(config.ModeNFTables, configfile.KindNFTables, `Apply nftables follows the state of this node, which 'switchyard serve' or a relay serves, and
programs the kernel accordingly. It needs root, and no access to Kubernetes.`))
	cmd.AddCommand(newApplyModeCommand(config.ModeEBPF, configfile.KindEBPF, `Apply ebpf is 'switchyard apply nftables' with socket hooks above. The kernel translates most
TCP connections of this node's pods and processes once, when they connect (docs/ebpf.md).
If it refuses the hooks, nftables translates all connections, and a warning is logged.`))
	cmd.AddCommand(newApplyModeCommand(config.ModeIPTables, configfile.KindIPTables, `Apply iptables is 'switchyard apply nftables' with iptables and IP sets instead (docs/iptables.md).
It needs the programs of iptables on this node, and CAP_NET_RAW.`))
	cmd.AddCommand(newApplyModeCommand(config.ModeIPVS, configfile.KindIPVS, `Apply ipvs is 'switchyard apply nftables' with IPVS above. The kernel's virtual servers balance the
frontends that treat all clients alike, by the scheduler that the file names (docs/ipvs.md).`))
	cmd.AddCommand(newApplyModeCommand(config.ModeUserspace, configfile.KindUserspace, `Apply userspace is 'switchyard apply nftables' with a relay above. This process accepts the TCP
connections and UDP flows of Services and continues them to endpoints (docs/userspace.md).`))
	cmd.AddCommand(newApplyModeCommand(config.ModeKernelspace, configfile.KindWinkernel, `Apply kernelspace is 'switchyard apply nftables' on Windows: it programs the load balancers of
the host network service (docs/windows.md). It needs the rights of an administrator. This mode is
experimental.`))
	return cmd
}

// newApplyModeCommand returns the command that programs the dataplane of a mode; kind is the kind of its
// file.
func newApplyModeCommand(mode config.Mode, kind, long string) *cobra.Command {
	o := applyOptions{mode: mode}
	o.dataplane.file.dataplanes, o.dataplane.file.fixed = []string{kind}, []string{"hostnameOverride"}
	cmd := &cobra.Command{
		Use:   string(mode),
		Short: fmt.Sprintf("Program this node's %s with the state that an API serves", mode),
		Long: long + `

When the API is gone, the kernel keeps routing by the last state; when it comes back, only
what has become different is written. With --fallback, a node whose relay does not answer
for a while follows the API server itself, until a relay answers again.`,
		Example: strings.ReplaceAll(`  switchyard apply MODE --api unix:///run/switchyard/api.sock --cluster-cidr 10.244.0.0/16
  switchyard apply MODE --api dns:///relay.example:8443 --node node-a --tls-ca ca.crt \
    --tls-cert node-a.crt --tls-key node-a.key --fallback --kubeconfig /etc/kubernetes/kubelet.conf`, "MODE", string(mode)),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.dataplane.file.stdin = standardInput(cmd)
			return o.run(cmd.Context(), cmd.CommandPath(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.api, "api", client.DefaultTarget, "where the API is served: unix:///PATH, npipe:////./pipe/NAME (on Windows), tcp://IP:PORT or a name such as dns:///relay.example:8443")
	f.StringVar(&o.tls.CA, "tls-ca", "", "authorities that vouch for the server, in PEM, read again for each connection, as are the next two; without TLS, the API must be on this host")
	f.StringVar(&o.tls.Cert, "tls-cert", "", "certificate to show, with the common name system:node:NAME and the organisation system:nodes")
	f.StringVar(&o.tls.Key, "tls-key", "", "key of the certificate to show")
	f.StringVar(&o.tls.ServerName, "tls-server-name", "", "name that the server's certificate must have (default: the host in --api)")
	f.StringSliceVar(&o.users, "socket-users", nil, "users whose processes may serve a unix socket in --api, by name or number, in addition to root and this process's user")
	f.StringVar(&o.node, "node", "", "name of this node (default: the one that the server is for, or that the certificate names; with --fallback the host's name)")
	o.routing.register(f, "; leave it out to use the server's value, which the API carries")
	o.dataplane.register(f, "of kind "+kind+" or KubeProxyConfiguration")
	cli.Complete(cmd, "logging-format", cli.LogFormats...)
	f.BoolVar(&o.ports, "health-check-node-ports", true, "answer load balancers on the health check node ports of Services; false if 'switchyard serve' does")
	f.BoolVar(&o.fallback, "fallback", false, "follow the API server while no relay answers; of the flags about routing, all but --cluster-cidr and --nodeport-addresses count only then, and these two override the API")
	f.DurationVar(&o.fallbackAfter, "fallback-after", 10*time.Second, "how long no relay may answer until then")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server for --fallback (default: the pod's service account)")
	return cmd
}

func (o *applyOptions) run(ctx context.Context, command string, stdout, stderr io.Writer) (err error) {
	file := &o.dataplane.file
	c, err := file.load()
	if err != nil {
		return err
	}
	if err := errors.Join(file.log.Check(), o.check()); err != nil {
		return cli.Usage(command, err)
	}
	if err := o.set(c); err != nil {
		return err
	}
	log, v := file.logger(stdout, stderr, c)
	defer func() { err = cli.InFormat(err, c.Logging.Format) }()
	if err := o.checkFallback(c, log); err != nil {
		return err
	}
	file.warn(c, log)
	options := client.Options{Target: o.api, Node: c.HostnameOverride, Name: string(o.mode), SocketUsers: o.users, Logger: log}
	if o.tls != (client.TLSFiles{}) {
		if options.Certificates, err = client.NewCertificates(o.tls, log); err != nil {
			return err
		}
	}
	following := apifollower.Options{Client: options, Logger: log}
	var api *apifollower.Follower
	local := &localFallback{last: func() *state.Node { return api.ServerNode() }, log: log, config: c, memory: processMemory()}
	if o.fallback {
		following.Fallback = &apifollower.Fallback{After: o.fallbackAfter, Start: local.start}
	}
	if api, err = apifollower.New(following); err != nil {
		return cli.Usage(command, fmt.Errorf("--api: %w", err))
	}
	states := &node.States{
		Feed: api, Run: api.Run, Name: api.Name, Latest: api.Latest, Problems: api.Problems, Report: api.Report, Reconfigure: local.reconfigure,
	}
	return o.dataplane.run(ctx, node.Options{Config: c, States: states, HealthCheckNodePorts: &o.ports}, o.override(log), stdout, log, v)
}

// set gives c what the flags mean.
func (o *applyOptions) set(c *config.Config) (err error) {
	o.dataplane.file.set(c)
	switch {
	case len(o.dataplane.file.paths) == 0:
		c.Mode = o.mode
	case c.Mode != "" && c.Mode != o.mode:
		return fmt.Errorf("mode: the file says %s; set it to %s, or leave it blank, for 'switchyard apply %s'", c.Mode, o.mode, o.mode)
	default:
		c.Mode = o.mode
	}
	if o.node != "" {
		c.HostnameOverride = o.node
	}
	if o.fallback {
		if c.HostnameOverride, err = nodeOrHost(c.HostnameOverride); err != nil {
			return err
		}
	}
	if o.dataplane.file.counts("kubeconfig") {
		c.ClientConnection.Kubeconfig = o.kubeconfig
	}
	o.routing.set(c, o.dataplane.file.counts)
	return o.dataplane.file.valid(c)
}

// checkFallback finds out now whether c names the API server in a way that --fallback can use later.
func (o *applyOptions) checkFallback(c *config.Config, log *slog.Logger) error {
	if !o.fallback {
		return nil
	}
	if _, err := kubeSource(c, "", c.HostnameOverride, kube.Await{}, log); err != nil {
		return fmt.Errorf("--fallback: %w", err)
	}
	return nil
}

// override is the daemon's override.
func (o *applyOptions) override(log *slog.Logger) func(*config.Config) error {
	return func(c *config.Config) error {
		if err := o.set(c); err != nil {
			return err
		}
		return o.checkFallback(c, log)
	}
}

// check finds flags that contradict each other.
func (o *applyOptions) check() error {
	switch {
	case o.fallbackAfter <= 0:
		return errors.New("--fallback-after must be more than 0")
	case !o.fallback && o.kubeconfig != "":
		return errors.New("--kubeconfig is for --fallback; give both, or leave it out")
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return errors.New("--tls-cert and --tls-key are needed together")
	}
	if _, err := peeruser.Parse(o.users); err != nil {
		return fmt.Errorf("--socket-users: %w", err)
	}
	return o.routing.check()
}
