// Package namespace runs functions in a network namespace other than the current thread's. A dataplane belongs to the
// namespace in which it was opened, and a process may have several.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace. It may be used by several goroutines.
type Namespace struct {
	file *os.File
	id   id
}

// id distinguishes namespaces.
type id struct{ dev, ino uint64 }

const ofThread = "/proc/thread-self/ns/net"

// Current returns the network namespace of the calling thread. The caller must Close it.
func Current() (*Namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f, err := os.Open(ofThread)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	at, err := idOfThread()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Namespace{f, at}, nil
}

func idOfThread() (id, error) {
	var st unix.Stat_t
	if err := unix.Stat(ofThread, &st); err != nil {
		return id{}, fmt.Errorf("look at the network namespace: %w", err)
	}
	return id{uint64(st.Dev), st.Ino}, nil
}

// Do calls fn on a thread that is in the namespace. Mostly the calling one is, and that takes no right; else it needs CAP_SYS_ADMIN.
func (n *Namespace) Do(fn func() error) error {
	runtime.LockOSThread()
	at, err := idOfThread()
	if err != nil || at == n.id {
		defer runtime.UnlockOSThread()
		if err != nil {
			return err
		}
		return fn()
	}
	outside, err := os.Open(ofThread)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer outside.Close()
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = fn()
	if unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	} // else the thread stays locked, and ends with its goroutine
	return err
}

// Close releases it.
func (n *Namespace) Close() error { return n.file.Close() }
