//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/topology"
)

// process is a running program.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // why; valid once exited is closed
}

// startProcess starts a program on a host. Its output is added to a log. It is killed when this process ends. A
// program that carries the load also runs before all others, as packets do in the kernel.
func startProcess(h *topology.Host, carries bool, log string, program string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		defer out.Close()
		// The thread waits as long as the program runs, since Pdeathsig is sent when the thread ends.
		err := h.Do(func() error {
			// The program would inherit what GoFirst has given to this thread.
			mine, err := unix.SchedGetAttr(0, 0)
			if err == nil {
				defer func() { _ = unix.SchedSetAttr(0, mine, 0) }()
				if !carries {
					err = schedule(0, unix.SCHED_NORMAL)
				}
			}
			if err == nil {
				err = p.cmd.Start()
			}
			started <- err
			if err == nil {
				p.err = p.cmd.Wait()
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	return p, nil
}

// end sends a signal and waits for the end. A process that does not end within 10 s is killed, and that is an error.
func (p *process) end(signal syscall.Signal) error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s had ended by itself: %w", filepath.Base(p.cmd.Path), p.err)
	default:
	}
	_ = p.cmd.Process.Signal(signal)
	return p.await(signal.String())
}

// await waits for the end of a process that has a reason for it. One that does not end within 10 s is killed, and that is an error.
func (p *process) await(reason string) error {
	select {
	case <-p.exited:
		return nil
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("%s has not ended 10 s after: %s", filepath.Base(p.cmd.Path), reason)
	}
}

// tail returns the end of a log.
func tail(log string) error {
	const enough = 2048
	file, err := os.Open(log)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > enough {
		_, _ = file.Seek(-enough, io.SeekEnd)
	}
	text, err := io.ReadAll(file)
	return errors.Join(errors.New(string(text)), err)
}
