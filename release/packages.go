package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// scripts make the users of the units. They neither enable nor start a unit: an administrator decides which one replaces kube-proxy, and when.
const (
	postInstall = `#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers switchyard.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
`
	postRemove = `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
`
)

// packages writes Debian and RPM packages with the programs, the units, the manual and the completions.
func (r *release) packages(context.Context) error {
	for _, p := range platforms {
		if p.os != "linux" {
			continue
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := r.pack(p, format); err != nil {
				return fmt.Errorf("%s for %s: %w", format, p.arch, err)
			}
		}
	}
	return nil
}

func (r *release) pack(p platform, format string) error {
	contents, programs, err := r.contents(p)
	if err != nil {
		return err
	}
	scripts := make(map[string]string)
	for name, text := range map[string]string{"postinst": postInstall, "postrm": postRemove} {
		scripts[name] = filepath.Join(r.work, name)
		if err := os.WriteFile(scripts[name], []byte(text), 0o755); err != nil {
			return err
		}
	}
	arch := p.arch
	if arch == "arm" {
		arch = "arm7"
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "switchyard", Arch: arch, Platform: "linux", Version: r.version, Section: "net", Priority: "optional", MTime: r.time,
		Maintainer: "The Switchyard maintainers <https://github.com/switchyard-net/switchyard>", Vendor: "Switchyard",
		Description: "Node-local service proxy for Kubernetes\nSwitchyard routes the connections of a Kubernetes node to the endpoints of Services.\nIt replaces kube-proxy.",
		Homepage:    "https://github.com/switchyard-net/switchyard", License: "Apache-2.0", DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Contents: contents, Scripts: nfpm.Scripts{PostInstall: scripts["postinst"], PostRemove: scripts["postrm"]},
			RPM: nfpm.RPM{BuildHost: "localhost", Summary: "Node-local service proxy for Kubernetes", Group: "System Environment/Daemons"},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	name := packager.ConventionalFileName(info)
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return err
	}
	return r.write(artefact{name: name, kind: format, programs: programs}, b.Bytes())
}

// contents are the files of a package, written to the work directory.
func (r *release) contents(p platform) (contents files.Contents, programs []string, err error) {
	own, err := r.files(p, "switchyard")
	if err != nil {
		return nil, nil, err
	}
	for _, name := range sets(p.os)["switchyard"] {
		path := r.program(p, name)
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		programs, own = append(programs, path), append(own, file{"bin/" + name, content, 0o755})
	}
	for _, f := range own {
		f := installed(f)
		if f.path == "" {
			continue
		}
		from := filepath.Join(r.work, "package-"+p.arch, f.path)
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			return nil, nil, err
		}
		if err := os.WriteFile(from, f.content, 0o644); err != nil {
			return nil, nil, err
		}
		contents = append(contents, &files.Content{
			Source: from, Destination: f.path, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: os.FileMode(f.mode), MTime: r.time},
		})
	}
	return contents, programs, nil
}

// installed returns where a file of an archive belongs in a package, with an empty path for none.
func installed(f file) file {
	dir, name := filepath.Split(f.path)
	switch {
	case dir == "bin/":
		f.path = "/usr/bin/" + name
	case name == "LICENSE":
		f.path = "/usr/share/doc/switchyard/copyright"
	case dir == "man/man1/":
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is one, and a buffer never fails
		_, _ = z.Write(f.content)
		_ = z.Close()
		f.path, f.content = "/usr/share/man/man1/"+name+".gz", b.Bytes()
	case name == "switchyard.bash":
		f.path = "/usr/share/bash-completion/completions/switchyard"
	case name == "_switchyard":
		f.path = "/usr/share/zsh/vendor-completions/_switchyard"
	case name == "switchyard.fish":
		f.path = "/usr/share/fish/vendor_completions.d/switchyard.fish"
	case strings.HasSuffix(name, ".service"):
		f.path = "/usr/lib/systemd/system/" + name
		f.content = bytes.ReplaceAll(f.content, []byte("/usr/local/bin/"), []byte("/usr/bin/"))
	case name == "sysusers.conf":
		f.path = "/usr/lib/sysusers.d/switchyard.conf"
	default:
		f.path = "/usr/share/doc/switchyard/" + name
	}
	return f
}
