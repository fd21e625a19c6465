package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-net/switchyard/deploy/debian"
	"github.com/switchyard-net/switchyard/deploy/ociimage"
)

const repository = "https://github.com/switchyard-net/switchyard"

// images writes the images: of all programs in both flavours, and of each dataplane of Linux.
func (r *release) images(ctx context.Context) error {
	iptables := make(map[string][]byte)
	for _, arch := range []string{"amd64", "arm64"} { // the platforms in deploy/debian/iptables.txt
		layer, err := debian.IPTables(ctx, arch, r.cache, r.time)
		if err != nil {
			return fmt.Errorf("iptables for %s: %w; 'make image FLAVOUR=iptables' fetches the packages once", arch, err)
		}
		iptables[arch] = layer
	}
	if err := r.oneImage("switchyard", "", nil); err != nil {
		return err
	}
	if err := r.oneImage("switchyard", "-iptables", iptables); err != nil {
		return err
	}
	for _, set := range dataplanes["linux"] {
		layers := iptables
		if set != "switchyard-iptables" {
			layers = nil
		}
		if err := r.oneImage(set, "", layers); err != nil {
			return err
		}
	}
	return nil
}

// oneImage writes the image of a set of programs. With layers, it is for their architectures only.
func (r *release) oneImage(set, suffix string, layers map[string][]byte) error {
	o := ociimage.Options{
		Name: r.image + strings.TrimPrefix(set, "switchyard") + ":" + r.version + suffix, Program: "/" + set, Created: r.time, Programs: layers,
		Labels: map[string]string{
			"org.opencontainers.image.title":       set,
			"org.opencontainers.image.description": "A node-local service proxy for Kubernetes",
			"org.opencontainers.image.source":      repository,
			"org.opencontainers.image.revision":    r.commit,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	if layers != nil {
		o.ProgramsAre = "iptables 1.8.9, legacy and nft, of Debian 12"
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return err
	}
	var builds []ociimage.Build
	var programs []string
	for _, p := range platforms {
		if p.os != "linux" || layers != nil && layers[p.arch] == nil {
			continue
		}
		b := ociimage.Build{Files: map[string][]byte{
			"/usr/share/doc/switchyard/copyright": license, "/usr/share/doc/switchyard/THIRD_PARTY_NOTICES": r.notices[noticesOf(p, set)],
		}}
		for _, name := range sets(p.os)[set] {
			path := r.program(p, name)
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			programs = append(programs, path)
			if name == "switchyard-lab" {
				b.Lab = content
			} else {
				b.Switchyard = content
			}
		}
		builds = append(builds, b)
	}
	var b bytes.Buffer
	if _, err := ociimage.Write(&b, o, builds...); err != nil {
		return err
	}
	return r.write(artefact{set + "_" + r.number + suffix + "_image.tar", "image", programs, layers != nil}, b.Bytes())
}

// chart writes the chart as an archive, and as an OCI artefact with that archive.
func (r *release) chart(context.Context) error {
	source := filepath.Join(r.source, "deploy", "helm", "switchyard")
	var meta map[string]any
	var list []file
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		switch name {
		case "Chart.yaml":
			if err := yaml.Unmarshal(content, &meta); err != nil {
				return err
			}
			meta["version"], meta["appVersion"] = r.number, r.version
			if content, err = yaml.Marshal(meta); err != nil {
				return err
			}
		case "values.yaml":
			if name := "repository: localhost/switchyard"; !bytes.Contains(content, []byte(name)) {
				return fmt.Errorf("values.yaml does not have %q", name)
			}
			content = bytes.Replace(content, []byte("localhost/switchyard\n"), []byte(r.image+"\n"), 1)
		}
		list = append(list, file{filepath.ToSlash(name), content, 0o644})
		return nil
	})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := writeTar(&archive, "switchyard", list, r.time); err != nil {
		return err
	}
	config, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: static.NewLayer(archive.Bytes(), "application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
	})
	if err != nil {
		return err
	}
	return r.writeChart(archive.Bytes(), &chartImage{image, config})
}

// chartImage is an image whose configuration is the metadata of a chart.
type chartImage struct {
	v1.Image
	config []byte
}

func (c *chartImage) RawConfigFile() ([]byte, error) { return c.config, nil }

func (c *chartImage) ConfigName() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(c.config))
	return h, err
}

func (c *chartImage) Manifest() (*v1.Manifest, error) {
	m, err := c.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	hash, err := c.ConfigName()
	m.Config = v1.Descriptor{MediaType: "application/vnd.cncf.helm.config.v1+json", Digest: hash, Size: int64(len(c.config))}
	return m, err
}

func (c *chartImage) RawManifest() ([]byte, error) {
	m, err := c.Manifest()
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

func (c *chartImage) Digest() (v1.Hash, error) {
	raw, err := c.RawManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	h, _, err := v1.SHA256(bytes.NewReader(raw))
	return h, err
}

func (c *chartImage) Size() (int64, error) {
	raw, err := c.RawManifest()
	return int64(len(raw)), err
}

func (r *release) writeChart(archive []byte, image v1.Image) error {
	dir := filepath.Join(r.work, "chart")
	top, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := top.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.number})); err != nil {
		return err
	}
	var list []file
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		list = append(list, file{path, content, 0o644})
		return err
	})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := writeLayout(&b, list, r.time); err != nil {
		return err
	}
	if err := r.write(artefact{name: "switchyard-chart_" + r.number + "_oci.tar", kind: "chart"}, b.Bytes()); err != nil {
		return err
	}
	return r.write(artefact{name: "switchyard-" + r.number + ".tgz", kind: "chart"}, archive)
}
