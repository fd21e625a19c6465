package main

import (
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/test/certtest"
)

// TestAPIStories runs serve and apply as an operator would, in a network of their own; testdata/api has one story a file.
func TestAPIStories(t *testing.T) { tellStories(t, "testdata/api") }

// TestRunStories does the same with run, whose stories have a kernel for themselves.
func TestRunStories(t *testing.T) { tellStories(t, "testdata/run") }

// TestProofStories asks proxies what the kernel holds, in one story, which has a kernel for itself; it is in testdata/proof.
func TestProofStories(t *testing.T) { tellStories(t, "testdata/proof") }

// TestAdminStories asks running processes through their admin API; testdata/admin has one story a file.
func TestAdminStories(t *testing.T) { runStories(t, "testdata/admin") }

// tellStories runs the stories of a directory. In addition to testscript's commands, stories have these:
//
//	start NAME ARG...   starts switchyard in the background
//	await NAME TEXT     waits until it has said a text
//	count NAME TEXT N   expects that it has said a text N times
//	end NAME [kill]     ends it in order, or at once
//	certs               makes ca.crt, and NAME.crt and NAME.key for the server, the nodes node-a and node-b, and a user
//	waitfor FILE       waits until there is a file
//	mode FILE MODE      expects a file's type and permissions
//	ask URL TEXT...     waits until what answers at a URL says all texts
//	rules TEXT          waits until the rules of the kernel, as nft lists them, have a text
//	endpoint ADDR       accepts connections at an address and port until the end of the story
//	[!] reaches ADDR    waits until an address and port can be connected to, or expects that it cannot
//
// Those that wait do so for patience at most.
func tellStories(t *testing.T, dir string) {
	if inNamespace(t) {
		runStories(t, dir)
	}
}

// runStories is tellStories for stories that need no network of their own.
func runStories(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Values[storyKey{}] = map[string]*process{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": startInStory, "await": awaitInStory, "count": countInStory, "end": endInStory,
			"certs": makeCerts, "mode": modeInStory, "ask": askInStory, "rules": rulesInStory,
			"waitfor": waitforInStory, "endpoint": endpointInStory, "reaches": reachesInStory,
		},
	})
}

// patience is how long stories wait for what must come about. Only a fault takes so long.
const patience = 2 * time.Minute

// within waits until a condition holds, and reports whether it came to.
func within(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

type storyKey struct{}

func processes(ts *testscript.TestScript) map[string]*process {
	return ts.Value(storyKey{}).(map[string]*process)
}

func named(ts *testscript.TestScript, args []string, n int) *process {
	if len(args) < n || processes(ts)[args[0]] == nil {
		ts.Fatalf("too few words, or no process that was started: %q", args)
	}
	return processes(ts)[args[0]]
}

func startInStory(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: start NAME ARG...")
	}
	p, err := newProcess(args[1:])
	ts.Check(err)
	ts.Defer(p.Kill)
	processes(ts)[args[0]] = p
}

func awaitInStory(ts *testscript.TestScript, _ bool, args []string) {
	p, text := named(ts, args, 2), strings.Join(args[1:], " ")
	if within(p.says(text)) {
		return
	}
	ts.Fatalf("%s never said %q, but\n%s", args[0], text, p.log.String())
}

func countInStory(ts *testscript.TestScript, _ bool, args []string) {
	p := named(ts, args, 3)
	if n := strings.Count(p.log.String(), args[1]); fmt.Sprint(n) != args[2] {
		ts.Fatalf("%s said %q %d times:\n%s", args[0], args[1], n, p.log.String())
	}
}

func endInStory(ts *testscript.TestScript, _ bool, args []string) {
	p := named(ts, args, 1)
	if len(args) > 1 {
		p.Kill()
		return
	}
	ts.Check(p.Cmd.Process.Signal(syscall.SIGTERM))
	<-p.Done()
	if code := p.Cmd.ProcessState.ExitCode(); code != cli.ExitOK {
		ts.Fatalf("%s ended with exit code %d:\n%s", args[0], code, p.log.String())
	}
}

func waitforInStory(ts *testscript.TestScript, _ bool, args []string) {
	there := func() bool {
		_, err := os.Lstat(ts.MkAbs(args[0]))
		return err == nil
	}
	if !within(there) {
		ts.Fatalf("there never was %s", args[0])
	}
}

func modeInStory(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Lstat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := info.Mode().String(); got != args[1] {
		ts.Fatalf("%s is %s, want %s", args[0], got, args[1])
	}
}

func askInStory(ts *testscript.TestScript, _ bool, args []string) {
	var answer string
	says := func() bool {
		answer = get(args[0])
		return !slices.ContainsFunc(args[1:], func(text string) bool { return !strings.Contains(answer, text) })
	}
	if !within(says) {
		ts.Fatalf("%s never said all of %q, but %s", args[0], args[1:], answer)
	}
}

func rulesInStory(ts *testscript.TestScript, _ bool, args []string) {
	var rules []byte
	listed := func() bool {
		var err error
		rules, err = exec.Command("nft", "list", "ruleset").CombinedOutput()
		ts.Check(err)
		return strings.Contains(string(rules), args[0])
	}
	if !within(listed) {
		ts.Fatalf("there is no rule with %q, but\n%s", args[0], rules)
	}
}

func endpointInStory(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", args[0])
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
}

func reachesInStory(ts *testscript.TestScript, neg bool, args []string) {
	reached := func() bool { return connects(args[0]) }
	if neg {
		if reached() {
			ts.Fatalf("%s can be connected to", args[0])
		}
		return
	}
	if !within(reached) {
		ts.Fatalf("%s can never be connected to", args[0])
	}
}

func makeCerts(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(writeCerts(ts.MkAbs("."))) }

// writeCerts writes a certificate authority, and the certificates and keys of a server, two nodes and an outsider.
func writeCerts(dir string) error {
	ca := certtest.NewAuthority()
	files := map[string][]byte{"ca.crt": ca.PEM}
	for file, name := range map[string]string{"server": "server", "node-a": "system:node:node-a", "node-b": "system:node:node-b", "user": "somebody"} {
		subject := pkix.Name{CommonName: name}
		if strings.HasPrefix(name, "system:node:") {
			subject.Organization = []string{"system:nodes"}
		}
		files[file+".crt"], files[file+".key"] = ca.Issue(time.Hour, subject, "127.0.0.1")
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
