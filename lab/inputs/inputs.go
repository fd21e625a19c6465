// Package inputs reads manifests from files, directories and standard input, and builds Kustomize directories. It
// skips files that are not manifests, and reports them. No input makes it run a program or open a connection.
package inputs

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// stdinName is what positions in standard input begin with.
const stdinName = "standard input"

// maxStdin is how many bytes are read from standard input: as many as a file may have.
const maxStdin = 512 << 20

// Set is the paths that somebody named. It is not safe for concurrent use.
type Set struct {
	paths []string
	stdin []byte
	// namespace is the namespace of objects that name none.
	namespace string
	// command returns this program's command that calls [Build].
	command func(dir string) *exec.Cmd
	// builds are the Kustomize directories seen so far, kept until one of their files changes.
	builds map[string]*build
}

// Options say what to read.
type Options struct {
	// Paths are files, directories and [Stdin].
	Paths []string
	// Stdin is standard input. It is needed if Paths has it.
	Stdin io.Reader
	// Namespace is the namespace of objects that name none. Default: the namespace default.
	Namespace string
	// Command returns the command of this program that calls [Build] for a directory and writes to its standard output. It gets no environment
	// but its own. Without it, Kustomize directories are errors.
	Command func(dir string) *exec.Cmd
}

// New returns the set of these paths. It reads standard input to its end if that is one of them.
func New(o Options) (*Set, error) {
	s := &Set{paths: slices.Clone(o.Paths), namespace: o.Namespace, command: o.Command, builds: make(map[string]*build)}
	seen := make(map[string]bool)
	s.paths = slices.DeleteFunc(s.paths, func(p string) bool {
		clean := filepath.Clean(p)
		twice := seen[clean]
		seen[clean] = true
		return twice
	})
	if !seen[Stdin] {
		return s, nil
	}
	if f, ok := o.Stdin.(*os.File); ok && isTerminal(f) {
		return nil, fmt.Errorf("%s is read from standard input, which is a terminal: pipe manifests into it, such as with: %s | switchyard lab -", Stdin, manifest.HelmCommand("CHART"))
	}
	var err error
	if s.stdin, err = io.ReadAll(io.LimitReader(o.Stdin, maxStdin+1)); err != nil {
		return nil, fmt.Errorf("%s: cannot be read: %w", stdinName, err)
	}
	if len(s.stdin) > maxStdin {
		return nil, fmt.Errorf("%s: it has more than %d MiB: split it into several files", stdinName, maxStdin>>20)
	}
	return s, nil
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// String names the paths.
func (s *Set) String() string {
	names := slices.Clone(s.paths)
	if i := slices.Index(names, Stdin); i >= 0 {
		names[i] = stdinName
	}
	return strings.Join(names, ", ")
}

// Followed reports whether a later [Set.Load] may find something else.
func (s *Set) Followed() bool {
	return slices.ContainsFunc(s.paths, func(p string) bool { return p != Stdin })
}

// Loaded is what the paths have at one time.
type Loaded struct {
	// Objects are those without a fault, each once.
	Objects []runtime.Object
	// References are the skipped objects whose names of other objects can be checked. See [manifest.Content].
	References []runtime.Object
	// Skipped are the objects of other kinds.
	Skipped []manifest.Skipped
	// Notes are sentences about skipped files and objects.
	Notes []string
	// Errs are the faults, each with its place.
	Errs []error

	namespace string // of objects without one, empty for the default one

	objects map[runtime.Object]manifest.Object
	places  map[string]*manifest.Locator // by file
	built   map[string]bool              // by file: it is what Kustomize made, and its lines are in no file
	first   map[identity]manifest.Object
	skipped skips
}

// Partial reports whether something was left out that may have workloads: a manifest with a fault, or what another tool makes manifests of.
func (l *Loaded) Partial() bool { return len(l.Errs) > 0 || l.skipped.sources }

// Load reads all paths.
func (s *Set) Load() *Loaded {
	l := &Loaded{
		namespace: s.namespace, objects: make(map[runtime.Object]manifest.Object), places: make(map[string]*manifest.Locator), built: make(map[string]bool),
		first: make(map[identity]manifest.Object),
	}
	for _, path := range s.paths {
		if path == Stdin {
			l.text(stdinName, s.stdin)
			continue
		}
		s.load(l, path)
	}
	l.Notes = l.skipped.notes()
	return l
}

func (s *Set) load(l *Loaded, path string) {
	if manifest.IsKustomization(path) || manifest.IsChart(path) {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			path = filepath.Dir(path)
		}
	}
	tree, err := openTree(path)
	if err != nil {
		l.Errs = append(l.Errs, err)
		return
	}
	l.Errs = append(l.Errs, tree.errs...)
	whole := len(tree.files)+len(tree.charts)+len(tree.kustomize) == 1 // the path itself is one of them
	for _, dir := range tree.charts {
		fault := &manifest.ForeignError{What: "is a Helm chart", Remedy: "pipe what it makes: " + manifest.HelmCommand(dir) + " | switchyard lab -", Source: true}
		l.foreign(&manifest.Error{File: dir, Err: fault}, whole)
	}
	for _, b := range s.build(tree.kustomize) {
		if b.err != nil {
			l.Errs = append(l.Errs, b.err)
			continue
		}
		l.built[b.dir] = true
		l.text(b.dir, b.text)
	}
	for _, file := range tree.files {
		data, err := manifest.ReadFile(file)
		if err != nil {
			l.Errs = append(l.Errs, err)
			continue
		}
		before := len(l.Errs)
		l.text(file, data)
		l.withoutForeign(before, whole)
	}
	if len(tree.files)+len(tree.charts)+len(tree.kustomize)+len(tree.errs) == 0 {
		l.Errs = append(l.Errs, &manifest.Error{File: path, Err: manifest.ErrNoManifest})
	}
}

// text takes what a text has in it.
func (l *Loaded) text(file string, data []byte) {
	c := manifest.Read(file, data)
	for _, err := range c.Errs {
		l.Errs = append(l.Errs, l.placed(err))
	}
	l.Skipped = append(l.Skipped, c.Skipped...)
	for _, s := range c.Skipped {
		l.skipped.object(s)
	}
	if len(c.Objects)+len(c.References) > 0 {
		l.places[file] = manifest.NewLocator(file, data)
	}
	for _, o := range c.Objects {
		l.add(o)
	}
	for _, o := range c.References {
		if meta := o.Object.(metav1.Object); meta.GetNamespace() == "" {
			meta.SetNamespace(l.namespace)
		}
		l.objects[o.Object] = o
		l.References = append(l.References, o.Object)
	}
}

// withoutForeign turns the errors from index before on into notes if they are about files that are no manifests. If
// whole is set, they stay errors.
func (l *Loaded) withoutForeign(before int, whole bool) {
	kept := l.Errs[:before]
	for _, err := range l.Errs[before:] {
		if whole || !l.isForeign(err) {
			kept = append(kept, err)
		}
	}
	l.Errs = kept
}
