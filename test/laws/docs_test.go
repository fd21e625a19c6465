package laws

import (
	"fmt"
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
	link = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)`)
	// fence is a block of code, whose lines are no headings.
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	// unnamed is what GitHub leaves out of the name of a heading.
	unnamed  = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`)
	conflict = regexp.MustCompile(`(?m)^(<<<<<<< |>>>>>>> )`)
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

// TestLinksLeadSomewhere: to a file, and to a heading of a document if they name one.
func TestLinksLeadSomewhere(t *testing.T) {
	known := map[string][]string{} // headings by file
	documents(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || m[1]+m[2] == "" {
				continue
			}
			file := path
			if m[1] != "" {
				file = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist.%s", path, m[1], whyDocs)
				continue
			}
			if m[2] == "" || filepath.Ext(file) != ".md" {
				continue
			}
			if known[file] == nil {
				other, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				known[file] = headings(string(other))
			}
			if !slices.Contains(known[file], m[2]) {
				t.Errorf("%s links to the heading #%s, which %s does not have.%s", path, m[2], file, whyDocs)
			}
		}
	})
}

// headings are the headings of a document, by the names that GitHub gives them for
// links.
func headings(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		title := strings.ReplaceAll(link.ReplaceAllString(m[1], ""), "[", "") // of a link its text is left
		name := strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")
		for again, n := name, 1; slices.Contains(names, name); n++ {
			name = fmt.Sprintf("%s-%d", again, n)
		}
		names = append(names, name)
	}
	return names
}

// TestNoConflictIsLeft: a merge was finished by hand.
func TestNoConflictIsLeft(t *testing.T) {
	documents(t, func(path, text string) {
		if conflict.MatchString(text) {
			t.Errorf("%s has the marks of a conflict in it: keep what is true of both sides.%s", path, whyDocs)
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
