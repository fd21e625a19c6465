package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sassoftware/go-rpmutils"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/switchyard-net/switchyard/deploy/debian"
)

// checkArchive unpacks an archive and checks its programs.
func (v *verifier) checkArchive(name string) (string, error) {
	var files map[string][]byte
	var err error
	if strings.HasSuffix(name, ".zip") {
		files, err = v.unzip(name)
	} else {
		files, err = v.untar(name)
	}
	if err != nil {
		return "", err
	}
	top := strings.TrimSuffix(strings.TrimSuffix(name, ".tar.gz"), ".zip")
	parts := strings.Split(top, "_")
	system, arch := parts[len(parts)-2], parts[len(parts)-1]
	programs := make(map[string][]byte)
	for path, content := range files {
		rest, ok := strings.CutPrefix(path, top+"/")
		if !ok {
			return "", fmt.Errorf("%s is outside of %s", path, top)
		}
		if strings.HasPrefix(rest, "switchyard") && !strings.Contains(rest, "/") {
			programs[rest] = content
		}
	}
	return v.checkPrograms(name, system, arch, programs, files[top+"/THIRD_PARTY_NOTICES"], files[top+"/LICENSE"])
}

// checkPrograms checks programs against the platform, the version, the SBOM and the notices of their artefact.
func (v *verifier) checkPrograms(artefact, system, arch string, programs map[string][]byte, notices, license []byte) (string, error) {
	if len(programs) == 0 {
		return "", errors.New("has no program")
	}
	if !bytes.Contains(license, []byte("Apache License")) {
		return "", errors.New("has no license of its own")
	}
	known, err := v.components(artefact)
	if err != nil {
		return "", err
	}
	modules := 0
	for name, content := range programs {
		info, err := buildinfo.Read(bytes.NewReader(content))
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		settings := make(map[string]string)
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if settings["GOOS"] != system || settings["GOARCH"] != arch || settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
			return "", fmt.Errorf("%s: was built for %s/%s with CGO_ENABLED=%s and -trimpath=%s", name, settings["GOOS"], settings["GOARCH"], settings["CGO_ENABLED"], settings["-trimpath"])
		}
		if err := isStatic(content, system); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if !bytes.Contains(content, []byte(v.version)) {
			return "", fmt.Errorf("%s: does not have the version %s", name, v.version)
		}
		for _, m := range info.Deps {
			modules++
			if m.Replace != nil || strings.HasPrefix(m.Path, "github.com/switchyard-net/") {
				continue // of the same repository
			}
			if !known[m.Path+"@"+m.Version] {
				return "", fmt.Errorf("%s: the SBOM does not name %s %s", name, m.Path, m.Version)
			}
			if !bytes.Contains(notices, []byte(m.Path+" "+m.Version+", ")) {
				return "", fmt.Errorf("%s: the notices do not name %s %s", name, m.Path, m.Version)
			}
		}
		if system == runtime.GOOS && arch == runtime.GOARCH && name != "switchyard-lab" {
			if err := v.runs(name, content); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%d static programs, %d modules in SBOM and notices", len(programs), modules), nil
}

// runs starts a program and compares the version that it prints.
func (v *verifier) runs(name string, content []byte) error {
	dir, err := os.MkdirTemp("", "verify-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	exe := filepath.Join(dir, name)
	if err := os.WriteFile(exe, content, 0o755); err != nil {
		return err
	}
	out, err := exec.Command(exe, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), v.version) {
		return fmt.Errorf("%s --version: %w: printed %q, want %s", name, err, out, v.version)
	}
	return nil
}

// isStatic reports an error for a program that needs libraries which its artefact does not have.
func isStatic(content []byte, system string) error {
	if system == "windows" {
		_, err := pe.NewFile(bytes.NewReader(content))
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("is dynamically linked")
		}
	}
	return nil
}

// components are what the SBOM of an artefact names, as name@version.
func (v *verifier) components(artefact string) (map[string]bool, error) {
	f, err := os.Open(filepath.Join(v.dir, artefact+".cdx.json"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return nil, fmt.Errorf("SBOM: %w", err)
	}
	if bom.Metadata == nil || bom.Metadata.Component == nil || bom.Metadata.Component.Name != artefact || bom.Components == nil {
		return nil, errors.New("the SBOM is not about this artefact")
	}
	known := make(map[string]bool)
	for _, c := range *bom.Components {
		known[c.Name+"@"+c.Version] = true
	}
	return known, nil
}

// checkPackage unpacks a package as an installation does, and checks the installed files.
func (v *verifier) checkPackage(name string) (string, error) {
	files, arch, err := v.unpack(name)
	if err != nil {
		return "", err
	}
	programs := make(map[string][]byte)
	for _, program := range []string{"switchyard", "switchyard-lab"} {
		programs[program] = files["usr/bin/"+program]
	}
	for _, path := range []string{
		"usr/lib/systemd/system/switchyard.service", "usr/lib/systemd/system/switchyard-serve.service", "usr/lib/systemd/system/switchyard-apply.service",
		"usr/lib/sysusers.d/switchyard.conf", "usr/share/man/man1/switchyard.1.gz", "usr/share/bash-completion/completions/switchyard",
		"usr/share/zsh/vendor-completions/_switchyard", "usr/share/fish/vendor_completions.d/switchyard.fish",
	} {
		if len(files[path]) == 0 {
			return "", fmt.Errorf("does not install /%s", path)
		}
	}
	if unit := files["usr/lib/systemd/system/switchyard.service"]; !bytes.Contains(unit, []byte("ExecStart=/usr/bin/switchyard ")) {
		return "", errors.New("the unit starts a program that the package does not install")
	}
	detail, err := v.checkPrograms(name, "linux", arch, programs, files["usr/share/doc/switchyard/THIRD_PARTY_NOTICES"], files["usr/share/doc/switchyard/copyright"])
	return fmt.Sprintf("%d files, %s", len(files), detail), err
}

// architectures are Go's names by the names that packages use.
var architectures = map[string]string{
	"amd64": "amd64", "arm64": "arm64", "ppc64el": "ppc64le", "s390x": "s390x", "armhf": "arm", "riscv64": "riscv64",
	"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "armv7hl": "arm",
}

func (v *verifier) unpack(name string) (files map[string][]byte, arch string, err error) {
	content, err := os.ReadFile(filepath.Join(v.dir, name))
	if err != nil {
		return nil, "", err
	}
	if stem, isDeb := strings.CutSuffix(name, ".deb"); isDeb {
		layer, err := debian.Layer([][]byte{content}, func(string) bool { return true }, time.Time{})
		if err != nil {
			return nil, "", err
		}
		files, err = filesOf(bytes.NewReader(layer))
		return files, architectures[stem[strings.LastIndexByte(stem, '_')+1:]], err
	}
	rpm, err := rpmutils.ReadRpm(bytes.NewReader(content))
	if err != nil {
		return nil, "", err
	}
	nevra, err := rpm.Header.GetNEVRA()
	if err != nil {
		return nil, "", err
	}
	payload, err := rpm.PayloadReaderExtended()
	if err != nil {
		return nil, "", err
	}
	files = make(map[string][]byte)
	for {
		info, err := payload.Next()
		if errors.Is(err, io.EOF) {
			return files, architectures[nevra.Arch], nil
		}
		if err != nil {
			return nil, "", err
		}
		if files[strings.TrimPrefix(info.Name(), "/")], err = io.ReadAll(payload); err != nil {
			return nil, "", err
		}
	}
}

// checkImage checks each platform of an image: its layers, its configuration, and its programs.
func (v *verifier) checkImage(name string) (string, error) {
	dir, index, err := v.layout(name)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := validate.Index(index); err != nil {
		return "", err
	}
	top, err := index.IndexManifest()
	if err != nil {
		return "", err
	}
	if len(top.Manifests) != 1 {
		return "", fmt.Errorf("the layout has %d images, want 1", len(top.Manifests))
	}
	inner, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		return "", err
	}
	list, err := inner.IndexManifest()
	if err != nil {
		return "", err
	}
	set, _, _ := strings.Cut(name, "_")
	want := 6
	if strings.Contains(name, "-iptables_") {
		want = 2 // Debian's packages are listed for two
	}
	var platforms []string
	for _, m := range list.Manifests {
		image, err := inner.Image(m.Digest)
		if err != nil {
			return "", err
		}
		if err := v.checkPlatform(name, set, m.Platform.Architecture, image); err != nil {
			return "", fmt.Errorf("%s: %w", m.Platform, err)
		}
		platforms = append(platforms, m.Platform.String())
	}
	if len(platforms) != want {
		return "", fmt.Errorf("has %d platforms, want %d: %s", len(platforms), want, strings.Join(platforms, ", "))
	}
	return top.Manifests[0].Digest.String() + " for " + strings.Join(platforms, ", "), nil
}

func (v *verifier) checkPlatform(name, set, arch string, image v1.Image) error {
	c, err := image.ConfigFile()
	if err != nil {
		return err
	}
	tag := v.version
	if strings.HasPrefix(name, "switchyard_") && strings.Contains(name, "-iptables_") {
		tag += "-iptables"
	}
	if c.Architecture != arch || c.OS != "linux" || !slices.Equal(c.Config.Entrypoint, []string{"/" + set}) || c.Config.Labels["org.opencontainers.image.version"] != tag {
		return fmt.Errorf("the configuration is for %s/%s, starts %q, and has the version %s", c.OS, c.Architecture, c.Config.Entrypoint, c.Config.Labels["org.opencontainers.image.version"])
	}
	r := mutate.Extract(image)
	defer r.Close()
	files, err := filesOf(r)
	if err != nil {
		return err
	}
	programs := map[string][]byte{set: files[set]}
	if set == "switchyard" {
		programs["switchyard-lab"] = files["switchyard-lab"]
	}
	if _, isLink := files["usr/sbin/iptables-nft"]; isLink != strings.Contains(name, "iptables_") {
		return fmt.Errorf("has programs of iptables: %t", isLink)
	}
	_, err = v.checkPrograms(name, "linux", arch, programs, files["usr/share/doc/switchyard/THIRD_PARTY_NOTICES"], files["usr/share/doc/switchyard/copyright"])
	return err
}

// checkChart loads the chart as Helm does.
func (v *verifier) checkChart(name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(v.dir, name))
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(name, "_oci.tar") {
		dir, index, err := v.layout(name)
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(dir)
		top, err := index.IndexManifest()
		if err != nil {
			return "", err
		}
		image, err := index.Image(top.Manifests[0].Digest)
		if err != nil {
			return "", err
		}
		m, err := image.Manifest()
		if err != nil {
			return "", err
		}
		if m.Config.MediaType != "application/vnd.cncf.helm.config.v1+json" || len(m.Layers) != 1 || m.Layers[0].MediaType != "application/vnd.cncf.helm.chart.content.v1.tar+gzip" {
			return "", fmt.Errorf("is no chart: %v %v", m.Config.MediaType, m.Layers)
		}
		content, err = os.ReadFile(filepath.Join(dir, "blobs", "sha256", m.Layers[0].Digest.Hex))
		if err != nil {
			return "", err
		}
	}
	c, err := loader.LoadArchive(bytes.NewReader(content))
	if err != nil {
		return "", err
	}
	if c.Metadata.Version != v.version[1:] || c.Metadata.AppVersion != v.version {
		return "", fmt.Errorf("has version %s and appVersion %s", c.Metadata.Version, c.Metadata.AppVersion)
	}
	return fmt.Sprintf("chart %s %s with %d templates", c.Name(), c.Metadata.Version, len(c.Templates)), c.Validate()
}

// layout unpacks an image layout, in a directory that the caller removes.
func (v *verifier) layout(name string) (dir string, index v1.ImageIndex, err error) {
	f, err := os.Open(filepath.Join(v.dir, name))
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	files, err := filesOf(f)
	if err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp("", "verify-release"); err != nil {
		return "", nil, err
	}
	for path, content := range files {
		to := filepath.Join(dir, filepath.FromSlash(path))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o644)); err != nil {
			return "", nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	p, err := layout.FromPath(dir)
	if err == nil {
		index, err = p.ImageIndex()
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, index, nil
}

func (v *verifier) untar(name string) (map[string][]byte, error) {
	f, err := os.Open(filepath.Join(v.dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return filesOf(z)
}

// filesOf reads a tar file. Links have no content.
func filesOf(r io.Reader) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(path.Clean(h.Name), "/")
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s is outside of the archive", h.Name)
		}
		if files[name], err = io.ReadAll(t); err != nil {
			return nil, err
		}
	}
}

func (v *verifier) unzip(name string) (map[string][]byte, error) {
	z, err := zip.OpenReader(filepath.Join(v.dir, name))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	files := make(map[string][]byte)
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		if files[f.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
	return files, nil
}
