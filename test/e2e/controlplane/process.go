//go:build linux

package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/program"
)

// grace is how long a program may take to end when it is asked to.
const grace = 5 * time.Second

// Process is a running program.
type Process struct {
	*program.Process
	log string
}

// namespace is where a program runs; *netns.NS and *lab.Host are some.
type namespace interface{ Do(fn func() error) error }

var _ namespace = (*netns.NS)(nil)

// Run starts a program inside a namespace. Its output goes to a file in dir with the given name. It is killed when this
// process ends.
func Run(ns namespace, dir, name, path string, args ...string) (*Process, error) {
	out, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := program.Start(cmd, ns.Do)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &Process{p, out.Name()}, nil
}

// Stop ends the program and waits for it.
func (p *Process) Stop() {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	p.End(grace)
}

// Failure returns why the program has ended, with the end of its log, or nil while it runs.
func (p *Process) Failure() error {
	select {
	case <-p.Done():
		return errors.Join(fmt.Errorf("%s ended: %w", p.Cmd.Args[1], p.Err()), errors.New(p.Tail()))
	default:
		return nil
	}
}

// Tail returns the end of the program's log.
func (p *Process) Tail() string { return program.Tail(p.log) }
