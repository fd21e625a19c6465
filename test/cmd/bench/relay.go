//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/source/relay"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/test/bench"
)

// relayFlags are the flags of 'switchyard serve --nodes' that the benchmark
// uses.
type relayFlags struct {
	above         []string
	tls           client.TLSFiles
	listen        []string
	cert, key, ca string
	health        string
}

func newRelayServeCommand() *cobra.Command {
	var o relayFlags
	cmd := &cobra.Command{
		Use:    benchServe,
		Short:  "Be a relay until stdin ends, and answer there what it uses",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			go func() { cancel(bench.AnswerRelay(cmd.InOrStdin(), cmd.OutOrStdout())) }()
			err := o.run(ctx)
			if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
				err = cause
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.above, "relay", nil, "where the objects come from")
	f.StringVar(&o.tls.CA, "relay-ca", "", "authorities that vouch for it")
	f.StringVar(&o.tls.Cert, "relay-cert", "", "certificate to show to it")
	f.StringVar(&o.tls.Key, "relay-key", "", "key of that certificate")
	f.StringVar(&o.tls.ServerName, "relay-server-name", "", "name that its certificate must have")
	f.StringSliceVar(&o.listen, "listen", nil, "where to serve")
	f.StringVar(&o.cert, "tls-cert", "", "certificate of the relay")
	f.StringVar(&o.key, "tls-key", "", "key of that certificate")
	f.StringVar(&o.ca, "client-ca", "", "authorities that sign clients' certificates")
	f.StringVar(&o.health, "healthz-bind-address", "", "address and port of /healthz")
	return cmd
}

// run is a relay until ctx ends.
func (o *relayFlags) run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c := config.Default()
	c.MetricsBindAddress = netip.AddrPort{}
	c.API.Listen, c.API.TLSCertFile, c.API.TLSKeyFile, c.API.ClientCAFile = o.listen, o.cert, o.key, o.ca
	var err error
	if c.HealthzBindAddress, err = netip.ParseAddrPort(o.health); err != nil {
		return fmt.Errorf("--healthz-bind-address: %w", err)
	}
	n, err := node.New(ctx, node.Options{
		Config: c, Role: node.Relay, Logger: log,
		Source: func(*config.Config, string) (model.Source, error) {
			options := relay.Options{Targets: o.above, Logger: log}
			if o.tls != (client.TLSFiles{}) {
				certificates, err := client.NewCertificates(o.tls, log)
				if err != nil {
					return nil, err
				}
				options.Certificates = certificates
			}
			return relay.New(options)
		},
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}
