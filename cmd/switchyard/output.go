package main

import (
	"encoding/json"
	"io"
	"os"

	"github.com/charmbracelet/x/term"
)

// writeJSON prints a value for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// hasColour reports whether what is printed may have colours: on a terminal, unless its user wants none (no-color.org).
func hasColour(w io.Writer) bool { return isTerminal(w) && os.Getenv("NO_COLOR") == "" }

// isTerminal reports whether a stream is a terminal that the process may ask about. A profile of system calls may keep it from that.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}
