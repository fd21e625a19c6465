package client

import (
	"os"
	"strings"
	"testing"
)

// TestTheDocumentedDataplaneIsTheCompiledOne keeps the program in the package's comment true.
func TestTheDocumentedDataplaneIsTheCompiledOne(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	inside := false
	for line := range strings.Lines(string(doc)) {
		code, isCode := strings.CutPrefix(line, "//\t")
		inside = isCode || inside && line == "//\n"
		switch {
		case isCode:
			program.WriteString(code)
		case inside:
			program.WriteString("\n")
		}
	}
	if text := strings.TrimSpace(program.String()); len(text) < 500 || !strings.Contains(string(compiled), text) {
		t.Errorf("the program in the comment of the package is not that of example_test.go:\n%s", text)
	}
}
