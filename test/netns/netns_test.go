//go:build linux

package netns

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: all tests need network namespaces: run them without -short")
		return
	}
	os.Exit(Main(m))
}

func TestDo(t *testing.T) {
	home := identity(t)
	ns := mustNew(t)
	var inside string
	err := ns.Do(func() error {
		inside = identity(t)
		ifs, err := net.Interfaces()
		if err == nil && (len(ifs) != 1 || ifs[0].Name != "lo") {
			t.Errorf("devices of a new namespace: %v, want lo only", ifs)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if inside == home {
		t.Errorf("Do ran in the namespace of the process, %s", home)
	}
	if now := identity(t); now != home {
		t.Errorf("after Do this thread is in %s, want %s", now, home)
	}
	if other := mustNew(t); identityOf(t, other) == inside {
		t.Errorf("two new namespaces are the same")
	}
}

// TestThreadsComeBack runs many functions at once: no thread that the runtime reuses may be left in a namespace.
func TestThreadsComeBack(t *testing.T) {
	home := identity(t)
	ns := mustNew(t)
	results := make(chan error)
	for range 100 {
		go func() { results <- ns.Do(func() error { runtime.Gosched(); return nil }) }()
	}
	for range 100 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	seen := make(chan string)
	for range 100 {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			seen <- identity(t)
		}()
	}
	for range 100 {
		if now := <-seen; now != home {
			t.Errorf("a thread is in %s, want %s", now, home)
		}
	}
}

func TestDoEndsTheCaller(t *testing.T) {
	ns := mustNew(t)
	ended := make(chan bool)
	go func() {
		returned := false
		defer func() { ended <- !returned }()
		_ = ns.Do(func() error { runtime.Goexit(); return nil })
		returned = true
	}()
	if !<-ended {
		t.Error("Do returned although its function ended the goroutine")
	}
}

func TestClosed(t *testing.T) {
	ns := mustNew(t)
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error { t.Error("ran in a closed namespace"); return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Close: %v, want os.ErrClosed", err)
	}
}

func TestSysctls(t *testing.T) {
	ns := mustNew(t)
	if err := ns.SetSysctls(Sysctl{"net/ipv4/ip_forward", "1"}); err != nil {
		t.Fatal(err)
	}
	if got := readSysctl(t, ns, "net/ipv4/ip_forward"); got != "1" {
		t.Errorf("ip_forward inside is %s, want 1", got)
	}
	if got := readSysctl(t, mustNew(t), "net/ipv4/ip_forward"); got != "0" {
		t.Errorf("ip_forward in another namespace is %s, want 0", got)
	}
	err := ns.SetSysctls(Sysctl{"net/ipv4/no_such_thing", "1"})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "net/ipv4/no_such_thing") {
		t.Errorf("unknown sysctl: %v, want one that does not exist, by name", err)
	}
	err = ns.SetSysctls(Sysctl{"net/ipv4/ip_default_ttl", "1000"})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "1000") {
		t.Errorf("bad value: %v, want EINVAL and the value", err)
	}
}

// TestSysctlsReadOnly makes /proc/sys read-only for one thread, as container runtimes do.
func TestSysctlsReadOnly(t *testing.T) {
	if os.Getenv(reexeced) != "" {
		t.Skip("needs the right to mount /proc, which root of a user namespace does not have")
	}
	ns := mustNew(t)
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // thrown away with its mounts
		result <- errors.Join(
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""),
			unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
			write([]Sysctl{{"net/ipv4/ip_forward", "1"}}),
		)
	}()
	if err := <-result; !errors.Is(err, unix.EROFS) {
		t.Fatalf("write to a read-only /proc/sys: %v, want EROFS", err)
	}
	if err := ns.withOwnProc(func() error { return write([]Sysctl{{"net/ipv4/ip_forward", "1"}}) }); err != nil {
		t.Fatal(err)
	}
	if got := readSysctl(t, ns, "net/ipv4/ip_forward"); got != "1" {
		t.Errorf("ip_forward inside is %s, want 1", got)
	}
}

// TestNotRoot runs this test binary as another user: its tests must then run in a user namespace, or report why they cannot.
func TestNotRoot(t *testing.T) {
	if os.Getenv(reexeced) != "" {
		t.Skip("this is the run as another user")
	}
	run := func(env ...string) (string, error) {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestDo$|^TestSysctls", "-test.v")
		cmd.Env = append(os.Environ(), env...)
		cmd.Dir = "/"
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err != nil && !strings.Contains(out, "network namespaces need root") {
		t.Errorf("tests as another user: %v\n%s", err, out)
	} else if err == nil && !strings.Contains(out, "--- PASS: TestSysctls") {
		t.Errorf("tests as another user did not run:\n%s", out)
	}
	// Where a user namespace gives no rights, the program must not start itself again and again.
	if out, err := run(reexeced + "=1"); err == nil || !strings.Contains(out, "network namespaces need root") {
		t.Errorf("in a user namespace without rights: %v\n%s", err, out)
	}
}

func TestReexecKeepsTheExitCode(t *testing.T) {
	if os.Getenv(reexeced) != "" {
		t.Skip("needs to change the user")
	}
	cmd := exec.Command("/proc/self/exe", "-test.no-such-flag")
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "network namespaces need root") {
		t.Skip("this system allows no user namespaces")
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		t.Errorf("a program in a user namespace that exits with 2: %v\n%s", err, out)
	}
}

func mustNew(t *testing.T) *NS {
	t.Helper()
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// identity names the namespace of the calling thread.
func identity(t *testing.T) string {
	t.Helper()
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return link
}

func identityOf(t *testing.T, ns *NS) (id string) {
	t.Helper()
	if err := ns.Do(func() error { id = identity(t); return nil }); err != nil {
		t.Fatal(err)
	}
	return id
}

func readSysctl(t *testing.T, ns *NS, path string) string {
	t.Helper()
	var value []byte
	err := ns.Do(func() (err error) { value, err = os.ReadFile("/proc/sys/" + path); return err })
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}
