//go:build unix

package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWriteFileKeepsWhatIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()

	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		defer close(read)
		f, err := os.Open(fifo)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		text, _ := io.ReadAll(f)
		read <- string(text)
	}()
	write(t, fifo)
	if info, err := os.Lstat(fifo); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Fatalf("the FIFO is now %v, %v", info, err)
	}
	if got := <-read; got != "new" {
		t.Errorf("the reader of the FIFO got %q", got)
	}

	// A link of its own: where the check fails, it replaces the link and not the device.
	null := filepath.Join(dir, "null")
	if err := os.Symlink(os.DevNull, null); err != nil {
		t.Fatal(err)
	}
	write(t, null)
	if info, err := os.Stat(null); err != nil || info.Mode()&fs.ModeDevice == 0 {
		t.Errorf("the device is now %v, %v", info, err)
	}
}

func TestWriteFileFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	for _, exists := range []bool{true, false} {
		target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
		if exists {
			if err := os.WriteFile(target, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("target", link); err != nil {
			t.Fatal(err)
		}
		write(t, link)
		if text, err := os.ReadFile(target); err != nil || string(text) != "new" {
			t.Errorf("target existed: %v: it has %q, %v", exists, text, err)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
			t.Errorf("target existed: %v: the link is now %v, %v", exists, info, err)
		}
		if err := os.Remove(target); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteFileKeepsOwnerAndPermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := os.Getuid()
	if owner == 0 {
		owner = 1234
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	write(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if is := info.Sys().(*syscall.Stat_t); int(is.Uid) != owner || info.Mode() != 0o600 {
		t.Errorf("user %d, mode %v, want user %d, mode 0600", is.Uid, info.Mode(), owner)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A file that standard output was redirected to is shared with the shell: it must get the text where the shell goes on.
func TestWriteFileToStandardOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	old := os.Stdout
	os.Stdout = f
	defer func() { os.Stdout = old }()
	if _, err := f.WriteString("before "); err != nil {
		t.Fatal(err)
	}
	write(t, path)
	if _, err := f.WriteString(" after"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "before new after" {
		t.Errorf("it has %q, %v", text, err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := writeFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
}
