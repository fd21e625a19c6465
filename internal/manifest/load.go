package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/client/regularfile"
)

// Load decodes the manifests at path, a file or a directory as [OpenTree] describes it. It returns all objects without
// fault, in the order of the files' names, and all errors.
func Load(path string) ([]Object, []error) {
	tree, err := OpenTree(path)
	if err != nil {
		return nil, []error{err}
	}
	defer tree.Close()
	var objects []Object
	errs := tree.Errs()
	for _, file := range tree.Files {
		data, _, err := tree.Read(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		o, e := Decode(file, data)
		objects, errs = append(objects, o...), append(errs, e...)
	}
	if len(tree.Files) == 0 && len(errs) == 0 {
		errs = append(errs, &Error{File: path, Err: ErrNoManifest})
	}
	return objects, errs
}

// ErrNoManifest means that a directory has no manifest in it.
var ErrNoManifest = errors.New("there is no manifest in this directory: put files named *.yaml, *.yml or *.json there")

// Tree is the manifests at a path, as they were listed at one time. Names begin with the path.
type Tree struct {
	// Files are the manifests, sorted by name. Some may turn out to be unreadable.
	Files []string
	// Dirs are the directories they may be in, the path itself included. Empty if the path is a file.
	Dirs []string
	// Unreadable are the directories that could not be listed. Their previous and current contents are unknown.
	Unreadable map[string]error

	path string
	root *os.Root // nil if the path is a file
}

// OpenTree lists the manifests at path. In a directory these are all *.yaml, *.yml and *.json files in it and below. It
// skips hidden files (whose name begins with a dot) and files in hidden directories.
//
// Symbolic links to files are followed if they stay inside the directory, even through hidden directories: mounted
// ConfigMaps consist of such links. Links to directories are not followed. The path itself may be a link, and as a file
// it may have any name.
//
// The caller must close the tree.
func OpenTree(path string) (*Tree, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	path = filepath.Clean(path)
	if !info.IsDir() {
		if err := regularfile.Check(info); err != nil {
			return nil, fileError(path, err)
		}
		return &Tree{Files: []string{path}, path: path}, nil
	}
	root, err := os.OpenRoot(path + string(filepath.Separator) + ".") // which fails at once if it is no longer a directory
	if err != nil {
		return nil, fileError(path, err)
	}
	t := &Tree{path: path, root: root, Unreadable: map[string]error{}}
	// The function given never returns an error, so neither does WalkDir.
	_ = fs.WalkDir(dirFS{root.FS(), root}, ".", t.visit)
	if err := t.Unreadable[path]; err != nil {
		t.Close()
		return nil, err
	}
	slices.Sort(t.Files)
	return t, nil
}

// dirFS lists directories without waiting for what may be in their place.
type dirFS struct {
	fs.FS
	root *os.Root
}

// ReadDir implements [fs.ReadDirFS].
func (d dirFS) ReadDir(name string) ([]fs.DirEntry, error) { return regularfile.ReadDir(d.root, name) }

// visit is called for everything in the tree, name being relative to the root.
func (t *Tree) visit(name string, entry fs.DirEntry, err error) error {
	full := filepath.Join(t.path, filepath.FromSlash(name))
	if err != nil {
		// A file that vanished since it was listed is ignored.
		if !errors.Is(err, fs.ErrNotExist) {
			t.Unreadable[full] = fileError(full, err)
		}
		return nil
	}
	hidden := name != "." && strings.HasPrefix(entry.Name(), ".")
	switch {
	case entry.IsDir() && hidden:
		return fs.SkipDir
	case entry.IsDir():
		t.Dirs = append(t.Dirs, full)
	case hidden || !isManifestName(name):
	case entry.Type() == fs.ModeSymlink && t.isDir(name):
	default:
		// A file that cannot be read, such as a named pipe or a broken link, is listed, so that reading it reports the
		// fault.
		t.Files = append(t.Files, full)
	}
	return nil
}

// isDir reports whether name, relative to the root, is a directory or a link to one.
func (t *Tree) isDir(name string) bool {
	info, err := t.root.Stat(name)
	return err == nil && info.IsDir()
}

func isManifestName(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml" || ext == ".json"
}

// Errs returns an error for each directory that could not be listed, sorted by name.
func (t *Tree) Errs() []error {
	var errs []error
	for _, err := range t.Unreadable {
		errs = append(errs, err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

// maxFile is how large a manifest may be: some 300,000 services. Parsing takes a multiple of it in memory.
const maxFile = 512 << 20

// Read returns the content of a file of the tree, and its identity, which [os.SameFile] compares. The error is
// fs.ErrNotExist only if the file no longer exists. A link to a missing file is another error, and so is a file that is
// not regular or has more than 512 MiB. Read never waits.
func (t *Tree) Read(file string) ([]byte, fs.FileInfo, error) {
	if t.root == nil {
		data, info, err := regularfile.ReadIn(regularfile.System{}, file, maxFile)
		return data, info, fileError(file, err)
	}
	name, err := filepath.Rel(t.path, file)
	if err != nil {
		return nil, nil, fileError(file, err)
	}
	data, info, err := regularfile.ReadIn(t.root, name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := t.root.Lstat(name); lerr == nil {
			return nil, nil, &Error{File: file, Err: errors.New("cannot be read: it is a link to a file that does not exist")}
		}
	}
	return data, info, fileError(file, err)
}

// ReadFile returns the content of a manifest. It follows links wherever they lead, for callers whose own files these are;
// [Tree.Read] does not leave the tree.
func ReadFile(file string) ([]byte, error) {
	data, err := regularfile.ReadFile(file, maxFile)
	return data, fileError(file, err)
}

// Occupied returns an error if a directory has replaced a file that was in an earlier tree of the same path. It returns
// nil if there is nothing that could be read as a file.
func (t *Tree) Occupied(file string) error {
	if t.root == nil {
		return nil
	}
	name, err := filepath.Rel(t.path, file)
	if err != nil || !t.isDir(name) {
		return nil
	}
	return fileError(file, &regularfile.NotRegularError{Type: fs.ModeDir})
}

// Close releases the tree. It can no longer be read.
func (t *Tree) Close() {
	if t.root != nil {
		t.root.Close()
	}
}

// fileError names the file in err, or returns nil if err is nil.
func fileError(file string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := errors.AsType[*fs.PathError](err); ok {
		err = inner.Err
	}
	if _, ok := errors.AsType[*regularfile.TooLargeError](err); ok {
		err = fmt.Errorf("it has more than %d MiB: split it into several files", maxFile>>20)
	}
	return &Error{File: file, Err: fmt.Errorf("cannot be read: %w", err)}
}
