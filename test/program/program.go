//go:build linux

// Package program runs programs for tests and for the proof. No program outlives the process that has started it.
package program

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running program.
type Process struct {
	Cmd  *exec.Cmd
	done chan struct{}
	err  error // why it has ended; valid once done is closed
}

// Start starts a command, which is killed when this process ends. in, if it is not nil, calls the function that it gets: on a thread in another
// network namespace, for example, or without some capabilities. The thread that calls in ends with the program.
func Start(cmd *exec.Cmd, in func(func() error) error) (*Process, error) {
	if in == nil {
		in = func(run func() error) error { return run() }
	}
	p := &Process{Cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 2)
	go func() {
		defer close(p.done)
		// The kernel sends Pdeathsig when the thread ends that has started the process. So it waits for the end.
		runtime.LockOSThread()
		if err := in(func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				p.err = cmd.Wait()
			}
			return nil
		}); err != nil {
			started <- err
		}
	}()
	return p, <-started
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns why the program has ended, once [Process.Done] is closed.
func (p *Process) Err() error { return p.err }

// PID is the number of the process.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

// Kill ends the program at once and waits for it.
func (p *Process) Kill() {
	if p.Cmd.Process != nil {
		_ = p.Cmd.Process.Kill()
	}
	<-p.done
}

// End waits for the end of the program for some time, and then kills it. It reports whether the program has ended by itself.
func (p *Process) End(patience time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(patience):
		p.Kill()
		return false
	}
}

// crash is the first line that Go's runtime writes when a program crashes.
var crash = regexp.MustCompile(`(?m)^(panic|fatal error|runtime|SIG[A-Z]+|unexpected fault address)[: ]`)

// Tail returns the end of a log file, or why it cannot be read. If the program has crashed, it also returns the beginning of the crash: the stacks of
// all goroutines, which follow, are longer than the end.
func Tail(path string) string {
	const enough, read = 4 << 10, 1 << 20
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > read {
		_, _ = file.Seek(-read, io.SeekEnd)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return string(text) + err.Error()
	}
	begin, end := "", max(0, len(text)-enough)
	if at := crash.FindIndex(text[:end]); at != nil {
		begin = string(text[at[0]:min(at[0]+enough, end)]) + "\n[...]\n"
	}
	return begin + string(text[end:])
}

// Without is an argument of [Start]: the program can never have some capabilities.
func Without(capabilities ...uintptr) func(func() error) error {
	return func(run func() error) error {
		var err error
		for _, c := range capabilities {
			err = errors.Join(err, unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0))
		}
		if err != nil {
			return err
		}
		return run()
	}
}
