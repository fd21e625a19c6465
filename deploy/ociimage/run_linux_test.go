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

// TestRuns starts the real program with nothing around it but what is in the image.
func TestRuns(t *testing.T) {
	exe := build(t, filepath.Join("..", ".."), runtime.GOARCH, "-ldflags=-X main.version=v1.2.3-test", "./cmd/switchyard")
	plain, err := layer(exe, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	root := unpack(t, plain)
	for _, path := range []string{Binary, KubeProxy} {
		arg := map[string]string{Binary: "version", KubeProxy: "--version"}[path]
		cmd := exec.Command(path, arg)
		cmd.Dir = "/"
		cmd.SysProcAttr = inside(root)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "v1.2.3-test") {
			t.Errorf("%s %s in the image: %v\n%s", path, arg, err, out)
		}
	}
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
