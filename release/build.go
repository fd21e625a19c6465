package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// platform is one that programs are built for.
type platform struct{ os, arch string }

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"linux", "ppc64le"}, {"linux", "s390x"}, {"linux", "arm"}, {"linux", "riscv64"},
	{"windows", "amd64"}, {"windows", "arm64"},
}

// dataplanes are the programs that link one dataplane, by the system that they are for.
var dataplanes = map[string][]string{
	"linux":   {"switchyard-ebpf", "switchyard-iptables", "switchyard-ipvs", "switchyard-nftables", "switchyard-userspace"},
	"windows": {"switchyard-winkernel"},
}

// sets are the sets of programs that are shipped together, by the name of the archive.
func sets(system string) map[string][]string {
	all := map[string][]string{"switchyard": {"switchyard"}}
	if system == "linux" {
		all["switchyard"] = []string{"switchyard", "switchyard-lab"} // the lab needs network namespaces
	}
	for _, name := range dataplanes[system] {
		all[name] = []string{name}
	}
	return all
}

// program is the file of a program.
func (r *release) program(p platform, name string) string {
	if p.os == "windows" {
		name += ".exe"
	}
	return filepath.Join(r.work, p.os+"-"+p.arch, name)
}

// tags are the build tags in the Makefile.
const tags = "grpcnotrace"

func (r *release) build(ctx context.Context) error {
	for _, p := range platforms {
		args := []string{
			"build", "-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", "-s -w -buildid= -X main.version=" + r.version,
			"-o", filepath.Join(r.work, p.os+"-"+p.arch) + "/",
		}
		for _, set := range sets(p.os) {
			for _, name := range set {
				args = append(args, "./cmd/"+name)
			}
		}
		if out, err := r.goCommand(ctx, p, args...).Output(); err != nil {
			return fmt.Errorf("%s/%s: %w\n%s", p.os, p.arch, err, out)
		}
	}
	return nil
}

// manual has man pages and completions written by the program for this machine.
func (r *release) manual(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, r.program(platform{runtime.GOOS, runtime.GOARCH}, "switchyard"), "manual", filepath.Join(r.work, "manual"))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w; make the release on one of the platforms that it is for", err)
	}
	return nil
}

// file is a file of an archive, a package or an image.
type file struct {
	path    string
	content []byte
	mode    int64
}

// files returns the files of a set of programs that are no programs.
func (r *release) files(p platform, set string) (files []file, err error) {
	add := func(path, from string) {
		content, failed := os.ReadFile(from)
		if err == nil {
			err = failed
		}
		files = append(files, file{path, content, 0o644})
	}
	add("LICENSE", filepath.Join(r.source, "LICENSE"))
	files = append(files, file{"THIRD_PARTY_NOTICES", r.notices[noticesOf(p, set)], 0o644})
	if set != "switchyard" || p.os != "linux" {
		return files, err
	}
	for dir, pattern := range map[string]string{
		"man/man1": r.work + "/manual/man1/*", "completions": r.work + "/manual/completions/*", "systemd": r.source + "/deploy/systemd/*",
	} {
		names, failed := filepath.Glob(pattern)
		if failed != nil {
			return nil, failed
		}
		for _, name := range names {
			add(dir+"/"+filepath.Base(name), name)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return files, err
}

// archives writes the programs of each platform with their licenses.
func (r *release) archives(context.Context) error {
	for _, p := range platforms {
		for set, names := range sets(p.os) {
			files, err := r.files(p, set)
			if err != nil {
				return err
			}
			var programs []string
			for _, name := range names {
				path := r.program(p, name)
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				programs, files = append(programs, path), append(files, file{filepath.Base(path), content, 0o755})
			}
			top := fmt.Sprintf("%s_%s_%s_%s", set, r.number, p.os, p.arch)
			name, write := top+".tar.gz", writeTar
			if p.os == "windows" {
				name, write = top+".zip", writeZip
			}
			var b bytes.Buffer
			if err := write(&b, top, files, r.time); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := r.write(artefact{name: name, kind: "archive", programs: programs}, b.Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes an artefact.
func (r *release) write(a artefact, content []byte) error {
	r.artefacts = append(r.artefacts, a)
	return os.WriteFile(filepath.Join(r.out, a.name), content, 0o644)
}

func writeTar(w io.Writer, top string, files []file, at time.Time) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: top + "/" + f.path, Size: int64(len(f.content)), Mode: f.mode, ModTime: at, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

// writeLayout writes an image layout. The files that identify the format come first.
func writeLayout(w io.Writer, files []file, at time.Time) error {
	slices.SortFunc(files, func(a, b file) int {
		if first := strings.HasPrefix(a.path, "blobs/"); first != strings.HasPrefix(b.path, "blobs/") {
			if first {
				return 1
			}
			return -1
		}
		return strings.Compare(a.path, b.path)
	})
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Size: int64(len(f.content)), Mode: f.mode, ModTime: at, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	return t.Close()
}

func writeZip(w io.Writer, top string, files []file, at time.Time) error {
	z := zip.NewWriter(w)
	for _, f := range files {
		out, err := z.CreateHeader(&zip.FileHeader{Name: top + "/" + f.path, Method: zip.Deflate, Modified: at})
		if err != nil {
			return err
		}
		if _, err := out.Write(f.content); err != nil {
			return err
		}
	}
	return z.Close()
}
