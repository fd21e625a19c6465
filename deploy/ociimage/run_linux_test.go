package ociimage

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mostBytes is the size of the program that runs on each node, without symbols. Commands for people at their desks
// are in the other program.
const mostBytes = 36_000_000

// TestRuns starts the real programs with nothing around them but what is in the image.
func TestRuns(t *testing.T) {
	compile := func(path string) []byte {
		return build(t, filepath.Join("..", ".."), runtime.GOARCH, "-tags=grpcnotrace", "-ldflags=-s -w -X main.version=v1.2.3-test", path)
	}
	programs := Build{Switchyard: compile("./cmd/switchyard"), Lab: compile("./cmd/switchyard-lab")}
	if n := len(programs.Switchyard); n > mostBytes {
		t.Errorf("switchyard has %d bytes, over %d. 'go build -ldflags=-dumpdep' shows what it links, and why; a function marked ReflectMethod there keeps "+
			"the methods of all types", n, mostBytes)
	}
	plain, err := layer(programs, Options{Program: Binary, Created: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	root := unpack(t, plain)
	check := func(cmd *exec.Cmd, want string) {
		t.Helper()
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v in the image: %v, want %q\n%s", cmd, err, want, out)
		}
	}
	for _, args := range [][]string{{Binary, "version"}, {KubeProxy, "--version"}, {Lab, "--version"}} {
		cmd := exec.Command(args[0], args[1])
		cmd.Dir = "/"
		cmd.SysProcAttr = inside(root)
		check(cmd, "v1.2.3-test")
	}
	// Containers have /proc, where a program finds its own directory, and the file system of the image alone does not.
	switchyard := filepath.Join(root, Binary)
	check(exec.Command(switchyard, "lab", "--help"), "Usage:\n  switchyard lab [PATH...]")
	check(exec.Command(switchyard, "conformance", "--list"), "stories/affinity\n")
}

func unpack(t *testing.T, layer []byte) (root string) {
	t.Helper()
	root = t.TempDir()
	names, files := untar(t, layer)
	for _, name := range names {
		f, path := files[name], filepath.Join(root, name)
		var err error
		switch f.Typeflag {
		case tar.TypeDir:
			err = os.Mkdir(path, f.FileInfo().Mode())
		case tar.TypeSymlink:
			err = os.Symlink(f.Linkname, path)
		default:
			err = os.WriteFile(path, f.content, f.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// build compiles a package of this module.
func build(t *testing.T, dir, arch string, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "exe")
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-o", out}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, text)
	}
	exe, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// inside lets a command run with root as its whole file system.
func inside(root string) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Chroot: root}
	if os.Getuid() != 0 {
		attr.Cloneflags = syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}
