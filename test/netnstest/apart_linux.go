package netnstest

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// apart is set in the processes that [Apart] starts.
const apart = "SWITCHYARD_TEST_APART"

// Apart runs the calling test again, in a process with a network namespace of its own and the other new namespaces in flags. It reports
// whether this is that process. The other process gets args and a timeout for the test. Such tests run in parallel: they mostly wait.
// Apart skips the test with -short, where no namespaces can be made, and if the other process skips it.
func Apart(t *testing.T, flags uintptr, timeout time.Duration, args ...string) bool {
	t.Helper()
	Need(t)
	if os.Getenv(apart) != "" {
		return true
	}
	t.Parallel()
	args = append([]string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=" + timeout.String()}, args...)
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), apart+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | flags, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	switch {
	case len(out) == 0 && err != nil:
		t.Skipf("no namespaces can be made: %v", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")):
		t.Skipf("%s", out)
	default:
		t.Logf("%s", out)
	}
	return false
}
