//go:build unix

package regularfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestReadFile reads every kind of file that may replace a regular file. It never waits for one.
func TestReadFile(t *testing.T) {
	t.Chdir(t.TempDir())
	check(t, os.WriteFile("four", []byte("text"), 0o600))
	check(t, os.WriteFile("five", []byte("texts"), 0o600))
	check(t, os.Symlink("four", "link"))
	check(t, os.Symlink("none", "dangling"))
	check(t, os.Mkdir("directory", 0o700))
	check(t, syscall.Mkfifo("pipe", 0o600))
	check(t, os.Symlink("pipe", "link-to-pipe"))
	l, err := net.Listen("unix", "socket")
	check(t, err)
	defer l.Close()
	for name, want := range map[string]string{
		"four":         "",
		"link":         "",
		"five":         "read five: it has more than 4 bytes: make it smaller",
		"none":         "stat none: no such file or directory",
		"dangling":     "stat dangling: no such file or directory",
		"directory":    "read directory: it is a directory: put a regular file in its place",
		"pipe":         "read pipe: it is a named pipe: put a regular file in its place",
		"link-to-pipe": "read link-to-pipe: it is a named pipe: put a regular file in its place",
		"socket":       "read socket: it is a socket: put a regular file in its place",
		"/dev/zero":    "read /dev/zero: it is a device: put a regular file in its place",
	} {
		data, err := ReadFile(name, 4)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want || err == nil && string(data) != "text" {
			t.Errorf("%s: %q, error %q, want %q", name, data, got, want)
		}
	}
	if data, err := ReadFile("/proc/self/cmdline", 1<<20); err != nil || len(data) == 0 { // whose size is 0
		t.Errorf("%q, %v", data, err)
	}
}

// swapping is an Opener that swaps a file for a named pipe after it was found to be regular.
type swapping struct{ *os.Root }

func (s swapping) Stat(name string) (fs.FileInfo, error) {
	info, err := s.Root.Stat(name)
	if err == nil {
		err = errors.Join(s.Rename("pipe", "new"), s.Rename("new", name))
	}
	return info, err
}

// TestSwapped has a file that is swapped for a named pipe just before it is opened.
func TestSwapped(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	check(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	root, err := os.OpenRoot(dir)
	check(t, err)
	defer root.Close()
	_, _, err = ReadIn(swapping{root}, "file", 4)
	if e, ok := errors.AsType[*NotRegularError](err); !ok || e.Type != fs.ModeNamedPipe || !strings.HasPrefix(err.Error(), "read file: it is a named pipe") {
		t.Errorf("got %v", err)
	}
}

// TestSameFile distinguishes a replaced file from a rewritten one.
func TestSameFile(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer root.Close()
	var last fs.FileInfo
	for _, step := range []struct {
		name string
		same bool
	}{{"file", false}, {"file", true}, {"new", false}, {"file", true}} {
		check(t, root.WriteFile(step.name, []byte("text"), 0o600))
		if step.name == "new" {
			check(t, root.Rename("new", "file"))
		}
		_, info, err := ReadIn(root, "file", 4)
		check(t, err)
		if last != nil && os.SameFile(last, info) != step.same {
			t.Errorf("%s: the same: %v", step.name, !step.same)
		}
		last = info
	}
}

// TestReadDir lists a directory, and files that are not directories.
func TestReadDir(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer root.Close()
	for _, name := range []string{"b", "a", "c"} {
		check(t, root.WriteFile(name, nil, 0o600))
	}
	check(t, syscall.Mkfifo(filepath.Join(root.Name(), "pipe"), 0o600))
	entries, err := ReadDir(root, ".")
	check(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "a b c pipe" {
		t.Errorf("got %s", got)
	}
	if _, err := ReadDir(root, "pipe"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a named pipe is listed: %v", err)
	}
}
