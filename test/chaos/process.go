//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/program"
	"github.com/switchyard-net/switchyard/test/topology"
)

// process is a running program.
type process struct{ *program.Process }

// startProcess starts a program on a host. Its output is added to a log. It is killed when this process ends. A
// program that carries the load also runs before all others, as packets do in the kernel.
func startProcess(h *topology.Host, carries bool, log string, path string, args ...string) (*process, error) {
	if carries {
		return start(h, log, nil, path, args...)
	}
	return start(h, log, &unix.SchedAttr{Policy: unix.SCHED_NORMAL}, path, args...)
}

// start is startProcess of a program with these scheduling attributes, nil for the attributes of this process.
func start(h *topology.Host, log string, attr *unix.SchedAttr, path string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := program.Start(cmd, func(run func() error) error {
		return h.Do(func() error {
			// The program would inherit what GoFirst has given to this thread.
			mine, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.SchedSetAttr(0, mine, 0) }()
			if attr != nil {
				attr.Size = unix.SizeofSchedAttr
				if err := unix.SchedSetAttr(0, attr, 0); err != nil {
					return os.NewSyscallError("sched_setattr", err)
				}
			}
			return run()
		})
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(path), err)
	}
	return &process{p}, nil
}

// end sends a signal and waits for the end. A process that does not end within 10 s is killed, and that is an error.
func (p *process) end(signal syscall.Signal) error {
	select {
	case <-p.Done():
		return fmt.Errorf("%s had ended by itself: %w", filepath.Base(p.Cmd.Path), p.Err())
	default:
	}
	_ = p.Cmd.Process.Signal(signal)
	return p.await(signal.String())
}

// await waits for the end of a process that has a reason for it. One that does not end within 10 s is killed, and that is an error.
func (p *process) await(reason string) error {
	if !p.End(10 * time.Second) {
		return fmt.Errorf("%s has not ended 10 s after: %s", filepath.Base(p.Cmd.Path), reason)
	}
	return nil
}

// tail is the end of a log as an error.
func tail(log string) error { return errors.New(program.Tail(log)) }
