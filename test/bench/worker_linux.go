package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"
)

// workers make the object that answers the calls of a worker process, by the name of the worker. Each process has its own memory, processor
// time, cgroup and network namespace.
var workers = map[string]func() any{
	makesConnections: func() any { return newConnections() },
	holdsDataplane:   func() any { return &holder{} },
	isRelay:          func() any { return &relayWorker{ended: make(chan error, 1)} },
}

const makesConnections, holdsDataplane, isRelay = "connections", "dataplane", "relay"

// workerEnv has the name of the worker that a process is to be.
const workerEnv = "SWITCHYARD_BENCH_WORKER"

// Worker returns the work of this process if a benchmark has started it, and nil otherwise. A program that runs benchmarks calls Worker first, does
// that work if there is any, and ends.
func Worker() func() error {
	open, ok := workers[os.Getenv(workerEnv)]
	if !ok {
		return nil
	}
	return func() error {
		w, s := open(), rpc.NewServer()
		if err := s.RegisterName("Worker", w); err != nil {
			return err
		}
		s.ServeConn(pipes{os.Stdin, os.Stdout}) // until the process that gives orders closes stdin, or is gone
		if c, ok := w.(io.Closer); ok {
			return c.Close()
		}
		return nil
	}
}

type pipes struct {
	io.Reader
	io.WriteCloser
}

// worker is such a process, as the benchmark sees it.
type worker struct {
	*rpc.Client
	cmd *exec.Cmd
}

// startWorker starts this program as a worker, in the network namespace of the calling thread. It is in a cgroup of its own unless
// that is nil, and gets files from number [firstFile] on.
func startWorker(ctx context.Context, name string, cgroup *os.File, files []*os.File) (*worker, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = os.Args[:1] // a test binary does what its name says
	cmd.Env = append(cmd.Environ(), workerEnv+"="+name)
	if name == makesConnections {
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1") // its signals would interrupt system calls
	}
	cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr = os.Stderr, files, &syscall.SysProcAttr{}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process of the benchmark: %w", err)
	}
	return &worker{rpc.NewClient(pipes{out, in}), cmd}, nil
}

// firstFile is the number of the first file that a process gets in addition to its standard ones.
const firstFile = 3

// do gives an order, and waits for the answer.
func (w *worker) do(ctx context.Context, what string, order, answer any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.Call("Worker."+what, order, answer)
}

func (w *worker) close() error {
	_ = w.Client.Close() // which ends the process
	return w.cmd.Wait()
}

// kill ends the process as a lost machine would.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may have ended by itself
	_ = w.close()            // it ends because it was killed
}

// closers are called in reverse order, all of them.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() (err error) {
	for i := range *c {
		err = errors.Join(err, (*c)[len(*c)-1-i]())
	}
	*c = nil
	return err
}
