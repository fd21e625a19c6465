package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Release is a release of this repository.
type Release struct {
	// Version is its version, such as v0.1.0.
	Version string
	// Commit is its commit, 40 hexadecimal digits.
	Commit string
}

// List is the file with all releases, relative to the root of the repository.
const List = "test/upgrade/releases.txt"

var releaseLine = regexp.MustCompile(`^(v\d+\.\d+\.\d+\S*) ([0-9a-f]{40})$`)

// Last returns the last release in [List].
func Last(root string) (*Release, error) {
	text, err := os.ReadFile(filepath.Join(root, List))
	if err != nil {
		return nil, err
	}
	var last *Release
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := releaseLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%s: %q: want a version and a commit of 40 digits", List, line)
		}
		last = &Release{m[1], m[2]}
	}
	if last == nil {
		return nil, fmt.Errorf("%s names no release: add a line with a version and a commit", List)
	}
	return last, nil
}

// Testdata is the directory with the testdata of the release, relative to the root of the repository.
func (r *Release) Testdata() string { return filepath.Join("test", "upgrade", "testdata", r.Version) }

// Source returns a directory with the sources of the release, which it takes out of the history of the repository.
func (r *Release) Source(ctx context.Context, root string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "releases", r.Commit, "source")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return dir, err
	}
	if err := command(ctx, root, "git", "cat-file", "-e", r.Commit+"^{commit}"); err != nil {
		return "", fmt.Errorf("release %s: commit %s is not in this clone; fetch it with: git fetch --unshallow --tags (%w)", r.Version, r.Commit, err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	next, err := os.MkdirTemp(filepath.Dir(dir), "source-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(next)
	archive := next + ".tar"
	defer os.Remove(archive)
	if err := command(ctx, root, "git", "archive", "--format=tar", "--output="+archive, r.Commit); err != nil {
		return "", err
	}
	if err := command(ctx, next, "tar", "-xf", archive); err != nil {
		return "", err
	}
	return dir, os.Rename(next, dir)
}

// LastProgram returns the last release in [List] and the path of its switchyard, which is built on first use as `make build` does.
func LastProgram(ctx context.Context, root string) (last *Release, path string, err error) {
	if last, err = Last(root); err != nil {
		return nil, "", err
	}
	source, err := last.Source(ctx, root)
	if err != nil {
		return nil, "", err
	}
	path = filepath.Join(filepath.Dir(source), "switchyard")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return last, path, err
	}
	return last, path, Build(ctx, source, last.Version, path)
}

// Build builds the switchyard of a source tree.
func Build(ctx context.Context, source, version, path string) error {
	return command(ctx, source, "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w -X main.version="+version, "-o", path, "./cmd/switchyard")
}

// tool returns the path of a tool of tools/go.mod, which the go command builds and keeps.
func tool(ctx context.Context, root, name string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=tools/go.mod", "-n", name)
	cmd.Dir = root
	out, err := output(cmd)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(out), nil
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	_, err := output(cmd)
	return err
}

// output runs a command and returns what it writes. With these settings, the go command compiles equal packages of several trees once.
func output(cmd *exec.Cmd) (string, error) {
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
