package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// small are builds of two programs that do nothing, by architecture.
func small(t *testing.T) map[string]Build {
	t.Helper()
	exes, err := smallOnce()
	if err != nil {
		t.Fatal(err)
	}
	return exes
}

var smallOnce = sync.OnceValues(func() (map[string]Build, error) {
	dir, err := os.MkdirTemp("", "ociimage")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		return nil, err
	}
	exes := make(map[string]Build)
	for _, arch := range []string{"amd64", "arm64", "loong64"} {
		cmd := exec.Command("go", "build", "-o", arch, "main.go")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, errors.Join(err, errors.New(string(text)))
		}
		exe, err := os.ReadFile(filepath.Join(dir, arch))
		if err != nil {
			return nil, err
		}
		exes[arch] = Build{Switchyard: exe, Lab: append(slices.Clone(exe), "another program"...)} // behind its end, where nothing reads it
	}
	return exes, nil
})

var options = Options{
	Name:    "localhost/switchyard:v1.2.3",
	Labels:  map[string]string{"org.opencontainers.image.title": "switchyard"},
	Created: time.Date(2026, 7, 1, 12, 0, 0, 999, time.FixedZone("", 7200)),
}

func write(t *testing.T, o Options, builds ...Build) (archive []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	digest, err := Write(&b, o, builds...)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), digest
}

// entry is a file of a tar archive.
type entry struct {
	tar.Header
	content []byte
}

func untar(t *testing.T, archive []byte) (names []string, entries map[string]entry) {
	t.Helper()
	entries = make(map[string]entry)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		entries[h.Name] = entry{*h, content}
	}
}

// decode reads a document strictly.
func decode[T any](t *testing.T, text []byte) T {
	t.Helper()
	var v T
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// contents is an archive that has been read, with every digest and size checked.
type contents struct {
	t     *testing.T
	files map[string]entry
	used  map[string]bool
}

func (l *contents) blob(d v1.Descriptor, mediaType string) []byte {
	l.t.Helper()
	path := blobPath(d.Digest)
	content := l.files[path].content
	l.used[path] = true
	if got := digestOf(content); got != d.Digest.String() || int64(len(content)) != d.Size || string(d.MediaType) != mediaType {
		l.t.Errorf("%+v describes %d bytes with the digest %s; want a %s", d, len(content), got, mediaType)
	}
	return content
}

func digestOf(blob []byte) string {
	sum := sha256.Sum256(blob)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestArchive(t *testing.T) {
	exes := small(t)
	text, digest := write(t, options, exes["arm64"], exes["amd64"])
	names, files := untar(t, text)
	l := &contents{t, files, map[string]bool{}}

	if !slices.Equal(names[:3], []string{"oci-layout", "index.json", "manifest.json"}) {
		t.Errorf("the archive begins with %v", names[:3])
	}
	if got, want := decode[map[string]string](t, files["oci-layout"].content), "1.0.0"; got["imageLayoutVersion"] != want {
		t.Errorf("oci-layout is %v, want %s", got, want)
	}
	top := decode[v1.IndexManifest](t, files["index.json"].content)
	if top.SchemaVersion != 2 || len(top.Manifests) != 1 || top.Manifests[0].Digest.String() != digest {
		t.Fatalf("index.json is %+v, want one image %s", top, digest)
	}
	if got, want := top.Manifests[0].Annotations, map[string]string{
		"org.opencontainers.image.ref.name": "v1.2.3", "io.containerd.image.name": "localhost/switchyard:v1.2.3",
	}; !maps.Equal(got, want) {
		t.Errorf("the image has the annotations %v, want %v", got, want)
	}
	docker := decode[tarball.Manifest](t, files["manifest.json"].content)
	images := decode[v1.IndexManifest](t, l.blob(top.Manifests[0], "application/vnd.oci.image.index.v1+json"))
	if len(images.Manifests) != 2 || len(docker) != 2 {
		t.Fatalf("there are %d images and %d docker images, want 2", len(images.Manifests), len(docker))
	}
	for i, arch := range []string{"amd64", "arm64"} {
		d := images.Manifests[i]
		if !d.Platform.Equals(v1.Platform{Architecture: arch, OS: "linux"}) {
			t.Errorf("image %d is for %+v, want linux/%s", i, *d.Platform, arch)
		}
		l.checkImage(d, docker[i], arch, exes[arch])
	}
	for path := range files {
		if strings.HasPrefix(path, "blobs/sha256/") && path != "blobs/sha256/" && !l.used[path] {
			t.Errorf("nothing refers to %s", path)
		}
	}
}

func (l *contents) checkImage(d v1.Descriptor, docker tarball.Descriptor, arch string, build Build) {
	t := l.t
	t.Helper()
	m := decode[v1.Manifest](t, l.blob(d, "application/vnd.oci.image.manifest.v1+json"))
	if m.SchemaVersion != 2 || m.MediaType != "application/vnd.oci.image.manifest.v1+json" || len(m.Layers) != 1 {
		t.Fatalf("%s has the manifest %+v", arch, m)
	}
	c := decode[v1.ConfigFile](t, l.blob(m.Config, "application/vnd.oci.image.config.v1+json"))
	if c.OS != "linux" || c.Architecture != arch || !c.Created.Equal(time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC)) {
		t.Errorf("%s has the configuration %+v", arch, c)
	}
	if got, want := c.Config.Labels, map[string]string{
		"org.opencontainers.image.title": "switchyard", "org.opencontainers.image.version": "v1.2.3",
	}; !maps.Equal(got, want) {
		t.Errorf("%s has the labels %v, want %v", arch, got, want)
	}
	if c.Config.User != "0:0" || !slices.Equal(c.Config.Entrypoint, []string{"/switchyard"}) {
		t.Errorf("%s is run as %+v", arch, c.Config)
	}
	want := tarball.Descriptor{
		Config: blobPath(m.Config.Digest), RepoTags: []string{"localhost/switchyard:v1.2.3-" + arch}, Layers: []string{blobPath(m.Layers[0].Digest)},
	}
	if diff := cmp.Diff(want, docker); diff != "" {
		t.Errorf("docker's %s (-want +got):\n%s", arch, diff)
	}
	z, err := gzip.NewReader(bytes.NewReader(l.blob(m.Layers[0], "application/vnd.oci.image.layer.v1.tar+gzip")))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.RootFS.DiffIDs) != 1 || c.RootFS.Type != "layers" || c.RootFS.DiffIDs[0].String() != digestOf(plain) {
		t.Errorf("%s has the file system %+v, want %s", arch, c.RootFS, digestOf(plain))
	}
	checkFiles(t, plain, arch, build)
}

func checkFiles(t *testing.T, layer []byte, arch string, build Build) {
	t.Helper()
	names, files := untar(t, layer)
	if want := []string{"switchyard", "switchyard-lab", "usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/kube-proxy"}; !slices.Equal(names, want) {
		t.Errorf("%s holds %v, want %v", arch, names, want)
	}
	for name, exe := range map[string][]byte{"switchyard": build.Switchyard, "switchyard-lab": build.Lab} {
		if f := files[name]; !bytes.Equal(f.content, exe) || f.Mode != 0o755 {
			t.Errorf("%s has another %s than it was given, or with the mode %o", arch, name, f.Mode)
		}
	}
	if f := files["usr/local/bin/kube-proxy"]; f.Typeflag != tar.TypeSymlink || f.Linkname != "/switchyard" {
		t.Errorf("%s has a kube-proxy of type %c to %q", arch, f.Typeflag, f.Linkname)
	}
	for name, f := range files {
		if f.Uid != 0 || f.Gid != 0 || !f.ModTime.Equal(options.Created.Truncate(time.Second)) {
			t.Errorf("%s: %s is of %d:%d, %v", arch, name, f.Uid, f.Gid, f.ModTime)
		}
	}
	// Not by way of platformOf, which is what decided where it goes.
	f, err := elf.NewFile(bytes.NewReader(files["switchyard"].content))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
		t.Errorf("the executable for %s is for %v", arch, f.Machine)
	}
}

func TestBuildIsReproducible(t *testing.T) {
	exes := small(t)
	first, digest1 := write(t, options, exes["amd64"], exes["arm64"])
	o := options
	o.Labels = maps.Clone(o.Labels)
	o.Created = o.Created.UTC()
	second, digest2 := write(t, o, exes["arm64"], exes["amd64"])
	if !bytes.Equal(first, second) || digest1 != digest2 {
		t.Errorf("the same binaries made %s and %s", digest1, digest2)
	}
	o.Created = o.Created.Add(time.Second)
	if _, digest3 := write(t, o, exes["arm64"], exes["amd64"]); digest3 == digest1 {
		t.Error("another time made the same image")
	}
}

func TestRefuses(t *testing.T) {
	exes := small(t)
	amd64, arm64 := exes["amd64"], exes["arm64"]
	dynamic := withInterpreter(amd64.Switchyard)
	for title, c := range map[string]struct {
		name string
		exes []Build
		want string
	}{
		"no executable":        {options.Name, nil, "there is no executable"},
		"two for one platform": {options.Name, []Build{amd64, arm64, amd64}, "two builds for the same platform"},
		"no ELF":               {options.Name, []Build{{Switchyard: []byte("#!/bin/sh\n"), Lab: amd64.Lab}}, "build 1: switchyard is no ELF executable"},
		"other processor":      {options.Name, []Build{amd64, exes["loong64"]}, "build 2: switchyard is for EM_LOONGARCH"},
		"dynamic":              {options.Name, []Build{{Switchyard: amd64.Switchyard, Lab: dynamic}}, "build 1: switchyard-lab is dynamically linked, and the image has no libraries; build it with CGO_ENABLED=0"},
		"mixed":                {options.Name, []Build{{Switchyard: amd64.Switchyard, Lab: arm64.Lab}}, "switchyard is for linux/amd64, and switchyard-lab for linux/arm64"},
		"no tag":               {"localhost/switchyard", []Build{amd64}, "such as localhost/switchyard:v1.2.3"},
		"no registry":          {"switchyard:v1", []Build{amd64}, "must have a registry"},
		"bad tag":              {"localhost/switchyard:v1+x", []Build{amd64}, "must have a registry"},
	} {
		o := options
		o.Name = c.name
		if _, err := Write(io.Discard, o, c.exes...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", title, err, c.want)
		}
	}
	for _, name := range []string{"registry.example:5000/net/switchyard:v1.2.3-4-gabcdef-dirty", "registry.example.org/a_b/c:1"} {
		o := options
		o.Name = name
		write(t, o, amd64)
	}
}

// withInterpreter makes an executable look as if the dynamic linker were to start it.
func withInterpreter(exe []byte) []byte {
	changed := slices.Clone(exe)
	const phoff = 64 // where Go's linker puts the program headers: behind the ELF header
	changed[phoff] = byte(elf.PT_INTERP)
	return changed
}

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, errors.New("disk is full")
	}
	return len(b), nil
}

func TestFullDisk(t *testing.T) {
	exe := small(t)["amd64"]
	for _, left := range []int{0, 600, 5000, 100000} {
		if _, err := Write(&brokenWriter{left}, options, exe); err == nil {
			t.Errorf("a disk with %d bytes was enough", left)
		}
	}
}
