package inputs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// buildTime is how long Kustomize may take for one directory, and buildMemory how much memory it may have.
	buildTime   = time.Minute
	buildMemory = 1 << 30
	// maxComplaint is how much a process may say about its failure.
	maxComplaint = 4 << 10
)

var errOutput = fmt.Errorf("the result has more than %d MiB", maxStdin>>20)

// bounded is a buffer that takes no more than most bytes. It refuses the rest, or drops it.
type bounded struct {
	bytes.Buffer
	most int
	drop bool
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.Len()
	if room < len(p) && !b.drop {
		return 0, errOutput
	}
	b.Buffer.Write(p[:min(room, len(p))])
	return len(p), nil
}

// child has [Build] run in a process without network, environment and search path for programs. Kustomize can neither fetch nor run anything there,
// whatever a file says.
func (s *Set) child(dir string) (*made, error) {
	if s.command == nil {
		return &made{}, errors.New("is a Kustomize directory, which is not built here")
	}
	var out []byte
	err := errors.New("it is built on Linux only")
	for _, attr := range isolations() {
		if out, err = s.run(dir, attr); !errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	m := &made{}
	if err == nil {
		err = json.Unmarshal(out, m)
	}
	if err != nil {
		return &made{}, fmt.Errorf("cannot be built by Kustomize: %w", err)
	}
	return m, nil
}

// run starts the process and returns its output.
func (s *Set) run(dir string, attr *syscall.SysProcAttr) ([]byte, error) {
	ctx, stop := context.WithTimeoutCause(context.Background(), buildTime, fmt.Errorf("it takes more than %v", buildTime))
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	out, complaint := &bounded{most: maxStdin}, &bounded{most: maxComplaint, drop: true}
	cmd := s.command(dir)
	cmd.Env = append([]string{}, cmd.Env...) // nil would be this process's
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, complaint, attr
	// The process ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	guarded := make(chan struct{})
	exited := make(chan struct{})
	go func() {
		defer close(guarded)
		guard(ctx, cmd.Process, buildMemory, exited, fail)
	}()
	err := cmd.Wait()
	close(exited)
	<-guarded
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil && complaint.Len() > 0 {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return out.Bytes(), err
}

// guard kills a process that has more memory than most bytes, or when ctx ends. It returns once the process is killed or has exited.
func guard(ctx context.Context, process *os.Process, most int, exited <-chan struct{}, fail context.CancelCauseFunc) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if resident(process.Pid) > most {
				fail(fmt.Errorf("it needs more than %d MiB of memory", most>>20))
			}
		case <-ctx.Done():
			_ = process.Kill() // it may have exited
			return
		case <-exited:
			return
		}
	}
}
