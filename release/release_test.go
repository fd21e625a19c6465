package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newRelease returns a release without files, at a time that is not now.
func newRelease(t *testing.T) *release {
	return &release{
		source: "..", out: t.TempDir(), work: t.TempDir(), version: "v0.1.0", number: "0.1.0", image: "localhost/switchyard",
		commit: strings.Repeat("a", 40), goVersion: "go1.26.0", time: time.Unix(1e9, 0).UTC(), notices: make(map[string][]byte),
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// newKey writes a pair of keys.
func newKey(t *testing.T) (private, public string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	others, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "private"), filepath.Join(dir, "public")
	write(t, private, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: own})))
	write(t, public, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: others})))
	return private, public
}

// same compares the files of two directories.
func same(t *testing.T, one, other string) {
	t.Helper()
	a, errA := sumsOf(one)
	b, errB := sumsOf(other)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("%d files, then %d", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("%v, then %v", a[i], b[i])
		}
	}
}

// TestSeal: checksums and provenance are the same each time, and a change of any file is noticed.
func TestSeal(t *testing.T) {
	private, public := newKey(t)
	_, foreign := newKey(t)
	seal := func(t *testing.T, key string) *release {
		r := newRelease(t)
		write(t, filepath.Join(r.out, "program"), "content")
		if err := r.seal(key); err != nil {
			t.Fatal(err)
		}
		return r
	}
	same(t, seal(t, private).out, seal(t, private).out)

	for name, test := range map[string]struct {
		private, public, version string
		change                   func(t *testing.T, dir string)
		want                     string
	}{
		"unchanged": {},
		"unsigned":  {private: "none", want: signatureFile},
		"other key": {public: foreign, want: "SHA256SUMS: the signature is not of this key"},
		"changed file": {want: "program has the SHA-256 sum", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "program"), "other content")
		}},
		"added file": {want: "virus is not in the list", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "virus"), "")
		}},
		"missing file": {want: "the list has 2 files, the directory 1", change: func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "program")); err != nil {
				t.Fatal(err)
			}
		}},
		"changed list": {want: "SHA256SUMS: the signature is not of this key", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, sumsFile), strings.Repeat("0", 64)+"  program\n")
		}},
		"other version": {version: "v0.2.0", want: "it is about version v0.1.0, want v0.2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			signWith, checkWith, version := private, public, "v0.1.0"
			if test.private != "" {
				signWith = ""
			}
			if test.public != "" {
				checkWith = test.public
			}
			if test.version != "" {
				version = test.version
			}
			r := seal(t, signWith)
			if test.change != nil {
				test.change(t, r.out)
			}
			v := verifier{dir: r.out, version: version, sums: make(map[string]string)}
			if err := v.readKey(checkWith); err != nil {
				t.Fatal(err)
			}
			v.step(sumsFile, v.checkSums)
			if len(v.errs) == 0 {
				v.step(provenanceFile, v.checkProvenance)
			}
			if err := errors.Join(v.errs...); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// TestArtefacts makes archives, packages and the chart twice, of programs that are not real, and reads them.
func TestArtefacts(t *testing.T) {
	pack := func() *release {
		r := newRelease(t)
		for _, p := range platforms {
			for set, names := range sets(p.os) {
				r.notices[noticesOf(p, set)] = []byte("notices")
				for _, name := range names {
					write(t, r.program(p, name), "program")
				}
			}
		}
		for _, name := range []string{"man1/switchyard.1", "completions/switchyard.bash", "completions/_switchyard", "completions/switchyard.fish"} {
			write(t, filepath.Join(r.work, "manual", name), "text")
		}
		if err := errors.Join(r.archives(t.Context()), r.packages(t.Context()), r.chart(t.Context())); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := pack()
	same(t, r.out, pack().out)

	v := verifier{dir: r.out, version: r.version}
	for _, a := range r.artefacts {
		write(t, filepath.Join(r.out, a.name+".cdx.json"), `{"bomFormat":"CycloneDX","specVersion":"1.6","metadata":{"component":{"type":"file","name":"`+a.name+`"}},"components":[]}`)
		var err error
		switch kindOf(a.name) {
		case "chart":
			if _, err := v.checkChart(a.name); err != nil {
				t.Errorf("%s: %v", a.name, err)
			}
			continue
		case "archive":
			_, err = v.checkArchive(a.name)
		case "deb", "rpm":
			_, err = v.checkPackage(a.name)
		default:
			t.Errorf("%s is of no kind", a.name)
		}
		// All but the programs is right.
		if err == nil || !strings.HasSuffix(err.Error(), "unrecognized file format") {
			t.Errorf("%s: error %v, want one of a program", a.name, err)
		}
	}
}

// TestNotices: a text appears once, after all modules that have it, and a module without a license cannot be shipped.
func TestNotices(t *testing.T) {
	got := notices("switchyard", map[string]string{"b v1\nLICENSE": "text\n", "a v1\nLICENSE": "text", "a v1\nNOTICE": "more"})
	if want := []byte("a v1, LICENSE\nb v1, LICENSE\n"); !bytes.Contains(got, want) || bytes.Count(got, []byte("text")) != 1 || !bytes.Contains(got, []byte("more")) {
		t.Errorf("%s", got)
	}

	dir := t.TempDir()
	l := &linked{Dir: filepath.Join(dir, "sub")}
	l.Module = &struct {
		Path, Version, Dir string
		Main               bool
	}{Path: "example.org/m", Version: "v1", Dir: dir}
	write(t, filepath.Join(l.Dir, "m.go"), "package m")
	texts := make(map[string]string)
	if err := terms(l, texts); err == nil || !strings.Contains(err.Error(), "example.org/m v1 has no file with a license") {
		t.Errorf("without a license: error %v", err)
	}
	write(t, filepath.Join(dir, "LICENSE.md"), "of the module")
	write(t, filepath.Join(l.Dir, "COPYING"), "of the package")
	if err := terms(l, texts); err != nil || texts["example.org/m v1\nLICENSE.md"] != "of the module" || texts["example.org/m v1\nsub/COPYING"] != "of the package" {
		t.Errorf("%v, %v", texts, err)
	}
}
