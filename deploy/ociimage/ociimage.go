// Package ociimage writes a container image with the static binaries of Switchyard, for several platforms, without a container engine. An image may
// also have programs that these binaries run.
//
// The archive is an OCI image layout (image-spec 1.1) as a tar file, and a docker archive at the same time. The same
// binaries and options make the same archive, byte for byte: every list is sorted, and every time comes from the
// options.
package ociimage

import (
	"archive/tar"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Binary is where the program is in the image, KubeProxy a link to it: kubeadm's DaemonSet runs that path. Lab is the program that Binary
// starts for the commands lab, conformance and bench.
const (
	Binary    = "/switchyard"
	Lab       = "/switchyard-lab"
	KubeProxy = "/usr/local/bin/kube-proxy"
)

// Build has the files for one platform.
type Build struct {
	// Switchyard and Lab are ELF executables. Lab is nil for an image with another [Options].Program.
	Switchyard, Lab []byte
	// Files are further files by path, such as licenses. Their directories are made.
	Files map[string][]byte
}

// Options say what an image is called.
type Options struct {
	// Name is the full name with a tag, such as localhost/switchyard:v1.2.3. Required. The tag is also the version in the
	// image's labels.
	Name string
	// Labels are put on the image in addition to its version.
	Labels map[string]string
	// Program is the path of the program, and the entrypoint. Default: [Binary]. An image with another program has neither [Lab] nor the link
	// [KubeProxy].
	Program string
	// Created is the time of the image and of all files in it. Default: the beginning of 1970.
	Created time.Time
	// Programs are what the program runs, as a layer below it for each architecture: a tar file with directories in it. Without them, the image has
	// the program and nothing else. They must be found in /usr/sbin.
	Programs map[string][]byte
	// ProgramsAre is a short description of Programs for the image's history.
	ProgramsAre string
}

// fullName is a name as containerd and the kubelet store it: a registry (or localhost), a path and a tag.
var fullName = regexp.MustCompile(`^(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]+)(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+:(\w[\w.-]{0,127})$`)

// Write writes the archive of an image with a build for each platform. It returns the digest of the image, which is its name in any archive
// and registry. It returns an error for an executable that needs libraries, and for two builds of the same platform.
func Write(w io.Writer, o Options, builds ...Build) (digest string, err error) {
	tag := fullName.FindStringSubmatch(o.Name)
	if tag == nil {
		return "", fmt.Errorf("image name %q: must have a registry (or localhost), a path and a tag, such as localhost/switchyard:v1.2.3", o.Name)
	}
	if o.Created.IsZero() {
		o.Created = time.Unix(0, 0)
	}
	o.Program = cmp.Or(o.Program, Binary)
	o.Created = o.Created.UTC().Truncate(time.Second)
	images, err := imagesOf(o, tag[1], builds)
	if err != nil {
		return "", err
	}
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var docker tarball.Manifest
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: i.platform}})
		d, err := dockerImage(o.Name+"-"+i.platform.Architecture, i.image)
		if err != nil {
			return "", err
		}
		docker = append(docker, d)
	}
	hash, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("image index: %w", err)
	}
	dir, err := os.MkdirTemp("", "ociimage")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	top, err := layout.Write(dir, empty.Index)
	if err != nil {
		return "", fmt.Errorf("image layout: %w", err)
	}
	// The first annotation is what OCI tools go by, the second what containerd calls the image.
	if err := top.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag[1], "io.containerd.image.name": o.Name,
	})); err != nil {
		return "", fmt.Errorf("image layout: %w", err)
	}
	text, err := json.Marshal(docker)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600)
	}
	if err != nil {
		return "", err
	}
	return hash.String(), archive(w, dir, o.Created)
}

// forPlatform is an image for one platform.
type forPlatform struct {
	platform *v1.Platform
	image    v1.Image
}

func imagesOf(o Options, version string, builds []Build) ([]forPlatform, error) {
	if len(builds) == 0 {
		return nil, errors.New("there is no executable")
	}
	var images []forPlatform
	for n, b := range builds {
		p, err := platformOf(b.Switchyard)
		if err != nil {
			return nil, fmt.Errorf("build %d: %s %w", n+1, path.Base(o.Program), err)
		}
		if o.Program == Binary {
			lab, err := platformOf(b.Lab)
			if err != nil {
				return nil, fmt.Errorf("build %d: switchyard-lab %w", n+1, err)
			}
			if !lab.Equals(*p) {
				return nil, fmt.Errorf("build %d: switchyard is for %s, and switchyard-lab for %s; give executables of one platform", n+1, p, lab)
			}
		}
		image, err := imageOf(b, p, o, version)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", p, err)
		}
		images = append(images, forPlatform{p, image})
	}
	slices.SortFunc(images, func(a, b forPlatform) int { return cmp.Compare(a.platform.String(), b.platform.String()) })
	if len(slices.CompactFunc(slices.Clone(images), func(a, b forPlatform) bool { return a.platform.Equals(*b.platform) })) != len(images) {
		return nil, errors.New("there are two builds for the same platform")
	}
	return images, nil
}

func imageOf(b Build, p *v1.Platform, o Options, version string) (v1.Image, error) {
	files, err := layer(b, o)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: o.Created}
	var layers []mutate.Addendum
	add := func(content []byte, by string) error {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
			tarball.WithMediaType(types.OCILayer))
		layers = append(layers, mutate.Addendum{Layer: l, History: v1.History{Created: created, CreatedBy: by}})
		return err
	}
	search := "/usr/local/bin:/"
	if o.Programs != nil {
		programs, ok := o.Programs[p.Architecture]
		if !ok {
			return nil, fmt.Errorf("there is no layer of programs for %s", p)
		}
		if err := add(programs, o.ProgramsAre); err != nil {
			return nil, err
		}
		search = "/usr/local/bin:/usr/sbin:/"
	}
	if err := add(files, "static binaries"); err != nil {
		return nil, err
	}
	labels := map[string]string{"org.opencontainers.image.version": version}
	maps.Copy(labels, o.Labels)
	image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{
		Architecture: p.Architecture, Variant: p.Variant, OS: p.OS, Created: created,
		Config: v1.Config{
			User: "0:0", Env: []string{"PATH=" + search}, Entrypoint: []string{o.Program}, WorkingDir: "/", Labels: labels,
		},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, layers...)
}

// dockerImage is the item of a docker archive for an image that is in an image layout. An engine whose images are of one platform gets
// the choice by tag.
func dockerImage(tag string, image v1.Image) (tarball.Descriptor, error) {
	m, err := image.Manifest()
	if err != nil {
		return tarball.Descriptor{}, err
	}
	d := tarball.Descriptor{Config: blobPath(m.Config.Digest), RepoTags: []string{tag}}
	for _, l := range m.Layers {
		d.Layers = append(d.Layers, blobPath(l.Digest))
	}
	return d, nil
}

func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// archive writes a directory as a tar file. The files that identify the format come first, so that a reader recognizes
// it early.
func archive(w io.Writer, dir string, created time.Time) error {
	t := tar.NewWriter(w)
	add := func(path string) error {
		content, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(path)))
		if err != nil {
			return err
		}
		return addFile(t, path, 0o644, content, created)
	}
	first := []string{"oci-layout", "index.json", "manifest.json"}
	for _, path := range first {
		if err := add(path); err != nil {
			return err
		}
	}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error { // in lexical order
		switch {
		case err != nil || path == "." || slices.Contains(first, path):
			return err
		case d.IsDir():
			return addDirectory(t, path+"/", created)
		}
		return add(path)
	})
	return errors.Join(err, t.Close())
}

// layer is the file system of the image as a tar file.
func layer(build Build, o Options) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	made := make(map[string]bool)
	directories := func(name string) (errs []error) {
		for i, c := range name {
			if dir := name[:i]; c == '/' && !made[dir] {
				made[dir] = true
				errs = append(errs, addDirectory(t, dir+"/", o.Created))
			}
		}
		return errs
	}
	errs := []error{addFile(t, strings.TrimPrefix(o.Program, "/"), 0o755, build.Switchyard, o.Created)}
	if o.Program == Binary {
		errs = append(errs, addFile(t, strings.TrimPrefix(Lab, "/"), 0o755, build.Lab, o.Created))
		link := strings.TrimPrefix(KubeProxy, "/")
		errs = append(errs, directories(link)...)
		errs = append(errs, t.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: link, Linkname: Binary, Mode: 0o777, ModTime: o.Created, Format: tar.FormatUSTAR,
		}))
	}
	for _, name := range slices.Sorted(maps.Keys(build.Files)) {
		relative := strings.TrimPrefix(name, "/")
		errs = append(append(errs, directories(relative)...), addFile(t, relative, 0o644, build.Files[name], o.Created))
	}
	err := errors.Join(append(errs, t.Close())...)
	return b.Bytes(), err
}

func addFile(t *tar.Writer, name string, mode int64, content []byte, created time.Time) error {
	err := t.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: mode, ModTime: created, Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = t.Write(content)
	return err
}

func addDirectory(t *tar.Writer, name string, created time.Time) error {
	return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: created, Format: tar.FormatUSTAR})
}
