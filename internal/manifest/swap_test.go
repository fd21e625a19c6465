//go:build unix

package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSwapped swaps a file for something else after it was listed, and before. Neither is waited for, and both are errors.
func TestSwapped(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for kind, swap := range map[string]func(file string) error{
		"a named pipe": func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"a device":     func(file string) error { return os.Symlink("/dev/zero", file) },
		"a directory":  func(file string) error { return os.Mkdir(file, 0o700) },
		"a link to a named pipe": func(file string) error {
			if err := syscall.Mkfifo(file+".pipe", 0o600); err != nil {
				return err
			}
			return os.Symlink(filepath.Base(file)+".pipe", file)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "a.yaml")
			want := file + ": cannot be read: it is " + strings.TrimPrefix(kind, "a link to ") + ": put a regular file in its place"
			for _, path := range []string{dir, file} {
				check(os.RemoveAll(file))
				check(os.WriteFile(file, []byte(namespace("a")), 0o600))
				tree, err := OpenTree(path)
				check(err)
				defer tree.Close()
				check(os.Remove(file))
				check(swap(file))
				wanted := want
				if kind == "a device" && path == dir {
					wanted = file + ": cannot be read: path escapes from parent" // which is why it is not even looked at
				}
				if _, _, err := tree.Read(file); err == nil || err.Error() != wanted {
					t.Errorf("%s, after it was listed: got %v, want %s", path, err, wanted)
				}
				objects, errs := Load(path)
				switch {
				case kind == "a directory" && path == dir: // of manifests, of which there is none
					wanted = dir + ": " + ErrNoManifest.Error()
				case kind == "a directory":
					wanted = file + ": " + ErrNoManifest.Error()
				}
				if len(objects) > 0 || len(errs) != 1 || errs[0].Error() != wanted {
					t.Errorf("%s: got %v, want %s", path, errs, wanted)
				}
				check(os.RemoveAll(file + ".pipe"))
			}
		})
	}
}

// TestOccupied checks which file has replaced an earlier file.
func TestOccupied(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yaml/c.yaml"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("b.yaml", filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	tree, err := OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for name, want := range map[string]bool{"a.yaml": true, "b.yaml/c.yaml": true, "link.yaml": true, ".": true, "gone.yaml": false, "gone/a.yaml": false} {
		if err := tree.Occupied(filepath.Join(dir, name)); (err != nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
