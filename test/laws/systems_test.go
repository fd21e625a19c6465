package laws

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPublicPackagesCompileEverywhere checks the types of packages that others may embed for the systems that have no such kernel, and
// of all packages for the processor of Windows machines for which make check does not. Types are checked from the sources, since
// compiling everything twice takes minutes.
func TestPublicPackagesCompileEverywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("checks the types of everything for two other systems")
	}
	var public []string
	for _, p := range packages(t) {
		if p.isPublic() && p.rel() != "conformance" {
			public = append(public, "./"+p.rel())
		}
	}
	for _, system := range []struct {
		os, arch string
		packages []string
	}{{"windows", "arm64", []string{"./..."}}, {"darwin", "amd64", public}} {
		t.Run(system.os, func(t *testing.T) {
			for _, err := range typeErrors(t, system.os, system.arch, system.packages) {
				t.Errorf("%v\nLaw 10: the API is the same on every system, so that programs which embed a package build everywhere. "+
					"A function that the system cannot support returns a typed error at run time.", err)
			}
		})
	}
}

// typeErrors checks packages and all that they import. Bodies of functions are left out in packages of other modules.
func typeErrors(t *testing.T, system, arch string, patterns []string) (errs []error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap"}, patterns...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	fset, checked := token.NewFileSet(), map[string]*types.Package{"unsafe": types.Unsafe}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; { // what a package imports comes before it
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
			ImportMap       map[string]string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return errs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		config := types.Config{
			Importer: importerFunc(func(path string) (*types.Package, error) {
				if mapped, ok := p.ImportMap[path]; ok {
					path = mapped
				}
				return checked[path], nil
			}),
			IgnoreFuncBodies: !strings.HasPrefix(p.ImportPath, module),
			Sizes:            types.SizesFor("gc", arch),
			Error:            func(err error) { errs = append(errs, err) },
		}
		checked[p.ImportPath], _ = config.Check(p.ImportPath, fset, files, nil) // Error has its errors
	}
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
