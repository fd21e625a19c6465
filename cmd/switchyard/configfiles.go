package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/configfile"
	"github.com/switchyard-net/switchyard/node"
)

// configFiles are the files of --config, which a command reads at its start and follows.
type configFiles struct {
	paths []string // --config
	// dataplanes are the kinds of dataplane files that the command also takes.
	dataplanes []string
	// fixed are paths of fields that take effect only when the command is started again, although package node could change them.
	fixed []string

	stdin input
	// read is the digest of the configuration that was last read.
	read [sha256.Size]byte
}

func (f *configFiles) options() configfile.Options {
	return configfile.Options{Platform: runtime.GOOS, Dataplanes: f.dataplanes}
}

// load reads the files at the start, and returns warnings about what in them does not count, or not as one may expect.
func (f *configFiles) load() (*config.Config, []string, error) {
	files, err := readFiles(f.stdin, f.paths...)
	if err != nil {
		return nil, nil, fmt.Errorf("--config: %w", err)
	}
	f.read = digest(files)
	loaded, notes, broken := configfile.LoadFiles(files, f.options())
	c, err := config.Choose(nil, loaded, broken)
	if err != nil {
		return nil, nil, err
	}
	var warnings []string
	if broken != nil {
		warnings = append(lines(broken), "as configHardFail is false, the defaults of the fields at fault are used")
	}
	for _, n := range notes {
		warnings = append(warnings, n.File+": "+n.String())
	}
	return c, warnings, nil
}

// digest returns the SHA-256 of files.
func digest(files []configfile.File) [sha256.Size]byte {
	var sums []byte
	for _, f := range files {
		sum := sha256.Sum256(f.Data)
		sums = append(sums, sum[:]...)
	}
	return sha256.Sum256(sums)
}

// daemon is a node whose configuration files are followed.
type daemon struct {
	files *configFiles
	// override gives a configuration of the files what flags say that count more.
	override  func(*config.Config) error
	log       *slog.Logger
	verbosity *verbosity
	node      *node.Node
}

// run runs the node until ctx ends, or as a Windows service until that is stopped.
func (d *daemon) run(ctx context.Context) error {
	if d.node.Config().Windows.RunAsService {
		return asService(ctx, d.runNode)
	}
	return d.runNode(ctx)
}

// runNode runs the node until ctx ends, in the calling thread, in whose network namespace it listens.
func (d *daemon) runNode(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() {
		err := d.followConfig(ctx)
		if err != nil {
			cancel()
		}
		followed <- err
	}()
	err := d.node.Run(ctx)
	cancel()
	return errors.Join(err, <-followed)
}
