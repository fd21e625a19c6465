package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/switchyard-net/switchyard/client/namedpipe"
)

// listenPipe listens at a named pipe for administrators, the system and the user of this process. Nobody else has made it before, or it fails.
func listenPipe(path string) (net.Listener, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, fmt.Errorf("find the user of this process: %w", err)
	}
	l := &pipeListener{path: path}
	if l.rights, err = windows.SecurityDescriptorFromString("D:P(A;;GA;;;BA)(A;;GA;;;SY)(A;;GA;;;" + user.User.Sid.String() + ")"); err != nil {
		return nil, fmt.Errorf("rights of the pipe: %w", err)
	}
	if l.connected, err = windows.CreateEvent(nil, 1, 0, nil); err != nil {
		return nil, err
	}
	if l.closed, err = windows.CreateEvent(nil, 1, 0, nil); err != nil {
		return nil, errors.Join(err, windows.CloseHandle(l.connected))
	}
	if l.next, err = l.instance(windows.FILE_FLAG_FIRST_PIPE_INSTANCE); err != nil {
		return nil, errors.Join(err, windows.CloseHandle(l.connected), windows.CloseHandle(l.closed))
	}
	return l, nil
}

// pipeListener has an instance of its pipe that waits for a client, all the time until it is closed.
type pipeListener struct {
	path   string
	rights *windows.SECURITY_DESCRIPTOR
	// connected and closed are events: that next has a client, and that the listener is closed.
	connected, closed windows.Handle
	over              sync.Once

	mu   sync.Mutex // held by Accept, and by Close for the end of it
	next windows.Handle
	done bool
}

// pipeBuffer is how many bytes may wait in each direction.
const pipeBuffer = 64 << 10

// instance makes an instance of the pipe.
func (l *pipeListener) instance(flags uint32) (windows.Handle, error) {
	name, err := windows.UTF16PtrFromString(l.path)
	if err != nil {
		return 0, err
	}
	attributes := &windows.SecurityAttributes{Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), SecurityDescriptor: l.rights}
	handle, err := windows.CreateNamedPipe(name, windows.PIPE_ACCESS_DUPLEX|windows.FILE_FLAG_OVERLAPPED|flags,
		windows.PIPE_TYPE_BYTE|windows.PIPE_REJECT_REMOTE_CLIENTS, windows.PIPE_UNLIMITED_INSTANCES, pipeBuffer, pipeBuffer, 0, attributes)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return 0, fmt.Errorf("%w: another process serves this pipe, or may not be disturbed; stop it, or choose another name", err)
	}
	return handle, os.NewSyscallError("CreateNamedPipe", err)
}

// Accept implements [net.Listener].
func (l *pipeListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil, l.closedError()
	}
	if err := l.await(); err != nil {
		return nil, err
	}
	// The next instance is there before this one's client goes on: others find one at any time.
	next, err := l.instance(0)
	if err != nil {
		return nil, errors.Join(err, windows.DisconnectNamedPipe(l.next))
	}
	c := namedpipe.Conn(uintptr(l.next), l.path)
	l.next = next
	return c, nil
}

// await waits until a client is connected to next.
func (l *pipeListener) await() error {
	if err := windows.ResetEvent(l.connected); err != nil {
		return err
	}
	o := &windows.Overlapped{HEvent: l.connected}
	err := windows.ConnectNamedPipe(l.next, o)
	for errors.Is(err, windows.ERROR_NO_DATA) { // a client has come, and gone
		if err := windows.DisconnectNamedPipe(l.next); err != nil {
			return os.NewSyscallError("DisconnectNamedPipe", err)
		}
		err = windows.ConnectNamedPipe(l.next, o)
	}
	switch {
	case err == nil, errors.Is(err, windows.ERROR_PIPE_CONNECTED):
		return nil
	case !errors.Is(err, windows.ERROR_IO_PENDING):
		return os.NewSyscallError("ConnectNamedPipe", err)
	}
	which, err := windows.WaitForMultipleObjects([]windows.Handle{l.closed, l.connected}, false, windows.INFINITE)
	var n uint32
	if err == nil && which == windows.WAIT_OBJECT_0+1 {
		return os.NewSyscallError("ConnectNamedPipe", windows.GetOverlappedResult(l.next, o, &n, false))
	}
	_ = windows.CancelIoEx(l.next, o)
	_ = windows.GetOverlappedResult(l.next, o, &n, true) // the system writes to o until then
	if err != nil {
		return os.NewSyscallError("WaitForMultipleObjects", err)
	}
	return l.closedError()
}

func (l *pipeListener) closedError() error {
	return &net.OpError{Op: "accept", Net: "npipe", Addr: l.Addr(), Err: net.ErrClosed}
}

// Close implements [net.Listener].
func (l *pipeListener) Close() (err error) {
	l.over.Do(func() {
		err = windows.SetEvent(l.closed)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.done = true
		err = errors.Join(err, windows.CloseHandle(l.next), windows.CloseHandle(l.connected), windows.CloseHandle(l.closed))
	})
	return err
}

// Addr implements [net.Listener].
func (l *pipeListener) Addr() net.Addr { return namedpipe.Addr(l.path) }
