package inputs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// stamp tells versions of a file apart. The zero value is a file that is not there.
type stamp struct {
	Size, Nanoseconds int64
}

func stampOf(file string) stamp {
	info, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{info.Size(), info.ModTime().UnixNano()}
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
			b = s.newBuild(dir)
			s.builds[dir] = b
		}
		builds = append(builds, b)
	}
	return slices.DeleteFunc(slices.Clone(builds), func(b *build) bool {
		return slices.ContainsFunc(builds, func(other *build) bool { return other != b && other.uses(b.dir) })
	})
}

// newBuild has Kustomize build a directory in a process of its own.
func (s *Set) newBuild(dir string) *build {
	b := &build{dir: dir}
	made, err := s.child(dir)
	if err == nil && made.Fault != "" {
		err = kustomizeFault(dir, made.Fault)
	}
	if err != nil {
		b.err = &manifest.Error{File: dir, Err: err}
	}
	b.text, b.read = made.Text, made.Read
	return b
}

// kustomizeFault suggests the flags with which Kustomize would build a directory that it refuses without them.
func kustomizeFault(dir, text string) error {
	// So a missing file is not a directory either.
	text, _, _ = strings.Cut(text, ": must build at directory")
	fault := errors.New("cannot be built by Kustomize: " + text)
	for _, sign := range []string{"which is remote", "no 'git' program", "network is unreachable"} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("%w; Kustomize itself does: kustomize build %s | switchyard lab -", fault, dir)
		}
	}
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

// uses reports whether the content of a directory is a part of the build.
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

// isComponent reports whether a directory is only meant as a part of other directories.
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
