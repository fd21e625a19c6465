package inputs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// tree is what there is at a path.
type tree struct {
	files []string
	// kustomize and charts are directories. All files in and below them belong to Kustomize or Helm.
	kustomize, charts []string
	errs              []error
}

func openTree(path string) (tree, error) {
	list, err := manifest.OpenTree(path)
	if err != nil {
		return tree{}, err
	}
	defer list.Close()
	t := tree{errs: list.Errs()}
	var owned []string
	for _, dir := range list.Dirs { // a directory comes before those in it
		if within(dir, owned) {
			continue
		}
		switch {
		case hasFile(dir, manifest.IsKustomization):
			t.kustomize, owned = append(t.kustomize, dir), append(owned, dir)
		case hasFile(dir, manifest.IsChart):
			t.charts, owned = append(t.charts, dir), append(owned, dir)
		}
	}
	t.files = slices.DeleteFunc(list.Files, func(file string) bool { return within(file, owned) })
	return t, nil
}

// within reports whether a path is one of dirs or below one of them.
func within(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		return path == dir || dir == "." || strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
	})
}

func hasFile(dir string, is func(name string) bool) bool {
	entries, _ := os.ReadDir(dir) // what cannot be listed is in the errors of the tree
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !e.IsDir() && is(e.Name()) })
}
