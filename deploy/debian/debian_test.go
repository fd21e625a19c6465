package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// packed makes a package with a file, a link and something that nobody wants.
func packed(t *testing.T, compression string) []byte {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "./usr/sbin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "./usr/sbin/program", Mode: 0o4755, Size: 4, Uid: 7, ModTime: time.Unix(1e9, 0)},
		{Typeflag: tar.TypeSymlink, Name: "./usr/sbin/link", Linkname: "program", Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "./usr/share/doc/text", Mode: 0o644, Size: 4},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, "text"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data := plain.Bytes()
	switch compression {
	case ".gz":
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(data)
		if err := errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		data = b.Bytes()
	case ".xz":
		cmd := exec.Command("xz", "--stdout")
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.Output()
		if err != nil {
			t.Skipf("xz: %v", err)
		}
		data = out
	}
	var deb bytes.Buffer
	deb.WriteString("!<arch>\n")
	for _, m := range []struct {
		name    string
		content []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.xz", []byte("odd")}, {"data.tar" + compression, data}} {
		fmt.Fprintf(&deb, "%-16s%-12d%-6d%-6d%-8s%-10d`\n%s", m.name, 0, 0, 0, "100644", len(m.content), m.content)
		if len(m.content)%2 == 1 {
			deb.WriteByte('\n')
		}
	}
	return deb.Bytes()
}

// TestLayer: wanted files are there, of root and of one time, and nothing else is, whatever the package is compressed with.
func TestLayer(t *testing.T) {
	created := time.Unix(1234, 0)
	wanted := func(name string) bool { return strings.HasPrefix(name, "usr/sbin/") }
	for _, compression := range []string{"", ".gz", ".xz"} {
		t.Run("data.tar"+compression, func(t *testing.T) {
			layer, err := Layer([][]byte{packed(t, compression)}, wanted, created)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for r := tar.NewReader(bytes.NewReader(layer)); ; {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, h.Name)
				if h.Uid != 0 || !h.ModTime.Equal(created) || h.Mode&^0o755 != 0 {
					t.Errorf("%s is of user %d, time %v, mode %o", h.Name, h.Uid, h.ModTime, h.Mode)
				}
				if content, _ := io.ReadAll(r); h.Name == "usr/sbin/program" && string(content) != "text" {
					t.Errorf("%s has %q", h.Name, content)
				}
			}
			if want := []string{"usr/", "usr/sbin/", "usr/sbin/link", "usr/sbin/program"}; !slices.Equal(names, want) {
				t.Errorf("it has %v, want %v", names, want)
			}
		})
	}
	for title, deb := range map[string][]byte{
		"is no Debian package": []byte("text"), "has no member data.tar": []byte("!<arch>\n"), "is cut short": packed(t, "")[:500],
	} {
		if _, err := Layer([][]byte{deb}, wanted, created); err == nil || !strings.Contains(err.Error(), title) {
			t.Errorf("got %v, want %q", err, title)
		}
	}
}

// TestFetch: what has another checksum is refused, the next mirror is asked, and what is kept is not asked for again.
func TestFetch(t *testing.T) {
	asked := 0
	serve := func(text string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			if r.URL.Path != "/pool/p.deb" || text == "" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, text)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	missing, wrong, right := serve(""), serve("something else"), serve("package")
	p := Package{"amd64", sum([]byte("package")), "pool/p.deb"}
	cache := filepath.Join(t.TempDir(), "cache")
	if _, err := Fetch(t.Context(), p, cache, missing, wrong); err == nil || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), "has the SHA-256 sum") ||
		!strings.Contains(err.Error(), "newer version") {
		t.Errorf("got %v", err)
	}
	for range 2 {
		deb, err := Fetch(t.Context(), p, cache, missing, wrong, right)
		if err != nil || string(deb) != "package" {
			t.Fatalf("got %q, %v", deb, err)
		}
	}
	if asked != 5 {
		t.Errorf("mirrors were asked %d times, want 5: what is there is not asked for", asked)
	}
	if err := os.WriteFile(filepath.Join(cache, p.SHA256+".deb"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if deb, err := Fetch(t.Context(), p, cache, right); err != nil || string(deb) != "package" {
		t.Errorf("a package that was changed in the cache: %q, %v", deb, err)
	}
}

// TestList: the packages of both architectures are the same, and what is no package is refused.
func TestList(t *testing.T) {
	list, err := ParseList(iptables)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for _, p := range list {
		name, _, _ := strings.Cut(filepath.Base(p.Path), "_")
		names[p.Arch] = append(names[p.Arch], name)
	}
	if len(names["amd64"]) < 8 || !slices.Equal(names["amd64"], names["arm64"]) {
		t.Errorf("the packages are %v", names)
	}
	for _, line := range []string{"amd64 12 pool/p.deb", "riscv64 " + sum(nil) + " pool/p.deb", "amd64 " + sum(nil) + " pool/../p.deb", "amd64 " + sum(nil) + " p.deb"} {
		if _, err := ParseList(line); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}
