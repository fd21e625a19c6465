// Package plaintext keeps texts that others have written from controlling the terminals of people. Names, kinds and messages of objects can hold
// escape sequences, which set the clipboard or the title, and characters that turn the direction of text.
package plaintext

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// replacement replaces a character that is not shown.
const replacement = "\uFFFD"

// Clean returns a text with a replacement for each character that controls a terminal or the direction of text, and for
// invalid UTF-8. It keeps line feeds, tabs, and the sequences by which this program sets colours.
func Clean(text string) string {
	if isSafe(text) {
		return text
	}
	out, _ := appendClean(nil, []byte(text), true)
	return string(out)
}

// Line is [Clean] of a text that is to stay in one line.
func Line(text string) string {
	return Clean(strings.NewReplacer("\n", replacement, "\t", replacement).Replace(text))
}

// isSafe reports whether a text is printable ASCII, line feeds and tabs.
func isSafe[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\n' && c != '\t' || c > '~' {
			return false
		}
	}
	return true
}

// isControl reports whether a character is not shown: controls, C1 included, what sets the direction of text, and separators of lines.
func isControl(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case r == '\u061c', r == '\u200e', r == '\u200f', r >= '\u2028' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
		return true
	}
	return unicode.IsControl(r)
}

// appendClean appends a clean text. It returns the end of it that may be incomplete, unless the text is final.
func appendClean(out, text []byte, final bool) (clean, rest []byte) {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\x1b':
			n, cut := colour(text)
			if cut && !final {
				return out, text
			}
			if n > 0 {
				out, text = append(out, text[:n]...), text[n:]
				continue
			}
			out = append(out, replacement...)
		case r == utf8.RuneError && size == 1:
			if !final && !utf8.FullRune(text) {
				return out, text
			}
			out = append(out, replacement...)
		case isControl(r):
			out = append(out, replacement...)
		default:
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out, nil
}

// maxColour is how long a sequence that sets a colour may be.
const maxColour = 16

// colour returns the length of the sequence that sets a colour and begins a text, 0 if there is none. cut reports whether the text ends
// within what may become one.
func colour(text []byte) (n int, cut bool) {
	number := 0
	for i := 1; i < min(len(text), maxColour); i++ {
		switch c := text[i]; {
		case i == 1 && c == '[':
		case i == 1:
			return 0, false
		case c >= '0' && c <= '9':
			number = number*10 + int(c-'0')
		case (c == ';' || c == 'm') && isColour(number):
			if c == 'm' {
				return i + 1, false
			}
			number = 0
		default:
			return 0, false
		}
	}
	return 0, len(text) < maxColour
}

// isColour reports whether this program uses a parameter of such sequences: plain, bold, faint, reversed or not, and
// colours of text. These cannot hide text.
func isColour(n int) bool {
	switch n {
	case 0, 1, 2, 7, 27:
		return true
	}
	return n >= 31 && n <= 37 || n >= 91 && n <= 97
}

// JSON returns a text in JSON with escapes for the characters that [Clean] replaces, so that it keeps its meaning and
// is clean.
func JSON(text []byte) []byte {
	if isSafe(text) {
		return text
	}
	var out []byte
	for _, r := range string(text) { // encoders leave no invalid UTF-8
		if isControl(r) {
			out = fmt.Appendf(out, `\u%04x`, r) // all of them are in the first plane
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// Writer writes clean text to another writer. It may be used concurrently.
type Writer struct {
	to io.Writer

	mu sync.Mutex // guards all below
	// held is the end of the written text, if it may be incomplete.
	held []byte
}

// NewWriter returns a writer to another one. The caller flushes it at the end.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.held) == 0 && isSafe(p) {
		return w.to.Write(p)
	}
	out, rest := appendClean(make([]byte, 0, len(p)), append(w.held, p...), false)
	w.held = append([]byte(nil), rest...)
	if len(out) == 0 {
		return len(p), nil
	}
	if _, err := w.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes the incomplete rest, with replacements.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, _ := appendClean(nil, w.held, true)
	w.held = nil
	if len(out) == 0 {
		return nil
	}
	_, err := w.to.Write(out)
	return err
}

// File returns the file that a stream is, or that a [Writer] writes to.
func File(stream any) (f *os.File, ok bool) {
	if w, isWriter := stream.(*Writer); isWriter {
		stream = w.to
	}
	f, ok = stream.(*os.File)
	return f, ok
}
