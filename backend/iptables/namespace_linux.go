package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace in which programs are started.
type namespace struct {
	file *os.File
	id   nsID
}

// nsID distinguishes namespaces.
type nsID struct{ dev, ino uint64 }

const threadNamespace = "/proc/thread-self/ns/net"

func idOf(path string) (nsID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nsID{}, fmt.Errorf("look at %s: %w", path, err)
	}
	return nsID{uint64(st.Dev), st.Ino}, nil
}

// currentNamespace returns that of the calling thread.
func currentNamespace() (*namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	id, err := idOf(threadNamespace)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(threadNamespace)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return &namespace{f, id}, nil
}

// start starts a program inside. The calling thread is inside already, unless this process has several namespaces.
func (n *namespace) start(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	id, err := idOf(threadNamespace)
	if err == nil && id == n.id {
		err = cmd.Start()
	}
	if err != nil || id == n.id {
		runtime.UnlockOSThread()
		return err
	}
	outside, err := os.Open(threadNamespace)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer outside.Close()
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = cmd.Start()
	if back := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); back != nil {
		return err // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

func (n *namespace) close() error { return n.file.Close() }
