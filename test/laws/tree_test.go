package laws

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/switchyard-net/switchyard"

// pkg is one package of the module as the go command sees it.
type pkg struct {
	ImportPath   string
	Dir          string
	Name         string
	Doc          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	// IgnoredGoFiles are the files for other platforms.
	IgnoredGoFiles []string
	Imports        []string
	Deps           []string
	Standard       bool
}

// rel is the import path below the module: "" for its root.
func (p *pkg) rel() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

// sources are all files that are compiled on some platform, without tests.
func (p *pkg) sources() []string {
	files := slices.Clone(p.GoFiles)
	for _, f := range p.IgnoredGoFiles {
		if !strings.HasSuffix(f, "_test.go") {
			files = append(files, f)
		}
	}
	return files
}

// isProgram reports whether the package is a program, which may decide what libraries may not: it is in cmd or test/cmd, or an example.
func (p *pkg) isProgram() bool {
	return in(p.rel(), "cmd", "test/cmd") || in(p.rel(), "examples") && p.Name == "main"
}

var listOnce = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Name,Doc,GoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles,Imports,Deps,Standard", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
})

// packages returns all packages of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 5 {
		t.Fatalf("go list found %d packages: the laws are not looking at the tree", len(pkgs))
	}
	return pkgs
}

// file is one parsed source file.
type file struct {
	// Path is relative to the module.
	Path string
	*ast.File
	fset *token.FileSet
}

func (f *file) line(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.Path, f.fset.Position(n.Pos()).Line)
}

// imports calls visit with the path of each import.
func (f *file) imports(visit func(path string, spec *ast.ImportSpec)) {
	for _, spec := range f.Imports {
		path, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
		visit(path, spec)
	}
}

// parse reads the named files of p, with comments.
func parse(t *testing.T, p *pkg, names []string) []*file {
	t.Helper()
	var files []*file
	for _, name := range names {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		files = append(files, &file{Path: filepath.Join(p.rel(), name), File: f, fset: fset})
	}
	return files
}

// in reports whether rel is in one of the trees, which are paths relative to the module: "backend" also names "backend/nftables".
func in(rel string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool { return rel == tree || strings.HasPrefix(rel, tree+"/") })
}
