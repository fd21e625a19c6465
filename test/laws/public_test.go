package laws

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// isPublic reports whether programs of other modules may import a package.
func (p *pkg) isPublic() bool {
	return p.Name != "main" && !strings.Contains("/"+p.rel()+"/", "/internal/") && !in(p.rel(), "examples", "lab", "test")
}

// TestExportsMentionNothingInternal: an importer of a public package can name each type that it meets there.
func TestExportsMentionNothingInternal(t *testing.T) {
	var public []string
	for _, p := range packages(t) {
		if p.isPublic() {
			public = append(public, p.ImportPath)
		}
	}
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, public...)...)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	compiled := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		compiled[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	for _, path := range public {
		p, err := imports.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		m := mentions{pkg: p, seen: make(map[types.Type]bool), found: func(at string, o types.Object) {
			t.Errorf("%s: %s mentions %s.\nLaw: no exported symbol of a public package mentions an internal type. Nobody else can name it, keep it "+
				"in a variable or implement what takes it.", path, at, types.ObjectString(o, nil))
		}}
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				m.walk(name, o.Type())
			}
		}
	}
}

// mentions finds the types of internal packages that users of a package meet.
type mentions struct {
	pkg   *types.Package
	seen  map[types.Type]bool
	found func(at string, o types.Object)
}

// walk looks at a type that is met at a place. The contents of other packages' types are their own matter.
func (m *mentions) walk(at string, t types.Type) {
	if m.seen[t] {
		return
	}
	m.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		if !m.own(at, t.Obj()) {
			return
		}
		m.walk(at, t.Rhs())
	case *types.Named:
		for arg := range t.TypeArgs().Types() {
			m.walk(at, arg)
		}
		if !m.own(at, t.Obj()) {
			return
		}
		for method := range t.Methods() {
			if method.Exported() {
				m.walk(at+"."+method.Name(), method.Type())
			}
		}
		m.walk(at, t.Underlying())
	case *types.Struct:
		for field := range t.Fields() {
			if field.Exported() {
				m.walk(at+"."+field.Name(), field.Type())
			}
		}
	case *types.Interface:
		for method := range t.Methods() {
			m.walk(at+"."+method.Name(), method.Type())
		}
	case *types.Signature:
		for i, tuple := range []*types.Tuple{t.Params(), t.Results()} {
			for v := range tuple.Variables() {
				m.walk(fmt.Sprintf("%s, %s", at, [...]string{"a parameter", "a result"}[i]), v.Type())
			}
		}
	case *types.Map:
		m.walk(at, t.Key())
		m.walk(at, t.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays and channels
		m.walk(at, t.Elem())
	}
}

// own reports whether o is of the package, so that users meet what it consists of.
func (m *mentions) own(at string, o types.Object) bool {
	if o.Pkg() == nil {
		return false
	}
	if path := o.Pkg().Path(); strings.HasPrefix(path, module+"/") && strings.Contains(path, "/internal/") {
		m.found(at, o)
	}
	return o.Pkg() == m.pkg
}

// publicPackages are all that programs of other modules may import.
var publicPackages = []string{
	"apifeed", "backend", "backend/ebpf", "backend/iptables", "backend/ipvs", "backend/nftables", "backend/userspace", "brain", "config",
	"config/v1alpha1", "config/v1alpha2", "conformance", "kernel/conntrack", "kubeconv", "model", "node", "server", "source/kube", "state", "store",
}

// TestPublicPackages: each has a user outside of this repository, and docs/stability.md promises something for it.
func TestPublicPackages(t *testing.T) {
	var public []string
	for _, p := range packages(t) {
		if p.isPublic() {
			public = append(public, p.rel())
		}
	}
	slices.Sort(public)
	if !slices.Equal(public, publicPackages) {
		t.Errorf("the public packages are %q, want %q.\nLaw: a package is public only if programs around Kubernetes' proxy, embedders or authors "+
			"of dataplanes need it. All others are in internal/.", public, publicPackages)
	}
	promises, err := os.ReadFile(filepath.Join("..", "..", "docs", "stability.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range publicPackages {
		if !strings.Contains(string(promises), "`"+path+"`") {
			t.Errorf("docs/stability.md does not name %s.\nLaw: the promise of each public package is written down there.", path)
		}
	}
}
