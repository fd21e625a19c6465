// Package debian makes layers of container images from packages of Debian, without a container engine and without installing anything.
//
// Packages are named by checksum, so that a layer is the same wherever and whenever it is made.
package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Package is one that a layer is made of.
type Package struct {
	// Arch is its architecture, by Debian's and Go's name.
	Arch string
	// SHA256 is its checksum, in hexadecimal digits.
	SHA256 string
	// Path is where it is below a mirror, such as pool/main/i/iptables/iptables_1.8.9-2_amd64.deb.
	Path string
}

var listed = regexp.MustCompile(`^(amd64|arm64) ([0-9a-f]{64}) (pool/[a-zA-Z0-9./+_~-]+\.deb)$`)

// ParseList reads a list of packages: architecture, checksum and path, one package a line. Lines that begin with # are comments.
func ParseList(text string) (list []Package, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		m := listed.FindStringSubmatch(line)
		if m == nil || slices.Contains(strings.Split(m[3], "/"), "..") {
			return nil, fmt.Errorf("%q is not an architecture, a SHA-256 sum and a path such as pool/main/i/iptables/iptables_1.8.9-2_amd64.deb", line)
		}
		list = append(list, Package{m[1], m[2], m[3]})
	}
	return list, nil
}

// greatestPackage bounds what a mirror can make us read.
const greatestPackage = 64 << 20

// Fetch returns a package: from the directory cache if it is there, else from the first mirror that has it.
func Fetch(ctx context.Context, p Package, cache string, mirrors ...string) ([]byte, error) {
	kept := filepath.Join(cache, p.SHA256+".deb")
	if deb, err := os.ReadFile(kept); err == nil && sum(deb) == p.SHA256 {
		return deb, nil
	}
	var errs []error
	for _, mirror := range mirrors {
		deb, err := get(ctx, strings.TrimSuffix(mirror, "/")+"/"+p.Path)
		if err == nil && sum(deb) != p.SHA256 {
			err = fmt.Errorf("%s of %s has the SHA-256 sum %s, want %s", p.Path, mirror, sum(deb), p.SHA256)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		partial := kept + ".partial"
		return deb, errors.Join(os.MkdirAll(cache, 0o755), os.WriteFile(partial, deb, 0o644), os.Rename(partial, kept))
	}
	return nil, fmt.Errorf("%w; if Debian has a newer version, put its path and checksum into the list", errors.Join(errs...))
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, greatestPackage))
}

// Layer returns the wanted files of packages as a tar file, by their path without a leading slash. The files are
// sorted, belong to root, and have one time. All others are left out. Scripts of packages do not run.
func Layer(debs [][]byte, wanted func(path string) bool, created time.Time) ([]byte, error) {
	files := map[string]file{}
	for i, deb := range debs {
		if err := unpack(deb, wanted, files); err != nil {
			return nil, fmt.Errorf("package %d: %w", i+1, err)
		}
	}
	for _, name := range slices.Collect(maps.Keys(files)) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			files[dir+"/"] = file{tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, nil}
		}
	}
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		err := t.WriteHeader(&tar.Header{
			Typeflag: f.Typeflag, Name: name, Linkname: f.Linkname, Size: int64(len(f.content)), Mode: f.Mode, ModTime: created, Format: tar.FormatUSTAR,
		})
		if err == nil {
			_, err = t.Write(f.content)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.Bytes(), t.Close()
}

// file is one of a package.
type file struct {
	tar.Header
	content []byte
}

// unpack adds the wanted files of a package.
func unpack(deb []byte, wanted func(string) bool, files map[string]file) error {
	data, err := dataOf(deb)
	if err != nil {
		return err
	}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean(h.Name), "/")
		if !wanted(name) || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		files[name] = file{tar.Header{Typeflag: h.Typeflag, Linkname: h.Linkname, Mode: h.Mode & 0o755}, content}
	}
}

// dataOf returns the member data.tar of a package, which is an ar archive (deb(5)), without its compression.
func dataOf(deb []byte) ([]byte, error) {
	const magic, headerSize = "!<arch>\n", 60
	rest, ok := bytes.CutPrefix(deb, []byte(magic))
	if !ok {
		return nil, errors.New("is no Debian package")
	}
	for len(rest) >= headerSize {
		// Name, time, owner, group and mode, 48 bytes, then the size and two bytes more.
		name := strings.TrimRight(string(rest[:16]), " /")
		size, err := strconv.Atoi(strings.TrimRight(string(rest[48:58]), " "))
		if rest = rest[headerSize:]; err != nil || size < 0 || size > len(rest) {
			return nil, fmt.Errorf("the member %s is cut short", name)
		}
		switch content := rest[:size]; name {
		case "data.tar":
			return content, nil
		case "data.tar.gz":
			z, err := gzip.NewReader(bytes.NewReader(content))
			if err != nil {
				return nil, err
			}
			return io.ReadAll(z)
		case "data.tar.xz":
			cmd := exec.Command("xz", "--decompress", "--stdout")
			cmd.Stdin = bytes.NewReader(content)
			out, err := cmd.Output()
			if err != nil {
				return nil, fmt.Errorf("xz: %w; install xz-utils", err)
			}
			return out, nil
		}
		rest = rest[min(size+size%2, len(rest)):]
	}
	return nil, errors.New("has no member data.tar, data.tar.gz or data.tar.xz")
}
