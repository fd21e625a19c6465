// Package ociimage writes a container image that holds one static binary, for several platforms, without a container engine.
//
// The archive is an OCI image layout (image-spec 1.1) as a tar file, and a docker archive at the same time. What can be read of
// the same binaries and options is the same, byte for byte: every list is sorted, and every time is that of the options.
package ociimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Binary is where the program is in the image, KubeProxy a link to it: kubeadm's DaemonSet runs that path.
const (
	Binary    = "/switchyard"
	KubeProxy = "/usr/local/bin/kube-proxy"
)

// Options say what an image is called.
type Options struct {
	// Name is the full name with a tag, such as localhost/switchyard:v1.2.3. Required. The tag is also the version in the
	// image's labels.
	Name string
	// Labels are put on the image beside its version.
	Labels map[string]string
	// Created is the time of the image and of all files in it. Default: the beginning of 1970.
	Created time.Time
}

// fullName is a name as containerd and the kubelet store it: a registry (or localhost), a path and a tag.
var fullName = regexp.MustCompile(`^(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]+)(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+:(\w[\w.-]{0,127})$`)

// Write writes the archive of an image with one of the ELF executables for each platform, and returns the digest of the image,
// which names it whatever archive or registry it is in. It returns an error for an executable that would not run in an image
// which holds nothing else, and for two of the same platform.
func Write(w io.Writer, o Options, executables ...[]byte) (digest string, err error) {
	tag := fullName.FindStringSubmatch(o.Name)
	if tag == nil {
		return "", fmt.Errorf("image name %q: must have a registry (or localhost), a path and a tag, such as localhost/switchyard:v1.2.3", o.Name)
	}
	if o.Created.IsZero() {
		o.Created = time.Unix(0, 0)
	}
	o.Created = o.Created.UTC().Truncate(time.Second)
	a := archive{blobs: make(map[string][]byte)}
	index := index{SchemaVersion: 2, MediaType: typeIndex}
	var docker []dockerImage
	for n, exe := range executables {
		p, err := platformOf(exe)
		if err != nil {
			return "", fmt.Errorf("executable %d: %w", n+1, err)
		}
		d, image, err := a.addImage(exe, p, o, tag[1])
		if err != nil {
			return "", err
		}
		d.Platform = &p
		index.Manifests = append(index.Manifests, d)
		docker = append(docker, image)
	}
	byArchitecture := func(x, y descriptor) int { return strings.Compare(x.Platform.Architecture, y.Platform.Architecture) }
	slices.SortFunc(index.Manifests, byArchitecture)
	slices.SortFunc(docker, func(x, y dockerImage) int { return strings.Compare(x.RepoTags[0], y.RepoTags[0]) })
	if len(slices.CompactFunc(slices.Clone(docker), func(x, y dockerImage) bool { return x.RepoTags[0] == y.RepoTags[0] })) != len(executables) {
		return "", errors.New("there are two executables for the same platform")
	}
	if len(executables) == 0 {
		return "", errors.New("there is no executable")
	}
	top, err := a.addJSON(typeIndex, index)
	if err != nil {
		return "", err
	}
	// The first is what OCI tools go by, the second what containerd calls the image.
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag[1], "io.containerd.image.name": o.Name}
	entry := index
	entry.Manifests = []descriptor{top}
	return top.Digest, a.write(w, o.Created, entry, docker)
}

// archive has the content of an image by digest.
type archive struct{ blobs map[string][]byte }

// addImage adds the image for one platform.
func (a *archive) addImage(exe []byte, p platform, o Options, version string) (descriptor, dockerImage, error) {
	plain, err := layer(exe, o.Created)
	if err != nil {
		return descriptor{}, dockerImage{}, err
	}
	packed, err := compress(plain)
	if err != nil {
		return descriptor{}, dockerImage{}, err
	}
	l := a.add(typeLayer, packed)
	labels := map[string]string{"org.opencontainers.image.version": version}
	maps.Copy(labels, o.Labels)
	c, err := a.addJSON(typeConfig, imageConfig{
		platform: p,
		Created:  o.Created.Format(time.RFC3339),
		Config: runConfig{
			User:       "0:0",
			Env:        []string{"PATH=/usr/local/bin:/"},
			Entrypoint: []string{Binary},
			WorkingDir: "/",
			Labels:     labels,
		},
		RootFS:  rootFS{Type: "layers", DiffIDs: []string{digestOf(plain)}},
		History: []history{{Created: o.Created.Format(time.RFC3339), CreatedBy: "one static binary"}},
	})
	if err != nil {
		return descriptor{}, dockerImage{}, err
	}
	m, err := a.addJSON(typeManifest, manifest{SchemaVersion: 2, MediaType: typeManifest, Config: c, Layers: []descriptor{l}})
	// An engine whose images are of one platform gets the choice by tag.
	image := dockerImage{Config: blobPath(c.Digest), RepoTags: []string{o.Name + "-" + p.Architecture}, Layers: []string{blobPath(l.Digest)}}
	return m, image, err
}

func (a *archive) addJSON(mediaType string, v any) (descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return a.add(mediaType, text), nil
}

func (a *archive) add(mediaType string, blob []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digestOf(blob), Size: int64(len(blob))}
	a.blobs[d.Digest] = blob
	return d
}

// write writes the tar file: first what says what it is, so that a reader knows early, then the content.
func (a *archive) write(w io.Writer, created time.Time, entry index, docker []dockerImage) error {
	t := tar.NewWriter(w)
	var errs []error
	file := func(name string, content []byte) {
		errs = append(errs, addFile(t, name, 0o644, content, created))
	}
	for _, f := range []struct {
		name    string
		content any
	}{{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}}, {"index.json", entry}, {"manifest.json", docker}} {
		text, err := json.Marshal(f.content)
		errs = append(errs, err)
		file(f.name, text)
	}
	errs = append(errs, addDirectory(t, "blobs/", created), addDirectory(t, "blobs/sha256/", created))
	for _, digest := range slices.Sorted(maps.Keys(a.blobs)) {
		file(blobPath(digest), a.blobs[digest])
	}
	return errors.Join(append(errs, t.Close())...)
}

// layer is the file system of the image as a tar file.
func layer(exe []byte, created time.Time) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	errs := []error{addFile(t, strings.TrimPrefix(Binary, "/"), 0o755, exe, created)}
	link := strings.TrimPrefix(KubeProxy, "/")
	for i, c := range link {
		if c == '/' {
			errs = append(errs, addDirectory(t, link[:i+1], created))
		}
	}
	errs = append(errs, t.WriteHeader(&tar.Header{
		Typeflag: tar.TypeSymlink, Name: link, Linkname: Binary, Mode: 0o777, ModTime: created, Format: tar.FormatUSTAR,
	}), t.Close())
	err := errors.Join(errs...)
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
