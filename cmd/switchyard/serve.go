package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/server"
)

// serveOptions are the flags of 'switchyard serve'.
type serveOptions struct {
	objects objectFlags
	routing routingFlags
	node    string
	nodes   bool
	names   bool
	listen  []string
	mode    string
	users   []string
	tls     server.TLS
	clients int
	maxAge  time.Duration
	file    fileFlags
	ports   bool
}

func newServeCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the state of this node, or of all nodes, over the node-local API",
		Long: `Serve works out what a node must route and serves it to dataplanes, over the API of
client/proto/switchyard/localnet/v1/localnet.proto. It programs nothing itself.

With --nodes it is a relay: it watches the cluster once and serves each node its own state. The
nodes need not watch the cluster, or parse the objects of other nodes. A relay may have the
cluster's objects from another relay (--relay).

A unix socket is protected by its permissions. Only root, the server's own user and the users of
--socket-users may use it. Plain TCP is served on loopback only. There, every process of the node and
of pods in its network may read what is served. On other addresses clients need certificates. The
common name system:node:NAME in the organisation system:nodes, as kubelets have, may have the state
of node NAME. The organisation switchyard:relays may have everything.`,
		Example: `  switchyard serve --kubeconfig /etc/kubernetes/kubelet.conf --node node-a
  switchyard serve --source manifests/ --node node-a --listen unix:///tmp/api.sock
  switchyard serve --nodes --listen tcp://192.0.2.10:8443 --tls-cert relay.crt --tls-key relay.key --client-ca ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.file.stdin = standardInput(cmd)
			return o.run(cmd.Context(), cmd.CommandPath(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	o.objects.register(f)
	o.routing.register(f, "; dataplanes go by it, too")
	f.StringVar(&o.node, "node", "", "name of the node whose state is served (default: the host's name)")
	f.BoolVar(&o.nodes, "nodes", false, "serve the states of all nodes, and the cluster's objects to relays below")
	f.BoolVar(&o.names, "names", false, namesUsage)
	f.StringSliceVar(&o.listen, "listen", []string{client.DefaultTarget}, "where to serve: unix:///PATH, npipe:////./pipe/NAME (on Windows) or tcp://IP:PORT, also without tcp://; may be repeated")
	f.StringVar(&o.mode, "socket-mode", "0600", "permissions of unix sockets")
	f.StringSliceVar(&o.users, "socket-users", nil, "users whose processes may use unix sockets, by name or number, in addition to root and this process's user")
	f.StringVar(&o.tls.CertFile, "tls-cert", "", "certificate of the server, in PEM; read again when it changes, as are the next two")
	f.StringVar(&o.tls.KeyFile, "tls-key", "", "key of the certificate")
	f.StringVar(&o.tls.ClientCAFile, "client-ca", "", "authorities that sign clients' certificates")
	o.file.register(f, "of kind KubeProxyConfiguration")
	o.file.registerAdmin(f)
	cli.Complete(cmd, "logging-format", cli.LogFormats...)
	f.BoolVar(&o.ports, "health-check-node-ports", false, "answer load balancers on the health check node ports of Services, instead of the dataplane")
	f.IntVar(&o.clients, "max-clients", 0, "most clients at once at each address of --listen; a quarter of them, or 64 if that is more, from one IPv4 address or IPv6 /64; as many may be about to show a certificate; 0 for 10000")
	f.DurationVar(&o.maxAge, "max-connection-age", time.Hour, "how long a connection over TLS lasts, or a fifth less at random, until its client connects again; 0 for ever")
	return cmd
}

func (o *serveOptions) run(ctx context.Context, command string, stdout, stderr io.Writer) (err error) {
	c, err := o.file.load()
	if err != nil {
		return err
	}
	if o.nodes && o.node != "" {
		return cli.Usage(command, errors.New("--nodes and --node exclude each other: a relay serves all nodes"))
	}
	if err := errors.Join(o.file.log.Check(), o.file.checkAdmin(), o.objects.check(), o.routing.check()); err != nil {
		return cli.Usage(command, err)
	}
	if o.clients < 0 {
		return cli.Usage(command, fmt.Errorf("--max-clients: %d is negative; give a number of connections, or 0 for the default", o.clients))
	}
	if o.maxAge < 0 || o.maxAge > 0 && o.maxAge < time.Minute {
		return cli.Usage(command, fmt.Errorf("--max-connection-age: %v is too short; give a minute or more, or 0 for connections that last", o.maxAge))
	}
	if _, err := peeruser.Parse(o.users); err != nil {
		return cli.Usage(command, fmt.Errorf("--socket-users: %w", err))
	}
	if o.ports && o.nodes {
		return cli.Usage(command, errors.New("--health-check-node-ports is for the node that the process runs on; leave it out with --nodes"))
	}
	if err := o.set(c); err != nil {
		return cli.Usage(command, err)
	}
	if err := o.file.valid(c); err != nil {
		return err
	}
	log, v := o.file.logger(stdout, stderr, c)
	defer func() { err = cli.InFormat(err, c.Logging.Format) }()
	o.file.warn(c, log)
	var n *node.Node
	awaiting := &awaiting{}
	options := node.Options{
		Config: c, Role: node.Server, Logger: log, Program: programName(), Version: currentVersion(), FieldName: flagFor,
		HealthCheckNodePorts: &o.ports, LogLinesSuppressed: v.limiter.Suppressed, Memory: processMemory(),
		Source: func(c *config.Config, name string) (model.Source, error) {
			return o.objects.source(c, name, awaiting.of(c, name), log)
		},
		MaxClients: o.clients, MaxConnectionAge: cmp.Or(o.maxAge, -1),
		OnReady: func(int) {
			awaiting.over.Store(true)
			fmt.Fprintf(stdout, "switchyard: serving %s on %s\n", o.whose(n), strings.Join(n.Config().API.Listen, ", "))
		},
	}
	if o.nodes {
		options.Role = node.Relay
	}
	if n, err = node.New(ctx, options); err != nil {
		return err
	}
	override := func(c *config.Config) error { return errors.Join(o.set(c), o.file.valid(c)) }
	return (&daemon{&o.file.configFiles, override, log, v, n}).run(ctx)
}

// set gives c what the flags mean.
func (o *serveOptions) set(c *config.Config) error {
	o.file.set(c)
	if o.nodes || o.node != "" {
		c.HostnameOverride = o.node
	}
	if o.file.counts("kubeconfig") {
		c.ClientConnection.Kubeconfig = o.objects.kubeconfig
	}
	o.routing.set(c, o.file.counts)
	if o.file.counts("listen") || len(c.API.Listen) == 0 {
		c.API.Listen = o.listen
	}
	for flag, set := range map[string]func(){
		"socket-mode":  func() { c.API.SocketMode = o.mode },
		"socket-users": func() { c.API.SocketUsers = o.users },
		"tls-cert":     func() { c.API.TLSCertFile = o.tls.CertFile },
		"tls-key":      func() { c.API.TLSKeyFile = o.tls.KeyFile },
		"client-ca":    func() { c.API.ClientCAFile = o.tls.ClientCAFile },
		"names":        func() { c.API.Names = o.names },
	} {
		if o.file.counts(flag) {
			set()
		}
	}
	if err := node.CheckAPI(&c.API, flagFor); err != nil {
		return err
	}
	isTCP := func(l string) bool { a, err := server.ParseAddress(l); return err == nil && a.Network == "tcp" }
	if o.tls != (server.TLS{}) && !slices.ContainsFunc(c.API.Listen, isTCP) {
		return errors.New("--tls-cert, --tls-key and --client-ca are for TCP, and no --listen is tcp://IP:PORT; add one, or leave them out")
	}
	return nil
}

func (o *serveOptions) whose(n *node.Node) string {
	if o.nodes {
		return "all nodes"
	}
	return "node " + n.Name()
}
