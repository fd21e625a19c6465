package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

var errUTF16 = errors.New("is UTF-16 text: save the file as UTF-8")

// Error is one fault of a manifest.
type Error struct {
	File string
	// Line and Column are counted from 1; 0 means unknown or that the fault is with the file as a whole.
	Line, Column int
	// Kind and Name are the kind and name of the object, as far as known. Name is "namespace/name" if the object has
	// both.
	Kind, Name string
	// Field is the path of the field within the object, for example spec.ports[0].port. It may be empty.
	Field string
	// Err is the fault, worded to follow the field's path.
	Err error
}

// Error renders the fault as file:line:column: Kind name: field: fault.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
	}
	b.WriteString(": ")
	if object := strings.TrimSpace(e.Kind + " " + e.Name); object != "" {
		b.WriteString(object + ": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the fault.
func (e *Error) Unwrap() error { return e.Err }

var yamlMessage = regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`)

// parseMessage splits an error of the YAML library into the message and the line it names, 0 if none.
func parseMessage(err error) (message string, line int) {
	m := yamlMessage.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error(), 0
	}
	line, _ = strconv.Atoi(m[1])
	return m[2], line
}

// maxSearch bounds the size of a document in which the line of a syntax error is looked for by parsing parts of it.
const maxSearch = 1 << 20

// syntaxError turns an error of the YAML library into an *Error. The line that the library names is often only where the
// surrounding construct begins, sometimes one less. The line of the fault is the last one of the shortest part of the
// document that has the same fault.
func syntaxError(file string, doc document, err error) *Error {
	message, from := parseMessage(err)
	var ends []int // offsets of the ends of lines
	for line := range bytes.Lines(bytes.TrimRight(doc.text, "\r\n")) {
		end := len(line)
		if len(ends) > 0 {
			end += ends[len(ends)-1]
		}
		ends = append(ends, end)
	}
	from = max(1, min(from, len(ends)))
	at := from
	if len(doc.text) <= maxSearch {
		at += sort.Search(len(ends)-from, func(i int) bool {
			_, err := parseYAML(doc.text[:ends[from+i-1]])
			if err == nil {
				return false
			}
			m, _ := parseMessage(err)
			return m == message
		})
	}
	line := bytes.TrimLeft(doc.text[:ends[at-1]][bytes.LastIndexByte(doc.text[:ends[at-1]-1], '\n')+1:], " ")
	if bytes.HasPrefix(line, []byte("\t")) {
		message = "a tab cannot indent: use spaces"
	}
	return &Error{File: file, Line: doc.line + at - 1, Err: errors.New("not valid YAML: " + shorten(message, maxText))}
}
