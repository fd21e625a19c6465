package laws

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestTextsAreInPlainEnglish looks at the texts that a reader may see: log messages, errors, and the help of commands, flags and
// metrics. Vale looks at Markdown and comments by the same style (make prose).
func TestTextsAreInPlainEnglish(t *testing.T) {
	const why = `
CONTRIBUTING.md: write short active sentences with the subject first and the field's verbs. The style is in tools/prose/styles.`
	style, texts := readStyle(t), 0
	for _, f := range allSources(t) {
		f.texts(func(n ast.Node, s string) {
			texts++
			for _, finding := range style.findings(s) {
				t.Errorf("%s: %s%s", f.line(n), finding, why)
			}
		})
	}
	if texts < 1000 {
		t.Errorf("only %d texts are looked at: this test does not find the sources", texts)
	}
}

func TestEnglishStyle(t *testing.T) {
	style := readStyle(t)
	for text, findings := range map[string]int{
		"cannot close the previous dataplane":                                                     0,
		"cannot close the former dataplane":                                                       1,
		"Beside that, nothing works any more":                                                     2,
		"What nobody needs is removed":                                                            1,
		strings.Repeat("word ", 25) + ". And then another one":                                    0,
		strings.Repeat("word ", 26):                                                               1,
		strings.Repeat("word ", 20) + "\n\n" + strings.Repeat("word ", 20):                        0,
		"what failed: " + strings.Repeat("word ", 20) + "; do " + strings.Repeat("word ", 20):     0,
		"It failed: " + strings.Repeat("word ", 20) + "; do " + strings.Repeat("word ", 20) + ".": 1,
		"\tformer\t": 0,
	} {
		if got := style.findings(text); len(got) != findings {
			t.Errorf("%q has the findings %q, want %d of them", text, got, findings)
		}
	}
}

// style is what Vale goes by, in tools/prose/styles.
type style struct {
	words    []word
	anyWord  *regexp.Regexp
	fronted  []*regexp.Regexp
	maxWords int
}

type word struct {
	pattern *regexp.Regexp
	instead string
}

func readStyle(t *testing.T) *style {
	t.Helper()
	var (
		words   struct{ Swap map[string]string }
		fronted struct{ Tokens []string }
		length  struct{ Max int }
	)
	for name, rule := range map[string]any{"Words": &words, "Fronted": &fronted, "SentenceLength": &length} {
		data, err := os.ReadFile(filepath.Join("..", "..", "tools", "prose", "styles", "Switchyard", name+".yml"))
		if err == nil {
			err = yaml.Unmarshal(data, rule)
		}
		if err != nil {
			t.Fatalf("read the style %s: %v", name, err)
		}
	}
	if len(words.Swap) == 0 || len(fronted.Tokens) == 0 || length.Max == 0 {
		t.Fatal("tools/prose/styles lacks words, inverted sentences or the length of a sentence")
	}
	compile := func(patterns ...string) *regexp.Regexp {
		return regexp.MustCompile(`(?i)\b(?:` + strings.Join(patterns, "|") + `)\b`)
	}
	s := &style{anyWord: compile(slices.Sorted(maps.Keys(words.Swap))...), maxWords: length.Max}
	for pattern, instead := range words.Swap {
		s.words = append(s.words, word{compile(pattern), instead})
	}
	for _, pattern := range fronted.Tokens {
		s.fronted = append(s.fronted, regexp.MustCompile(pattern))
	}
	return s
}

var (
	// data matches texts that only programs read: manifests, templates, tables and sources.
	data        = regexp.MustCompile(`\t|\|--|(?m)^\|.*\||\{\{|^apiVersion:`)
	sentenceEnd = regexp.MustCompile(`[.!?](?:\s+|$)|\n\s+|\n- `)
	partEnd     = regexp.MustCompile(`[.!?;:](?:\s+|$)|\n\s+|\n- `)
)

// findings are the faults of a text. A text that does not end with a full stop, such as an error, has parts between colons and semicolons
// instead of sentences. Names, such as fields and addresses, are one word each.
func (s *style) findings(text string) (findings []string) {
	if data.MatchString(text) {
		return nil
	}
	if s.anyWord.MatchString(text) {
		for _, w := range s.words {
			if found := w.pattern.FindString(text); found != "" {
				findings = append(findings, fmt.Sprintf("%q: say %q instead of %q", text, w.instead, found))
			}
		}
	}
	end := sentenceEnd
	if !strings.HasSuffix(strings.TrimSpace(text), ".") {
		end = partEnd
	}
	return append(findings, s.sentences(text, end)...)
}

// sentences are the faults of sentences: too long, or without the subject in front.
func (s *style) sentences(text string, end *regexp.Regexp) (findings []string) {
	for _, sentence := range end.Split(text, -1) {
		if n := len(strings.Fields(sentence)); n > s.maxWords {
			findings = append(findings, fmt.Sprintf("%q: split this sentence of %d words", sentence, n))
		}
		for _, p := range s.fronted {
			if found := p.FindString(sentence); found != "" {
				findings = append(findings, fmt.Sprintf("%q: name the subject instead of %q", sentence, found))
			}
		}
	}
	return findings
}

// allSources parses the sources of all modules of the repository, without tests and generated files.
func allSources(t *testing.T) (files []*file) {
	t.Helper()
	root := filepath.Join("..", "..")
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(parsed) {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		files = append(files, &file{Path: rel, File: parsed, fset: fset})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// texts visits the texts of a file that a reader may see: all literals of two words or more, each in one piece.
func (f *file) texts(visit func(n ast.Node, s string)) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit, *ast.BinaryExpr:
			if s := text(n.(ast.Expr)); len(strings.Fields(s)) >= 2 {
				visit(n, s)
				return false
			}
		}
		return true
	})
}
