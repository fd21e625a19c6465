package confine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// confinement is what a process may do.
type confinement struct {
	UID, GID int
	// Caps are numbers of capabilities, which the process has and beyond which it gets none.
	Caps []int
	// Filter is for seccomp; none if it is empty.
	Filter []bpf.RawInstruction
	// Root is an empty directory that becomes the root of a file system of its own, which cannot be written and has Mounts only;
	// none if it is empty. The program is at its place below it.
	Root   string
	Mounts []mount
	// Env are variables that the process has in addition to the test's.
	Env []string
	// Cgroup is the cgroup directory in which the process runs; if empty, the test's cgroup.
	Cgroup string
	// Probe has the process try system calls instead of becoming another program.
	Probe bool
}

// mount has a file or directory at another place.
type mount struct {
	Source, Target string
	Writable       bool
}

// confineMark is an environment variable that holds a confinement for a copy of this program, which is to become another one.
const confineMark = "SWITCHYARD_TEST_CONFINE"

func TestMain(m *testing.M) {
	if text := os.Getenv(confineMark); text != "" {
		fmt.Fprintln(os.Stderr, "confine:", confine(text))
		os.Exit(100)
	}
	os.Exit(m.Run())
}

// confine gives up everything that is not in the confinement, and becomes the program in the arguments. It is what a container
// runtime does, in the same order.
func confine(text string) error {
	runtime.LockOSThread() // all of this is about one thread, which is the one that goes on
	var c confinement
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if err := os.Unsetenv(confineMark); err != nil {
		return err
	}
	if c.Cgroup != "" {
		if err := os.WriteFile(filepath.Join(c.Cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if c.Root != "" {
		if err := c.enterRoot(); err != nil {
			return fmt.Errorf("file system: %w", err)
		}
	}
	for b := range unix.CAP_LAST_CAP + 1 {
		if !slices.Contains(c.Caps, b) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(b), 0, 0, 0); err != nil {
				return fmt.Errorf("bounding set: %w", err)
			}
		}
	}
	groups := []uint32{uint32(c.GID)}
	for _, step := range []struct {
		name    string
		number  uintptr
		a, b, c uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups[0])), 0},
		{"keep capabilities", unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0},
		{"setresgid", unix.SYS_SETRESGID, uintptr(c.GID), uintptr(c.GID), uintptr(c.GID)},
		{"setresuid", unix.SYS_SETRESUID, uintptr(c.UID), uintptr(c.UID), uintptr(c.UID)},
	} {
		if _, _, errno := unix.RawSyscall(step.number, step.a, step.b, step.c); errno != 0 {
			return fmt.Errorf("%s: %w", step.name, errno)
		}
	}
	if err := c.keepCapabilities(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	path, args, env := os.Args[1], os.Args[1:], append(os.Environ(), c.Env...)
	if err := c.applyFilter(); err != nil {
		return err
	}
	if c.Probe {
		return probe()
	}
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, args, env))
}

// enterRoot gives the thread a file system as containers have it whose root is read-only.
func (c *confinement) enterRoot() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", c.Root, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		target := filepath.Join(c.Root, m.Target)
		if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil && info.IsDir() {
			err = os.MkdirAll(target, 0o755)
		} else if err == nil {
			err = os.WriteFile(target, nil, 0o644)
		}
		if err == nil {
			err = unix.Mount(m.Source, target, "", unix.MS_BIND, "")
		}
		if err == nil && !m.Writable {
			err = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.Target, err)
		}
	}
	if err := unix.Mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if err := unix.Chroot(c.Root); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// keepCapabilities leaves the thread with its capabilities only, and has a user who is not root keep them over execve.
func (c *confinement) keepCapabilities() error {
	var data [2]unix.CapUserData
	for _, b := range c.Caps {
		d := &data[b/32]
		d.Effective |= 1 << (b % 32)
		d.Permitted, d.Inheritable = d.Effective, d.Effective
	}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	for _, b := range c.Caps {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(b), 0, 0); c.UID != 0 && err != nil {
			return fmt.Errorf("ambient capability %d: %w", b, err)
		}
	}
	return nil
}

func (c *confinement) applyFilter() error {
	if len(c.Filter) == 0 {
		return nil
	}
	code := make([]unix.SockFilter, len(c.Filter))
	for i, op := range c.Filter {
		code[i] = unix.SockFilter{Code: op.Op, Jt: op.Jt, Jf: op.Jf, K: op.K}
	}
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
