package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/ops/healthz"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// serveOptions are the flags of 'switchyard serve'.
type serveOptions struct {
	objects objectFlags
	routing routingFlags
	node    string
	nodes   bool
	listen  []string
	mode    string
	users   []string
	tls     server.TLS
	clients int
	maxAge  time.Duration
	health  string
	log     logFlags
}

func newServeCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the state of this node, or of all nodes, over the node-local API",
		Long: `Serve works out what a node must route and serves it to dataplanes, over the API of
client/proto/switchyard/localnet/v1/localnet.proto. It programs nothing itself.

With --nodes it is a relay: it watches the cluster once and serves each node its own state,
so that the nodes need not watch, and need not parse what does not concern them. A relay may
have the cluster's objects from another relay (--relay).

A unix socket is protected by its permissions, and only root, the server's own user and those of
--socket-users may use it. TCP is served in plain on loopback only; on
other addresses clients need certificates: the common name system:node:NAME in the organisation
system:nodes, as kubelets have, may have the state of node NAME, and the organisation
switchyard:relays may have everything.`,
		Example: `  switchyard serve --kubeconfig /etc/kubernetes/kubelet.conf --node node-a
  switchyard serve --source manifests/ --node node-a --listen unix:///tmp/api.sock
  switchyard serve --nodes --listen tcp://192.0.2.10:8443 --tls-cert relay.crt --tls-key relay.key --client-ca ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.CommandPath(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	o.objects.register(f)
	o.routing.register(f)
	f.StringVar(&o.node, "node", "", "name of the node whose state is served (default: the host's name)")
	f.BoolVar(&o.nodes, "nodes", false, "serve the states of all nodes, and the cluster's objects to relays below")
	f.StringSliceVar(&o.listen, "listen", []string{client.DefaultTarget}, "where to serve: unix:///PATH or tcp://IP:PORT; may be repeated")
	f.StringVar(&o.mode, "socket-mode", "0600", "permissions of unix sockets")
	f.StringSliceVar(&o.users, "socket-users", nil, "users whose processes may use unix sockets, by name or number, beside root and this process's own")
	f.StringVar(&o.tls.CertFile, "tls-cert", "", "certificate of the server, in PEM; read again when it changes, as are the next two")
	f.StringVar(&o.tls.KeyFile, "tls-key", "", "key of the certificate")
	f.StringVar(&o.tls.ClientCAFile, "client-ca", "", "authorities that sign clients' certificates")
	f.StringVar(&o.health, "healthz-bind-address", "", "address and port of /healthz and /livez, such as 0.0.0.0:10256; empty for none")
	f.IntVar(&o.clients, "max-clients", 0, "how many clients there may be at once at each address of --listen, a quarter of them, or 64 if that is more, from one IPv4 address or IPv6 /64; as many may be about to show a certificate; 0 for 10000")
	f.DurationVar(&o.maxAge, "max-connection-age", time.Hour, "how long a connection over TLS lasts, or a fifth less at random, until its client connects again; 0 for ever")
	o.log.register(f)
	return cmd
}

func (o *serveOptions) run(ctx context.Context, command string, stdout, stderr io.Writer) error {
	log, err := o.log.logger(stderr)
	if err != nil {
		return &usageError{command, err}
	}
	if o.nodes && o.node != "" {
		return &usageError{command, errors.New("--nodes and --node exclude each other: a relay serves all nodes")}
	}
	if err := errors.Join(o.objects.check(), o.routing.check()); err != nil {
		return &usageError{command, err}
	}
	if o.clients < 0 {
		return &usageError{command, fmt.Errorf("--max-clients: %d is negative; give a number of connections, or 0 for the default", o.clients)}
	}
	if o.maxAge < 0 || o.maxAge > 0 && o.maxAge < time.Minute {
		return &usageError{command, fmt.Errorf("--max-connection-age: %v is too short; give a minute or more, or 0 for connections that last", o.maxAge)}
	}
	if _, err := peeruser.Parse(o.users); err != nil {
		return &usageError{command, fmt.Errorf("--socket-users: %w", err)}
	}
	if !o.nodes {
		if o.node, err = nodeOrHost(o.node); err != nil {
			return err
		}
	}
	doors, err := o.doors()
	if err != nil {
		return &usageError{command, err}
	}
	src, err := o.objects.source(o.node, o.routing.serviceProxyName, log)
	if err != nil {
		return err
	}
	brain := o.brain(log)
	defer brain.close()
	options := brain.options
	files := openShares(log).forServe()
	options.MaxClients, options.SocketUsers, options.Logger = files.apiClients(o.clients, len(doors), log), o.users, log
	options.MaxAge = cmp.Or(o.maxAge, -1)
	followers := newWatchers(log)
	options.OnStatus, options.OnClose = followers.status, followers.gone
	srv, err := server.New(options)
	if err != nil {
		return err
	}
	g := newGroup(ctx)
	for _, d := range doors {
		if err := d.open(g, srv, log); err != nil {
			g.fail(err)
			break
		}
	}
	if o.health != "" {
		l, err := net.Listen("tcp", o.health)
		if err != nil {
			g.fail(fmt.Errorf("%w; choose another address with --healthz-bind-address", err))
		} else {
			g.start(serveHealth(l, o.healthOf(src, brain.problems, followers, options.Ready), files, log))
		}
	}
	g.start(func(ctx context.Context) error { return src.Run(ctx, brain.sink) })
	g.start(func(ctx context.Context) error {
		select {
		case <-options.Ready:
			resident.Trim() // reading everything for the first time took far more than keeping it takes
			fmt.Fprintf(stdout, "switchyard: serving %s on %s\n", o.whose(), strings.Join(o.listen, ", "))
		case <-ctx.Done():
		}
		return nil
	})
	return g.wait()
}

// healthOf answers for the health of the process: it is healthy once it has a state to serve. What is wrong with the source, and
// what dataplanes cannot program, is told.
func (o *serveOptions) healthOf(src source.Source, objects func() []error, followers *watchers, ready <-chan struct{}) *healthz.Health {
	h := healthz.New(healthz.Options{})
	h.SetNode(healthz.Node{Exists: true})
	h.AddFaults("state", func() []error {
		select {
		case <-ready:
			return nil
		default:
			return []error{errors.New("there is no state to serve yet: not all objects of the cluster are known")}
		}
	})
	if s, ok := src.(interface{ Problems() []error }); ok {
		h.AddProblems("source", s.Problems)
	}
	h.AddProblems("objects", objects)
	h.AddProblems("dataplanes", followers.problems)
	return h
}

func (o *serveOptions) whose() string {
	if o.nodes {
		return "all nodes"
	}
	return "node " + o.node
}

// served is what makes states of objects, and how they are served.
type served struct {
	sink    source.Sink
	options server.Options
	// problems are those of single objects.
	problems func() []error
	close    func()
}

// brain makes what turns objects into the states to serve: of one node, or of all.
func (o *serveOptions) brain(log *slog.Logger) served {
	config := o.routing.brain()
	instance := rand.Uint64()
	ready := make(chan struct{})
	if !o.nodes {
		config.NodeName = o.node
		s := store.New(store.Options{Brain: config, Budgets: budgets(&o.routing.services), Logger: log})
		return served{
			sink:     &completion{Sink: s.Source("objects"), ready: ready},
			problems: s.Problems,
			options:  server.Options{InstanceID: instance, Node: o.node, Ready: ready, Feed: server.Only(o.node, s)},
			close:    s.Close,
		}
	}
	c := store.NewCluster(store.ClusterOptions{Brain: config, Budgets: budgets(&o.routing.services), Logger: log})
	objects := objectlog.New(objectlog.Options{Logger: log})
	return served{
		problems: c.Problems,
		sink:     &completion{Sink: objectlog.Tee(c.Source("objects"), objects.Source("objects")), ready: ready},
		options: server.Options{
			InstanceID: instance, Ready: ready,
			Feed: func(node string) (state.Feed, error) { return c.Node(node), nil },
			Register: func(r grpc.ServiceRegistrar) {
				clusterserver.Register(r, clusterserver.Options{Feed: objects, InstanceID: instance})
			},
		},
		close: func() {
			c.Close()
			objects.Close()
		},
	}
}

// completion is a sink that says when its source is complete.
type completion struct {
	source.Sink
	ready chan struct{}
}

// Complete implements [source.Sink].
func (c *completion) Complete() {
	c.Sink.Complete()
	close(c.ready)
}

// door is one place where clients come in.
type door struct {
	address server.Address
	mode    fs.FileMode
	tls     *server.TLS // nil for plain connections
}

// doors reads the flags about where to serve.
func (o *serveOptions) doors() (doors []door, err error) {
	const tlsNames = "--tls-cert, --tls-key and --client-ca"
	doors, err = doorsOf(o.listen, o.mode, o.tls, "--listen", "--socket-mode", tlsNames)
	if err == nil && o.tls != (server.TLS{}) && !slices.ContainsFunc(doors, func(d door) bool { return d.tls != nil }) {
		err = fmt.Errorf("%s are for TCP, and no --listen is tcp://IP:PORT; add one, or leave them out", tlsNames)
	}
	return doors, err
}

// doorsOf reads addresses to serve on. The last three arguments are what those who gave the others call them.
func doorsOf(listen []string, mode string, tls server.TLS, listenName, modeName, tlsName string) (doors []door, err error) {
	permissions, err := strconv.ParseUint(mode, 8, 32)
	if err != nil || permissions > 0o777 {
		return nil, fmt.Errorf("%s: %q is not permissions in octal such as 0600", modeName, mode)
	}
	for _, l := range listen {
		d := door{mode: fs.FileMode(permissions)}
		if d.address, err = server.ParseAddress(l); err != nil {
			return nil, fmt.Errorf("%s: %w", listenName, err)
		}
		switch complete := tls.CertFile != "" && tls.KeyFile != "" && tls.ClientCAFile != ""; {
		case d.address.Network == "tcp" && complete:
			d.tls = &tls
		case d.address.Exposed():
			return nil, fmt.Errorf("%s: other machines can reach %s, which takes TLS: give %s, or choose a loopback address or a unix socket", listenName, l, tlsName)
		case d.address.Network == "tcp" && tls != (server.TLS{}):
			return nil, fmt.Errorf("%s: TLS on %s takes all of %s", listenName, l, tlsName)
		}
		doors = append(doors, d)
	}
	return doors, nil
}

// open serves on the door, as a part of g.
func (d *door) open(g *group, s *server.Server, log *slog.Logger) error {
	var l net.Listener
	var err error
	if l, err = server.Listen(g.ctx, d.address, d.mode, d.tls); err != nil {
		return err
	}
	log.Debug("serving the node-local API", "address", d.address.String(), "tls", d.tls != nil, "since", time.Now().UTC())
	g.start(func(ctx context.Context) error { return s.Serve(ctx, l, d.tls) })
	return nil
}
