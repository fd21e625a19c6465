//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Sysctl is a kernel setting of a network namespace.
type Sysctl struct {
	// Path is its path below /proc/sys, such as net/ipv4/ip_forward.
	Path  string
	Value string
}

// SetSysctls writes settings, in order, inside the namespace. Some containers mount /proc/sys read-only; the settings are
// then written through a /proc of their own, if the process may mount one.
func (n *NS) SetSysctls(settings ...Sysctl) error {
	err := n.Do(func() error { return write(settings) })
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	if retryErr := n.withOwnProc(func() error { return write(settings) }); retryErr != nil {
		return fmt.Errorf("%w (and there is no way around: %w); mount /proc/sys read-write or run as root of the host", err, retryErr)
	}
	return nil
}

// write relies on the kernel resolving /proc/sys/net by the thread that opens a file, not by the mount.
func write(settings []Sysctl) error {
	for _, s := range settings {
		// No O_CREATE or O_TRUNC: a setting that does not exist is to be reported as such.
		file, err := os.OpenFile(filepath.Join("/proc/sys", s.Path), os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("set sysctl %s: %w", s.Path, err)
		}
		_, err = file.WriteString(s.Value)
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return fmt.Errorf("set sysctl %s to %q: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// withOwnProc runs fn inside the namespace on a thread with a mount namespace of its own, in which /proc is fresh.
func (n *NS) withOwnProc(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: a thread does not come back from its own mount namespace
		result <- func() error {
			if err := n.enter(); err != nil {
				return err
			}
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return os.NewSyscallError("unshare", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return os.NewSyscallError("mount", err)
			}
			if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
				return os.NewSyscallError("mount", err)
			}
			return fn()
		}()
	}()
	return <-result
}
