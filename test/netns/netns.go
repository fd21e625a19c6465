//go:build linux

package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NS is a network namespace that this process holds open.
type NS struct {
	file *os.File
}

// New makes an empty network namespace. Its only device is lo, which is down. It returns a [*PermissionError] if the process
// may not make namespaces.
func New() (*NS, error) {
	var ns *NS
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return permission(os.NewSyscallError("unshare", err))
		}
		var err error
		ns, err = Current()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return ns, nil
}

// Current opens the network namespace of the calling thread. Outside [NS.Do] and without runtime.LockOSThread that is the
// namespace of the process.
func Current() (*NS, error) {
	// /proc/self is the thread group's leader, which may be in another namespace than this thread.
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the current network namespace: %w", err)
	}
	return &NS{file}, nil
}

// Do runs fn on a thread that is inside the namespace, and waits for it. Sockets that fn opens belong to the namespace for
// good, and may be used from anywhere; goroutines that fn starts are not inside. If the thread cannot be brought back, it is
// thrown away. If fn ends its goroutine (testing.T.FailNow), Do ends the caller's.
func (n *NS) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return fn()
	})
}

// Fd calls use with the file descriptor that holds the namespace open; it is valid until use returns. After Close it returns
// os.ErrClosed.
func (n *NS) Fd(use func(fd int) error) error {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if raw.Control(func(fd uintptr) { useErr = use(int(fd)) }) != nil {
		return fmt.Errorf("network namespace: %w", os.ErrClosed) // the only way in which it fails
	}
	return useErr
}

// Close lets go of the namespace. The kernel destroys it, with all devices in it, once the last socket in it is closed.
// Closing twice returns os.ErrClosed.
func (n *NS) Close() error { return n.file.Close() }

func (n *NS) enter() error {
	return n.Fd(func(fd int) error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", permission(os.NewSyscallError("setns", err)))
		}
		return nil
	})
}

// onOwnThread runs fn on a thread of its own. It gives the thread back only if the thread is in its original namespace. Otherwise the
// goroutine ends while it is locked to the thread, and the runtime destroys the thread.
func onOwnThread(fn func() error) error {
	var err error
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		home, e := Current()
		if e != nil {
			err, returned = e, true
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if home.enter() == nil {
				runtime.UnlockOSThread()
			}
			home.Close()
		}()
		err = fn()
		returned = true
	}()
	<-done
	if !returned {
		runtime.Goexit()
	}
	return err
}
