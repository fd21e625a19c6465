package inputs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/switchyard-net/switchyard/client/regularfile"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// maxRead is how many bytes Kustomize may read for one directory, bases included.
const maxRead = 64 << 20

// made is what [Build] writes, in JSON.
type made struct {
	Text []byte
	// Fault is why there is no text.
	Fault string `json:",omitempty"`
	// Read are the files that Kustomize looked for, by their real names, as they were then.
	Read map[string]stamp
}

// Build builds a Kustomize directory and writes the result to out, for the [Set] that started this process. It refuses what Kustomize would
// fetch. The process that calls it has no network and no search path for programs, in case Kustomize fetches something all the same.
func Build(dir string, out io.Writer) error {
	// A relative path may look like a repository to Kustomize: github.com/owner/name.
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	m := made{Read: make(map[string]stamp)}
	files := &reader{FileSystem: filesys.MakeFsOnDisk(), read: m.Read, kustomizations: make(map[string]bool)}
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, abs)
	if err == nil {
		m.Text, err = objects.AsYaml()
	}
	// Kustomize goes on after some errors, and then reports another one.
	if err = errors.Join(files.refused, err); files.refused != nil {
		err = files.refused
	}
	if err != nil {
		m.Text, m.Fault = nil, err.Error()
	}
	return json.NewEncoder(out).Encode(m)
}

// reader is the file system that Kustomize sees. It notes which files are read, refuses kustomizations that name something remote, and
// changes nothing.
type reader struct {
	filesys.FileSystem
	read map[string]stamp
	// kustomizations are the real names of the files that describe directories.
	kustomizations map[string]bool
	bytes          int64
	// refused is the first refusal, which Kustomize may not report.
	refused error
}

// CleanedAbs implements [filesys.FileSystem]. It is asked for files before they are read.
func (r *reader) CleanedAbs(path string) (filesys.ConfirmedDir, string, error) {
	dir, name, err := r.FileSystem.CleanedAbs(path)
	if abs, absErr := filepath.Abs(path); err != nil && absErr == nil {
		r.read[abs] = stampOf(abs)
	}
	if err == nil && manifest.IsKustomization(path) {
		r.kustomizations[dir.Join(name)] = true
	}
	return dir, name, err
}

// ReadFile implements [filesys.FileSystem].
func (r *reader) ReadFile(file string) ([]byte, error) {
	before := stampOf(file)
	data, err := regularfile.ReadFile(file, maxRead-r.bytes)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.read[file] = before
	}
	if _, ok := errors.AsType[*regularfile.TooLargeError](err); ok {
		return nil, r.refuse(fmt.Errorf("it is made of more than %d MiB, %s included", maxRead>>20, file))
	}
	if err != nil {
		return nil, err
	}
	r.bytes += int64(len(data))
	if r.kustomizations[file] {
		if ref := firstRemote(data); ref != "" {
			return nil, r.refuse(fmt.Errorf("%s names %q, which is remote: the lab fetches nothing", file, ref))
		}
	}
	return data, nil
}

func (r *reader) refuse(err error) error {
	if r.refused == nil {
		r.refused = err
	}
	return err
}

var errReadOnly = errors.New("the lab writes no files")

// Create implements [filesys.FileSystem].
func (r *reader) Create(string) (filesys.File, error) { return nil, errReadOnly }

// Mkdir implements [filesys.FileSystem].
func (r *reader) Mkdir(string) error { return errReadOnly }

// MkdirAll implements [filesys.FileSystem].
func (r *reader) MkdirAll(string) error { return errReadOnly }

// RemoveAll implements [filesys.FileSystem].
func (r *reader) RemoveAll(string) error { return errReadOnly }

// WriteFile implements [filesys.FileSystem].
func (r *reader) WriteFile(string, []byte) error { return errReadOnly }

// firstRemote returns the first reference of a kustomization that Kustomize would fetch, empty if there is none or if Kustomize refuses the text.
func firstRemote(kustomization []byte) string {
	var k types.Kustomization
	if k.Unmarshal(kustomization) != nil {
		return ""
	}
	k.FixKustomization()
	refs := append(k.Resources, k.Components...)
	refs = append(refs, k.Crds...)
	refs = append(refs, k.Configurations...)
	refs = append(refs, k.Generators...)
	refs = append(refs, k.Transformers...)
	refs = append(refs, k.Validators...)
	refs = append(refs, k.OpenAPI["path"])
	//lint:ignore SA1019 people still write them by hand
	for _, p := range k.PatchesStrategicMerge {
		refs = append(refs, string(p))
	}
	//lint:ignore SA1019 people still write them by hand
	for _, p := range append(k.Patches, k.PatchesJson6902...) {
		refs = append(refs, p.Path)
	}
	for _, r := range k.Replacements {
		refs = append(refs, r.Path)
	}
	sources := make([]types.KvPairSources, 0, len(k.ConfigMapGenerator)+len(k.SecretGenerator))
	for _, g := range k.ConfigMapGenerator {
		sources = append(sources, g.KvPairSources)
	}
	for _, g := range k.SecretGenerator {
		sources = append(sources, g.KvPairSources)
	}
	for _, s := range sources {
		refs = append(refs, s.EnvSources...)
		for _, file := range s.FileSources {
			_, path, named := strings.Cut(file, "=")
			if !named || isRemote(file) {
				path = file
			}
			refs = append(refs, path)
		}
	}
	for _, ref := range refs {
		if isRemote(ref) {
			return ref
		}
	}
	return ""
}

// remote matches URLs and git repositories as Kustomize recognizes them: by the scheme, by a user before a host, or by
// the name of GitHub.
var remote = regexp.MustCompile(`(?i)^(git::|https?:|[a-z][a-z0-9+.-]*://|[a-z][a-z0-9-]*@|github\.com[/:])`)

// isRemote reports whether Kustomize would fetch a reference. It errs on the safe side.
func isRemote(ref string) bool { return remote.MatchString(ref) }
