package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/test/await"
)

// TestTutorials runs the commands of docs/tutorials, each page in a shell and a directory of its own, and compares what they print. With
// TUTORIALS=write in the environment, it writes what they print into the pages instead.
//
// Of the blocks of a page, those called sh are commands that print nothing. In those called console, commands are behind "$ ", and below each is
// what it prints, in which … stands for any text. Others are not run.
func TestTutorials(t *testing.T) {
	for _, program := range []string{"bash", "curl", "go", "ip", "jq", "nft", "openssl", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	if !inNamespace(t) {
		return
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "tutorials", "*.md"))
	if err != nil || len(pages) < 3 {
		t.Fatalf("found %d tutorials: %v", len(pages), err)
	}
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) { runTutorial(t, root, page) })
	}
}

func runTutorial(t *testing.T, root, page string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	s := newShell(t, root)
	var written strings.Builder
	block, command := "", ""
	var printed []string
	run := func() {
		if command == "" {
			return
		}
		got, ok := s.run(command, printed)
		if !ok && os.Getenv("TUTORIALS") != "write" {
			t.Fatalf("%s\nprints\n%sand the page has\n%s", command, got, strings.Join(printed, "\n"))
		}
		if block == "console" {
			written.WriteString("$ ")
		}
		written.WriteString(command + "\n")
		if ok && len(printed) > 0 {
			got = strings.Join(printed, "\n") + "\n"
		}
		written.WriteString(got)
		command, printed = "", nil
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		name, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && block != "":
			run()
			block = ""
		case fence:
			if block = name; name == "" {
				block = "text"
			}
		case block == "console" && strings.HasPrefix(line, "$ "):
			run()
			command = strings.TrimPrefix(line, "$ ")
			continue
		case block == "console":
			printed = append(printed, line)
			continue
		case block == "sh":
			command = strings.TrimPrefix(command+"\n"+line, "\n")
			continue
		}
		written.WriteString(line + "\n")
	}
	if os.Getenv("TUTORIALS") == "write" {
		if err := os.WriteFile(page, []byte(written.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// shell is a shell whose commands are run one after the other.
type shell struct {
	t     *testing.T
	in    io.Writer
	log   await.Log // stdout and stderr
	count int
	taken int // how much of the log belongs to commands before
}

// newShell starts a shell in an empty directory. What it starts ends with the test.
func newShell(t *testing.T, root string) *shell {
	dir, err := os.MkdirTemp("", "switchyard") // a socket's path must not be long
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t}
	cmd := exec.Command("bash", "--norc")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SWITCHYARD="+root, "LC_ALL=C.UTF-8")
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.in = in
	s.run("trap 'kill -9 0' EXIT", nil) // also when this process is killed, and the shell's input ends
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	return s
}

// commandTime is how long a command of a tutorial may take, and until it prints what it is to print. The machine may be busy.
const commandTime = 3 * time.Minute

// run runs a command and reports whether it prints what it must. One in the background may take its time for that.
func (s *shell) run(command string, want []string) (got string, ok bool) {
	s.t.Helper()
	pattern := `\A`
	if len(want) > 0 {
		pattern += anyText(strings.Join(want, "\n") + "\n")
	}
	return s.match(command, regexp.MustCompile(pattern+`\z`))
}

// anyText is the pattern of a text in which … stands for any text.
func anyText(text string) string { return strings.ReplaceAll(regexp.QuoteMeta(text), "…", ".*") }

// match is run for a pattern.
func (s *shell) match(command string, wanted *regexp.Regexp) (got string, ok bool) {
	s.t.Helper()
	s.count++
	mark := fmt.Sprintf("\x1e%d\n", s.count)
	if _, err := fmt.Fprintf(s.in, "%s\nprintf '\\036%d\\n'\n", command, s.count); err != nil {
		s.t.Fatal(err)
	}
	deadline := time.Now().Add(commandTime)
	for ; ; time.Sleep(20 * time.Millisecond) {
		all := s.log.String()
		before, after, done := strings.Cut(all[s.taken:], mark)
		got = before + after
		// What a command in the foreground prints is complete, and what one in the background has not printed in a while it never will.
		isOver := time.Now().After(deadline) || done && !strings.HasSuffix(command, "&") && !wanted.MatchString(got)
		if done && (wanted.MatchString(got) || isOver) {
			s.taken = len(all)
			return got, wanted.MatchString(got)
		}
		if isOver {
			s.t.Fatalf("%s\nhas not ended in %v; it has printed\n%s", command, commandTime, got)
		}
	}
}
