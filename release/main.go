// Command release makes all artefacts of a release, without a network and byte for byte the same for the same commit and the same Go. With -verify, it
// checks a release as somebody who has downloaded it: with the public key and the files alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// release is what the steps share.
type release struct {
	// source is the repository's directory, out where artefacts go, and work where intermediate files go.
	source, out, work string
	// version is the tag, such as v0.1.0, and number the same without its first letter.
	version, number string
	// image is the name of the image without a tag.
	image string
	// commit is the hash of the commit, and time when it was made.
	commit string
	time   time.Time
	// goVersion and goroot are of the go command.
	goVersion, goroot string
	// cache holds packages of Debian.
	cache string
	// artefacts lists the programs in each artefact, for its SBOM.
	artefacts []artefact
	notices   map[string][]byte // by the path of the program and the platform, see noticesOf
}

// artefact is a file of the release with programs in it.
type artefact struct {
	name, kind string
	programs   []string // files
	debian     bool     // it has packages of Debian
}

var versions = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$`)

func main() {
	var r release
	v := verifier{sums: make(map[string]string)}
	var key string
	f := flag.NewFlagSet("release", flag.ExitOnError)
	verify := f.Bool("verify", false, "check a release instead of making one")
	f.StringVar(&r.version, "version", "", "version, such as v0.1.0")
	f.StringVar(&r.out, "dir", "", "directory of the release, which must not exist before it is made")
	f.StringVar(&key, "key", "", "to sign with: private ECDSA key (P-256, PKCS #8 in PEM), none for no signatures. With -verify: public key in PEM")
	f.StringVar(&r.source, "source", "..", "directory of the repository")
	f.StringVar(&r.image, "image", "localhost/switchyard", "name of the image without a tag; the images of dataplanes have -NAME added")
	f.StringVar(&r.cache, "cache", "", "directory that packages of Debian are kept in")
	_ = f.Parse(os.Args[1:]) // which ends the process at an error
	var err error
	if *verify {
		v.dir, v.version = r.out, r.version
		if err = v.readKey(key); err == nil {
			err = v.verify()
		}
	} else {
		err = r.make(context.Background(), key)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func (r *release) make(ctx context.Context, key string) (err error) {
	if !versions.MatchString(r.version) {
		return fmt.Errorf("version %q: must be a version such as v0.1.0", r.version)
	}
	if r.out == "" || r.cache == "" {
		return errors.New("give the directory to write (-dir) and the one of packages (-cache)")
	}
	for _, dir := range []*string{&r.source, &r.out, &r.cache} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		return fmt.Errorf("%w; remove the directory of an earlier run", err)
	}
	r.number = r.version[1:]
	if err := r.describe(); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "release"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"programs", r.build}, {"licenses", r.collect}, {"manual", r.manual}, {"archives", r.archives}, {"packages", r.packages}, {"images", r.images},
		{"chart", r.chart}, {"SBOMs", r.sboms}, {"provenance and checksums", func(context.Context) error { return r.seal(key) }},
	} {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(os.Stderr, "%-26s %6.1f s\n", step.name, time.Since(began).Seconds())
	}
	return nil
}

// describe reads the commit. Uncommitted changes cannot be released, because nobody could make the same artefacts.
func (r *release) describe() error {
	status, err := r.git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("the repository has changes that are not committed:\n%s", status)
	}
	if r.commit, err = r.git("rev-parse", "HEAD"); err != nil {
		return err
	}
	text, err := r.git("log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	out, err := r.goCommand(context.Background(), platforms[0], "env", "GOVERSION", "GOROOT").Output()
	if err != nil {
		return err
	}
	r.goVersion, r.goroot, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	seconds, err := strconv.ParseInt(text, 10, 64)
	r.time = time.Unix(seconds, 0).UTC()
	return err
}

func (r *release) git(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = r.source
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goCommand is the go command without a network and without settings of the machine that would change its output.
func (r *release) goCommand(ctx context.Context, p platform, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = r.source, os.Stderr
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "GO") || name == "GOCACHE" || name == "GOMODCACHE" || name == "GOPATH" || name == "GOROOT" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GOENV=off", "GOPROXY=off", "GOFLAGS=-mod=readonly", "GOTOOLCHAIN=local", "GOWORK=off", "CGO_ENABLED=0",
		"GOOS="+p.os, "GOARCH="+p.arch, "GOARM=7", "GOAMD64=v1")
	return cmd
}
