// Package dataplane is the common part of the programs that link one dataplane: their flags, and the bridge from the node-local API.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/apifeed"
	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/client/peeruser"
	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// TakeOver is how long a program waits for the end of the previous process. The kernel keeps routing during that time.
const TakeOver = time.Minute

// Backend is a backend that holds resources until Close. The programmed state outlives Close.
type Backend interface {
	backend.Backend
	io.Closer
}

// Program describes a program.
type Program struct {
	// Name is the dataplane's name. The program is switchyard-Name.
	Name string
	// Needs is a sentence with the rights that the program needs.
	Needs string
	// Flags adds the dataplane's own flags. It may be nil.
	Flags func(*pflag.FlagSet)
	// Open opens the dataplane in the calling thread's network namespace.
	Open func(ctx context.Context, log *slog.Logger) (Backend, error)
}

// Main runs the program, and ends the process with its exit code.
func Main(p Program, version string) { cli.Main(newCommand(p, version), os.Args[1:]) }

func newCommand(p Program, version string) *cobra.Command {
	var log cli.LogFlags
	var show bool
	o := client.Options{Name: p.Name}
	cmd := &cobra.Command{
		Use:   "switchyard-" + p.Name,
		Short: "Program this node with the state that the node-local API serves, in mode " + p.Name,
		Long: fmt.Sprintf(`Switchyard-%[1]s follows the state of this node, which 'switchyard serve' serves, and programs
it with the dataplane %[1]s. It links no other dataplane and nothing of Kubernetes.
%[2]s

When the API is gone, the node keeps routing by the last state. 'switchyard serve
--health-check-node-ports' answers load balancers on health check node ports.`, p.Name, p.Needs),
		Example: fmt.Sprintf("  switchyard-%s --api unix:///run/switchyard/api.sock", p.Name),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if show {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.VersionText(version))
				return err
			}
			if _, err := peeruser.Parse(o.SocketUsers); err != nil {
				return cli.Usage(cmd.CommandPath(), fmt.Errorf("--socket-users: %w", err))
			}
			logger, err := log.Logger(cmd.ErrOrStderr())
			if err != nil {
				return cli.Usage(cmd.CommandPath(), err)
			}
			o.Logger = logger
			return p.run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Target, "api", client.DefaultTarget, "where the API is served: unix:///PATH, npipe:////./pipe/NAME (on Windows) or tcp://IP:PORT on loopback")
	f.StringVar(&o.Node, "node", "", "name of this node (default: the node that the server is for)")
	f.StringSliceVar(&o.SocketUsers, "socket-users", nil, "users whose processes may serve a unix socket in --api, by name or number, in addition to root and this process's user")
	f.BoolVar(&show, "version", false, "print the version")
	log.Register(f)
	if p.Flags != nil {
		p.Flags(f)
	}
	return cmd
}

// run keeps the dataplane in step with the API until ctx ends.
func (p *Program) run(ctx context.Context, o client.Options) error {
	b, err := p.Open(ctx, o.Logger)
	if err != nil {
		return fmt.Errorf("dataplane %s: %w", p.Name, err)
	}
	err = apifeed.Program(ctx, apifeed.Options{Client: o, Logger: o.Logger}, b, backend.RunOptions{Logger: o.Logger})
	return errors.Join(err, b.Close())
}

// Layer is a dataplane above another one.
type Layer struct {
	Backend
	// Base is closed after the dataplane above it.
	Base io.Closer
}

// Close closes both.
func (l Layer) Close() error { return errors.Join(l.Backend.Close(), l.Base.Close()) }
