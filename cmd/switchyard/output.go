package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"

	"github.com/charmbracelet/x/term"

	"github.com/switchyard-net/switchyard/internal/plaintext"
)

// writeJSON prints a value for programs.
func writeJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(plaintext.JSON(text.Bytes()))
	return err
}

// hasColour reports whether output may have colours: on a terminal, unless its user wants none (no-color.org).
func hasColour(w io.Writer) bool { return isTerminal(w) && os.Getenv("NO_COLOR") == "" }

// isTerminal reports whether a stream is a terminal that the process may ask about. A profile of system calls may keep it from that.
func isTerminal(stream any) bool {
	f, ok := plaintext.File(stream)
	return ok && term.IsTerminal(f.Fd())
}
