//go:build linux

package lab

import (
	"os"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/explain"
)

// TestExamplesAnswerQuestions asks the questions in examples/README.md. The rows of its table have the commands and a part of the answers.
func TestExamplesAnswerQuestions(t *testing.T) {
	page, err := os.ReadFile("../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		command, ok := strings.CutPrefix(cells[max(0, len(cells)-2)], "`explain ")
		if !ok {
			continue
		}
		asked++
		words, want := strings.Fields(strings.TrimSuffix(command, "`")), strings.Trim(cells[len(cells)-1], "`")
		if len(words) != 4 || words[2] != "--lab" {
			t.Errorf("%q: want FROM TO --lab PATH", command)
			continue
		}
		from, err := explain.ParseFrom(words[0])
		if err != nil {
			t.Fatal(err)
		}
		to, err := explain.ParseTo(words[1])
		if err != nil {
			t.Fatal(err)
		}
		answers, err := inLab(t, "../"+words[3]).Explain(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, a := range answers {
			if err := (explain.Style{}).Write(&text, a); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.Contains(text.String(), want) {
			t.Errorf("explain %s: want %q in\n%s", command, want, &text)
		}
	}
	if asked != 6 {
		t.Errorf("%d questions, want one about each of 6 examples", asked)
	}
}
