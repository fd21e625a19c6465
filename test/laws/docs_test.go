package laws

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const whyDocs = `
Law: the documents are true about the tree as it is. A commit that moves or renames something updates them, too.`

var (
	link = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	// namedTest is the name of a test in back quotes.
	namedTest = regexp.MustCompile("`(Test[A-Z]\\w+)`")
)

// documents calls visit for each Markdown file of the repository.
func documents(t *testing.T, visit func(path, text string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		found++
		visit(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 5 {
		t.Fatalf("found %d documents: the law is not looking at the tree", found)
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	documents(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist.%s", path, m[1], whyDocs)
			}
		}
	})
}

func TestNamedTestsExist(t *testing.T) {
	var tests []string
	for _, p := range packages(t) {
		for _, f := range parse(t, &p, slices.Concat(p.TestGoFiles, p.XTestGoFiles)) {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					tests = append(tests, fn.Name.Name)
				}
			}
		}
	}
	documents(t, func(path, text string) {
		for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(tests, m[1]) {
				t.Errorf("%s names %s, which does not exist.%s", path, m[1], whyDocs)
			}
		}
	})
}
