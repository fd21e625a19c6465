package nodelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/windows"
)

// Lock is held by the process that programs this machine, until it closes the Lock or ends.
type Lock struct{ pipe windows.Handle }

// pipe is the name of the pipe that a Lock holds. Only administrators can make a pipe with such a name, so only they
// can keep the dataplane from starting.
const pipe = `\\.\pipe\ProtectedPrefix\Administrators\switchyard-lock`

// Acquire makes this process the one that programs this machine. If another one is, it waits for its end, or until ctx ends, and then returns an
// error that wraps a [InUseError]. It takes the rights of an administrator.
func Acquire(ctx context.Context, o Options) (*Lock, error) {
	expired := time.NewTimer(o.Wait)
	defer expired.Stop()
	again := time.NewTicker(pipePeriod)
	defer again.Stop()
	for waiting := false; ; {
		l, err := acquire()
		inUse, ok := errors.AsType[*InUseError](err)
		if !ok {
			return l, err
		}
		if !waiting && o.Wait > 0 {
			waiting = true
			o.Logger.Info("waiting for the end of the process that programs this machine", "process", inUse.Holder, "for", o.Wait)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-expired.C:
			return nil, err
		case <-again.C:
		}
	}
}

// pipePeriod is the time between attempts.
const pipePeriod = 50 * time.Millisecond

func acquire() (*Lock, error) {
	name, err := windows.UTF16PtrFromString(pipe)
	if err != nil {
		return nil, err
	}
	handle, err := windows.CreateNamedPipe(name, windows.PIPE_ACCESS_INBOUND|windows.FILE_FLAG_FIRST_PIPE_INSTANCE,
		windows.PIPE_TYPE_BYTE|windows.PIPE_REJECT_REMOTE_CLIENTS, 1, 0, 0, 0, nil)
	switch {
	case err == nil:
		return &Lock{handle}, nil
	case !errors.Is(err, windows.ERROR_ACCESS_DENIED) && !errors.Is(err, windows.ERROR_PIPE_BUSY):
		return nil, fmt.Errorf("creating %s: %w", pipe, err)
	case !exists(name):
		return nil, fmt.Errorf("creating %s: %w: run as administrator", pipe, fs.ErrPermission)
	}
	return nil, &InUseError{"the one that has the pipe " + pipe}
}

// exists reports whether there is a pipe, even one that this process may not use.
func exists(name *uint16) bool {
	handle, err := windows.CreateFile(name, 0, 0, nil, windows.OPEN_EXISTING, 0, 0)
	if err == nil {
		_ = windows.CloseHandle(handle)
	}
	return !errors.Is(err, windows.ERROR_FILE_NOT_FOUND)
}

// Close releases the lock. Close of a nil lock does nothing.
func (l *Lock) Close() error {
	if l == nil {
		return nil
	}
	return windows.CloseHandle(l.pipe)
}
