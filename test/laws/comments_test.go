package laws

import (
	"go/ast"
	"strings"
	"testing"
)

// TestCommentsAreInPlainEnglish looks at the sentences of comments. Vale finds words in comments, but no sentences.
func TestCommentsAreInPlainEnglish(t *testing.T) {
	style, sentences := readStyle(t), 0
	for _, f := range allSources(t) {
		for _, group := range f.Comments {
			for _, paragraph := range paragraphs(group) {
				sentences++
				for _, finding := range style.sentences(paragraph, sentenceEnd) {
					t.Errorf("%s: %s", f.line(group), finding)
				}
			}
		}
	}
	if sentences < 1000 {
		t.Errorf("only %d paragraphs are looked at: this test does not find the sources", sentences)
	}
}

// paragraphs are the paragraphs of a comment, without code, lists' signs and directives.
func paragraphs(group *ast.CommentGroup) (out []string) {
	var words []string
	flush := func() {
		if len(words) > 0 {
			out, words = append(out, strings.Join(words, " ")), nil
		}
	}
	for line := range strings.Lines(group.Text()) {
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    "):
			flush()
		case strings.HasPrefix(strings.TrimSpace(line), "- "):
			flush()
			words = append(words, strings.TrimSpace(line)[2:])
		default:
			words = append(words, strings.TrimSpace(line))
		}
	}
	flush()
	return out
}
