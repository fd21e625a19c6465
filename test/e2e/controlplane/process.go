//go:build linux

package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/test/netns"
)

// grace is how long a program may take to end when it is asked to.
const grace = 5 * time.Second

// Process is a running program.
type Process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when the program has ended
	err    error         // why it ended; valid once exited is closed
}

// namespace is where a program runs; *netns.NS and *lab.Host are some.
type namespace interface{ Do(fn func() error) error }

var _ namespace = (*netns.NS)(nil)

// Run starts a program inside a namespace. Its output goes to a file in dir with the given name. It is killed when this
// process ends.
func Run(ns namespace, dir, name, program string, args ...string) (*Process, error) {
	out, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(program, args...), log: out.Name(), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		defer out.Close()
		// The thread waits as long as the program runs, since Pdeathsig is sent when the thread ends.
		err := ns.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err == nil {
				p.err = p.cmd.Wait()
			}
			return nil
		})
		if err != nil {
			p.err = err
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Stop ends the program and waits for it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// Kill ends the program at once and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Failure returns why the program has ended, with the end of its log, or nil while it runs.
func (p *Process) Failure() error {
	select {
	case <-p.exited:
		return errors.Join(fmt.Errorf("%s ended: %w", p.cmd.Args[1], p.err), errors.New(p.Tail()))
	default:
		return nil
	}
}

// Tail returns the end of the program's log.
func (p *Process) Tail() string {
	const enough = 4096
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > enough {
		_, _ = file.Seek(-enough, io.SeekEnd)
	}
	text, _ := io.ReadAll(file)
	return string(text)
}
