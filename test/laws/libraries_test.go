package laws

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// forbidden are calls that take a decision which belongs to the program, not to a library.
var forbidden = map[string]string{
	"os.Exit":              "it ends a process that belongs to somebody else, without its deferred functions",
	"log.Fatal":            "it ends a process that belongs to somebody else",
	"log.Fatalf":           "it ends a process that belongs to somebody else",
	"log.Fatalln":          "it ends a process that belongs to somebody else",
	"log.Print":            "it logs globally; take a *slog.Logger in Options",
	"log.Printf":           "it logs globally; take a *slog.Logger in Options",
	"log.Println":          "it logs globally; take a *slog.Logger in Options",
	"slog.Default":         "it logs globally; take a *slog.Logger in Options",
	"slog.SetDefault":      "it changes the logging of a process that belongs to somebody else",
	"slog.Debug":           "it logs globally; take a *slog.Logger in Options",
	"slog.Info":            "it logs globally; take a *slog.Logger in Options",
	"slog.Warn":            "it logs globally; take a *slog.Logger in Options",
	"slog.Error":           "it logs globally; take a *slog.Logger in Options",
	"signal.Notify":        "signals belong to the program; take a context",
	"signal.NotifyContext": "signals belong to the program; take a context",
}

const whyLibraries = `
Law 8: libraries never exit, never log globally, never own flags or signals. The packages are made to be embedded, and only
the program that embeds them can decide these things.`

func TestLibrariesLeaveTheProcessAlone(t *testing.T) {
	for _, p := range packages(t) {
		if p.isProgram() {
			continue
		}
		for _, f := range parse(t, &p, p.sources()) {
			ast.Inspect(f.File, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				x, ok := sel.X.(*ast.Ident)
				if !ok {
					return true
				}
				if why, ok := forbidden[x.Name+"."+sel.Sel.Name]; ok && importsName(f, x.Name) {
					t.Errorf("%s uses %s.%s: %s.%s", f.line(n), x.Name, sel.Sel.Name, why, whyLibraries)
				}
				return true
			})
		}
	}
}

// importsName reports whether name is an import of f, and not a variable.
func importsName(f *file, name string) bool {
	found := false
	f.imports(func(path string, spec *ast.ImportSpec) {
		if spec.Name != nil {
			found = found || spec.Name.Name == name
		} else {
			found = found || path == name || strings.HasSuffix(path, "/"+name)
		}
	})
	return found
}

func TestNothingRegistersItself(t *testing.T) {
	const why = `
Law: no init() registration and no blank imports for their effects. What a program consists of is written down where it is
wired, as a list of constructors that a reader can follow and a compiler can check.`
	for _, p := range packages(t) {
		for _, f := range parse(t, &p, p.sources()) {
			if ast.IsGenerated(f.File) {
				continue // of protocols: their messages are registered by name, as protobuf wants it
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s has an init function.%s", f.line(fn), why)
				}
			}
			f.imports(func(path string, spec *ast.ImportSpec) {
				if spec.Name != nil && spec.Name.Name == "_" && path != "embed" {
					t.Errorf("%s imports %s for its effects.%s", f.line(spec), path, why)
				}
			})
		}
	}
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	const why = `
Law: each package has one comment, and its first sentence says what the package is for. A package whose purpose does not fit
into a sentence should be two.`
	for _, p := range packages(t) {
		prefix := "Package " + p.Name + " "
		if p.Name == "main" {
			prefix = "Command "
		}
		docs := 0
		for _, f := range parse(t, &p, p.sources()) {
			if f.Doc == nil {
				continue
			}
			text := f.Doc.Text()
			docs++
			if !strings.HasPrefix(text, prefix) || !strings.Contains(text, ".") {
				t.Errorf("%s: the package comment does not start with a sentence %q.%s", f.Path, prefix+"... .", why)
			}
		}
		if docs != 1 && len(p.sources()) > 0 {
			t.Errorf("package %s has %d package comments, want one.%s", p.rel(), docs, why)
		}
	}
}

func TestNoTestIsEmpty(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range parse(t, &p, slices.Concat(p.TestGoFiles, p.XTestGoFiles)) {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
					continue
				}
				if fn.Body == nil || len(fn.Body.List) == 0 {
					t.Errorf("%s: %s is empty.\nLaw: there is no test that cannot fail.", f.line(fn), fn.Name.Name)
				}
			}
		}
	}
}
