package inputs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// build is what Kustomize made of a directory.
type build struct {
	dir  string
	text []byte
	err  error
	// read are the files that it is made of, by their real names, as they were then.
	read map[string]stamp
}

// stamp tells versions of a file apart.
type stamp struct {
	size  int64
	mtime time.Time
}

func stampOf(file string) stamp {
	info, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{info.Size(), info.ModTime()}
}

// build returns what Kustomize makes of the directories, leaving out those that others are made of: the base of an overlay, and
// components.
func (s *Set) build(dirs []string) []*build {
	var builds []*build
	for _, dir := range dirs {
		if len(dirs) > 1 && isComponent(dir) {
			continue
		}
		b := s.builds[dir]
		if b == nil || b.stale() {
			b = newBuild(dir)
			s.builds[dir] = b
		}
		builds = append(builds, b)
	}
	return slices.DeleteFunc(slices.Clone(builds), func(b *build) bool {
		return slices.ContainsFunc(builds, func(other *build) bool { return other != b && other.uses(b.dir) })
	})
}

func newBuild(dir string) *build {
	b := &build{dir: dir, read: make(map[string]stamp)}
	files := recorder{filesys.MakeFsOnDisk(), b.read}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
	if err == nil {
		b.text, err = made.AsYaml()
	}
	if err != nil {
		b.err = &manifest.Error{File: dir, Err: kustomizeFault(dir, err)}
	}
	return b
}

// kustomizeFault says what to do where Kustomize refuses what it would do with flags.
func kustomizeFault(dir string, err error) error {
	// What follows is that a file that is missing is no directory either.
	text, _, _ := strings.Cut(err.Error(), ": must build at directory")
	fault := errors.New("cannot be built by Kustomize: " + text)
	for _, flag := range []struct{ sign, flags string }{
		{"--enable-helm", "--enable-helm"}, {"is not in or below", "--load-restrictor=LoadRestrictionsNone"}, {"--enable-alpha-plugins", "--enable-alpha-plugins"},
	} {
		if strings.Contains(text, flag.sign) {
			return fmt.Errorf("%w; with a flag it does: kustomize build %s %s | switchyard lab -", fault, flag.flags, dir)
		}
	}
	return fault
}

// stale reports whether one of the files has another version by now.
func (b *build) stale() bool {
	for file, was := range b.read {
		if stampOf(file) != was {
			return true
		}
	}
	return false
}

// uses reports whether what is in a directory is a part of the build.
func (b *build) uses(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return false
	}
	for file := range b.read {
		if filepath.Dir(file) == real && manifest.IsKustomization(file) {
			return true
		}
	}
	return false
}

// isComponent reports whether a directory is only meant to be a part of others.
func isComponent(dir string) bool {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !manifest.IsKustomization(e.Name()) {
			continue
		}
		data, err := manifest.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return false
		}
		doc, errs := manifest.Single(e.Name(), data)
		return len(errs) == 0 && doc.Kind == "Component"
	}
	return false
}

// recorder notes which files are read.
type recorder struct {
	filesys.FileSystem
	read map[string]stamp
}

// CleanedAbs implements [filesys.FileSystem]. It is asked for files before they are read.
func (r recorder) CleanedAbs(path string) (filesys.ConfirmedDir, string, error) {
	dir, name, err := r.FileSystem.CleanedAbs(path)
	if abs, absErr := filepath.Abs(path); err != nil && absErr == nil {
		r.read[abs] = stampOf(abs)
	}
	return dir, name, err
}

// ReadFile implements [filesys.FileSystem].
func (r recorder) ReadFile(file string) ([]byte, error) {
	before := stampOf(file)
	data, err := r.FileSystem.ReadFile(file)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.read[file] = before
	}
	return data, err
}
