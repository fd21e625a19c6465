package test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/switchyard-net/switchyard/deploy/ociimage"
)

// TestOthersReadImages has the archive read as engines and registries read it.
func TestOthersReadImages(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "image.tar")
	digest := writeImage(t, archive)
	root, err := layout.ImageIndexFromPath(unpack(t, archive))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(root); err != nil {
		t.Error(err)
	}
	hash, err := v1.NewHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	index, err := root.ImageIndex(hash)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		if p := m.Manifests[i].Platform; p.OS != "linux" || p.Architecture != arch {
			t.Errorf("image %d is for %v", i, p)
		}
		tag, err := name.NewTag("localhost/switchyard:v1-" + arch)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(archive, &tag) // as docker reads it
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		c, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.Architecture != arch || c.Config.Entrypoint[0] != ociimage.Binary || c.Config.Labels["org.opencontainers.image.version"] != "v1" {
			t.Errorf("docker's image for %s has %+v", arch, c)
		}
	}
}

// writeImage makes an image of a program that does nothing.
func writeImage(t *testing.T, path string) (digest string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var builds []ociimage.Build
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "build", "-o", arch, "main.go")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		exe, err := os.ReadFile(filepath.Join(dir, arch))
		if err != nil {
			t.Fatal(err)
		}
		builds = append(builds, ociimage.Build{Switchyard: exe, Lab: exe})
	}
	var b bytes.Buffer
	digest, err := ociimage.Write(&b, ociimage.Options{Name: "localhost/switchyard:v1"}, builds...)
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func unpack(t *testing.T, archive string) (dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir = t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
