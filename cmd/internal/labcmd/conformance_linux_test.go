package labcmd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

// TestConformanceCommandIsInterrupted ends the command while a story waits for a dataplane that shows nothing. The story has no result, and its program,
// its namespaces and its files are gone.
func TestConformanceCommandIsInterrupted(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	fifo := filepath.Join(t.TempDir(), "started")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	before := openNamespaces(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	pid := make(chan int, 1)
	go func() {
		text, _ := os.ReadFile(fifo)
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		pid <- n
		interrupt()
	}()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"conformance", "--run", "stories/", "--at-once", "1", "--", "bash", "-c", "echo $$ >" + fifo + "; exec sleep 1000", "{socket}"}, &stdout, &stderr)
	text := stdout.String() + stderr.String()
	if code != cli.ExitError || !strings.Contains(text, "the rest was not run") || !strings.Contains(text, "0 passed, 0 failed, 0 skipped") {
		t.Errorf("ends with %d:\n%s", code, text)
	}
	if err := unix.Kill(<-pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the program is still there: %v", err)
	}
	if now := openNamespaces(t); !slices.Equal(now, before) {
		t.Errorf("namespaces %q, before %q", now, before)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestConformanceCommandJudges: the dataplane of the guide passes, and a program that programs nothing fails. The command names the stories
// that this machine cannot run, with an exit code of its own, unless the dataplane declares the limit.
func TestConformanceCommandJudges(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("examples/nft-dataplane needs the program nft: apt-get install nftables")
	}
	dataplane := filepath.Join(t.TempDir(), "nft-dataplane")
	if out, err := exec.Command("go", "build", "-o", dataplane, "../../../examples/nft-dataplane").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	good, idle := []string{dataplane, "--api", "{target}"}, []string{"bash", "-c", "exit 1", "{socket}"}
	code, want := exitIncomplete, "NOT CHECKED: the skipped stories"
	if topology.HasSCTP() {
		code, want = cli.ExitOK, "1 passed, 0 failed, 0 skipped"
	}
	for _, c := range []struct {
		flags   string
		program []string
		code    int
		want    string
	}{
		{"--run cluster_ip$", good, cli.ExitOK, "1 passed, 0 failed, 0 skipped, of 1"},
		{"--run cluster_ip$", idle, cli.ExitError, "It does not conform."},
		{"--run sctp$", good, code, want},
		{"--run sctp$ --limit TCPOnly", idle, cli.ExitOK, "0 passed, 0 failed, 1 skipped, of 1"},
	} {
		if strings.Contains(c.flags, "TCPOnly") && topology.HasSCTP() {
			continue // the story checks that nobody answers
		}
		var stdout, stderr bytes.Buffer
		args := slices.Concat([]string{"conformance"}, strings.Fields(c.flags), []string{"--"}, c.program)
		if got := run(t.Context(), args, &stdout, &stderr); got != c.code || !strings.Contains(stdout.String(), c.want) {
			t.Errorf("%s, with %s: exit code %d, want %d, with %q in\n%s%s", c.flags, c.program[0], got, c.code, c.want, &stdout, &stderr)
		}
	}
}

// TestConformanceCommandPinsNamespaces: the program finds the map of the node's namespaces. Nothing of the map is left at the end.
func TestConformanceCommandPinsNamespaces(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	var stdout, stderr bytes.Buffer
	run(t.Context(), []string{"conformance", "--run", "cluster_ip$", "--", "bash", "-c", `test -f "$0" && echo the map is there`, "{namespaces}", "{socket}"}, &stdout, &stderr)
	text := stdout.String() + stderr.String()
	if strings.Contains(text, unix.EPERM.Error()) {
		t.Skip(text)
	}
	if !strings.Contains(text, "the map is there") {
		t.Errorf("the program does not find the map:\n%s", text)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestSecondSignal: a second SIGINT ends the command at once, though it waits for a program that does not end at SIGTERM.
func TestSecondSignal(t *testing.T) {
	netnstest.Need(t)
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	fifo, silent := filepath.Join(t.TempDir(), "told"), filepath.Join(t.TempDir(), "silent")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), unix.Mkfifo(silent, 0o600)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stubborn := "trap 'echo told >" + fifo + "' TERM; echo runs >" + fifo + "; exec 3<>" + silent + "; while :; do read -u 3; done"
	cmd := &exec.Cmd{Path: self, Args: []string{"switchyard", "conformance", "--run", "cluster_ip$", "--", "bash", "-c", stubborn, "{socket}"}}
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for _, want := range []string{"runs", "told"} { // the first SIGINT is between the two
		if text, err := os.ReadFile(fifo); err != nil || strings.TrimSpace(string(text)) != want {
			t.Fatalf("the program says %q (%v), want %q", text, err, want)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	for {
		select {
		case <-ended:
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != unix.SIGINT {
				t.Errorf("ended with %v", cmd.ProcessState)
			}
			return
		case <-time.After(10 * time.Millisecond): // the signal may have come before it was let through
			_ = cmd.Process.Signal(os.Interrupt)
		}
	}
}

// openNamespaces returns the network namespaces that this process keeps open, sorted.
func openNamespaces(t *testing.T) (list []string) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(target, "net:[") {
			list = append(list, target)
		}
	}
	slices.Sort(list)
	return list
}
