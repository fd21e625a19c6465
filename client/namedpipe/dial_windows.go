package namedpipe

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// securityIdentification, with securityPresent, lets the server find out who connects, but not act in its place.
	securityPresent        = 0x00100000
	securityIdentification = 0x00010000
	errPipeBusy            = syscall.Errno(231)
	// busyPause is the time between attempts while the server has no instance of the pipe that is free.
	busyPause = 10 * time.Millisecond
)

// Dial connects to the pipe at a path. While all its instances are in use, it waits for one until ctx ends.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	for {
		handle, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_EXISTING,
			syscall.FILE_FLAG_OVERLAPPED|securityPresent|securityIdentification, 0)
		if err == nil {
			return Conn(uintptr(handle), path), nil
		}
		if !errors.Is(err, errPipeBusy) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			return nil, &os.PathError{Op: "open", Path: path, Err: context.Cause(ctx)}
		case <-time.After(busyPause):
		}
	}
}

// Conn returns one end of the pipe at a path, which it owns from now on. Its handle must be for overlapped operations.
func Conn(handle uintptr, path string) net.Conn { return &conn{os.NewFile(handle, path), Addr(path)} }

// conn is one end of a pipe. The file waits without a thread, because its handle is for overlapped operations.
type conn struct {
	*os.File
	addr Addr
}

func (c *conn) LocalAddr() net.Addr  { return c.addr }
func (c *conn) RemoteAddr() net.Addr { return c.addr }
