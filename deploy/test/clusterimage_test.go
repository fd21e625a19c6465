//go:build linux

package test

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// pauseImage writes the image of the container that holds a pod's namespaces, and returns its file.
func pauseImage(t *testing.T, dir, reference string) string {
	t.Helper()
	binary := filepath.Join(dir, "pause")
	build := exec.Command("go", "build", "-o", binary, "./testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return imageWith(t, filepath.Join(dir, "pause.tar"), reference, map[string]string{"pause": binary}, "/pause")
}

// tools are the programs of this machine that the end-to-end tests run in containers of the image agnhost.
var tools = []string{"cat", "curl", "date", "grep", "nc", "seq", "sh", "sleep", "timeout", "tr", "true", "wget"}

// agnhostImage writes the image of Kubernetes' test program, with the tools of this machine and their libraries. It returns its file.
func agnhostImage(t *testing.T, dir, program, reference string) string {
	t.Helper()
	once := filepath.Join(dir, "wgetrc") // wget of the image that upstream has tries once
	if err := os.WriteFile(once, []byte("tries = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"agnhost": program, "etc/wgetrc": once}
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatalf("the image agnhost takes %s of this machine: install it (curl, netcat-openbsd, wget): %v", tool, err)
		}
		files["bin/"+tool] = path
		libraries, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // without libraries
		}
		for word := range strings.FieldsSeq(string(libraries)) {
			if strings.HasPrefix(word, "/") {
				files[word[1:]] = word
			}
		}
	}
	return imageWith(t, filepath.Join(dir, "agnhost.tar"), reference, files, "/agnhost")
}

// imageWith writes an image with programs and libraries: files has paths in the image, and the files of this machine. It returns the path.
func imageWith(t *testing.T, path, reference string, files map[string]string, entrypoint string) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, to := range slices.Sorted(maps.Keys(files)) {
		text, err := os.ReadFile(files[to])
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: to, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	added, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, added)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file.OS, file.Architecture, file.Config.Entrypoint = "linux", runtime.GOARCH, []string{entrypoint}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	parsed, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(path, parsed, image); err != nil {
		t.Fatal(err)
	}
	return path
}
