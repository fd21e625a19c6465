//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// reexeced marks the environment of a program that [Reexec] has started, and inherited has the number of its files.
const reexeced, inherited = "SWITCHYARD_IN_USER_NAMESPACE", "SWITCHYARD_INHERITED_FILES"

// PermissionError reports whether the process may not make or enter network namespaces.
type PermissionError struct {
	// Err is what the kernel said.
	Err error
}

func (e *PermissionError) Error() string {
	return e.Err.Error() + ": network namespaces need root, or unprivileged user namespaces" +
		" (sysctls user.max_user_namespaces > 0, kernel.unprivileged_userns_clone = 1 and" +
		" kernel.apparmor_restrict_unprivileged_userns = 0, as far as they exist)"
}

// Unwrap returns what the kernel said.
func (e *PermissionError) Unwrap() error { return e.Err }

// permission wraps err in a PermissionError if permission is missing.
func permission(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &PermissionError{err}
	}
	return err
}

// Check returns nil if this process can make network namespaces.
func Check() error {
	ns, err := New()
	if err != nil {
		return err
	}
	return ns.Close()
}

// Reexec runs this program again, with the same arguments, environment and standard files, as root of new user,
// network and mount namespaces. It waits for the program and returns its exit code. It returns a [*PermissionError]
// if the system does not allow that, also if this program has been started by Reexec already. The program finds files
// by [Inherited].
func Reexec(files ...*os.File) (code int, err error) {
	if os.Getenv(reexeced) != "" {
		return 0, &PermissionError{errors.New("the user namespace gives no right to make network namespaces")}
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, files
	cmd.Env = append(os.Environ(), reexeced+"=1", inherited+"="+strconv.Itoa(len(files)))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	// The kernel sends Pdeathsig when the thread ends that started the child, so it must not end before the child does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil // ExitCode is -1 after a signal
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) { // user.max_user_namespaces is 0; not in the kernel
		err = &PermissionError{err}
	}
	if err != nil {
		return 0, fmt.Errorf("start this program in a user namespace: %w", permission(err))
	}
	return 0, nil
}

// Inherited returns file i of those that [Reexec] was given for this program, nil if there is none. Sockets among them are in the network
// that the first program was in.
func Inherited(i int) *os.File {
	if n, err := strconv.Atoi(os.Getenv(inherited)); err != nil || i >= n {
		return nil
	}
	return os.NewFile(uintptr(3+i), "inherited") // behind the standard files
}

// Main is for TestMain functions of packages whose tests need network namespaces: os.Exit(netns.Main(m)). It is [Run] of the tests.
func Main(m interface{ Run() int }) int { return Run(m.Run) }

// Run is for programs that need network namespaces. It calls fn if this process can make some, and otherwise runs the program again
// through [Reexec]. It returns the exit code. If neither is possible it reports it on stderr, and returns 1.
func Run(fn func() int) (code int) {
	err := Check()
	if err == nil {
		return fn()
	}
	if _, ok := errors.AsType[*PermissionError](err); ok {
		if code, err = Reexec(); err == nil {
			return code
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
