package manifest

import (
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Locator finds the positions of fields, for callers that find faults in an object after it has been decoded.
type Locator struct {
	file string
	docs []document
	// root is the tree of the document parsed last, in.
	root *yaml.Node
	in   int
}

// NewLocator returns a locator for the file from whose text data objects were decoded. It keeps data and parses a
// document of it only when asked for a position there.
func NewLocator(file string, data []byte) *Locator {
	l := &Locator{file: file, in: -1}
	for doc := range documents(data) {
		l.docs = append(l.docs, doc)
	}
	return l
}

// Error returns err as an *Error with the position of the field at path in o. If the field does not exist, it uses the
// position of the closest enclosing field.
func (l *Locator) Error(o Object, path string, err error) *Error {
	e := &Error{File: l.file, Line: o.Line, Column: o.column, Field: path, Err: err}
	e.Kind = o.Object.GetObjectKind().GroupVersionKind().Kind
	in := sort.Search(len(l.docs), func(i int) bool { return l.docs[i].line > o.Line }) - 1
	if in < 0 {
		return e
	}
	if in != l.in {
		l.in = in
		l.root, _ = l.docs[in].parse(l.file)
	}
	before := l.docs[in].line - 1
	object := nodeAt(l.root, o.Line-before, o.column)
	if object == nil {
		return e
	}
	e.Name = (&decoder{}).nameOf(object)
	field := descend(object, path)
	e.Line, e.Column = before+field.Line, field.Column
	return e
}

// nodeAt returns the mapping that begins at a position in the tree of n, or nil. Nodes are in the order of the text.
func nodeAt(n *yaml.Node, line, column int) *yaml.Node {
	for n != nil {
		if n.Kind == yaml.MappingNode && n.Line == line && n.Column == column {
			return n
		}
		i := sort.Search(len(n.Content), func(i int) bool {
			c := n.Content[i]
			return c.Line > line || c.Line == line && c.Column > column
		})
		if i == 0 {
			return nil
		}
		n = n.Content[i-1]
	}
	return nil
}

// descend follows path from n as far as it goes.
func descend(n *yaml.Node, path string) *yaml.Node {
	for len(path) > 0 {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		var next *yaml.Node
		if inner, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]"); ok && path[0] == '[' {
			path = strings.TrimPrefix(rest, ".")
			if i, err := strconv.Atoi(inner); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
			} else {
				next = child(n, inner)
			}
		} else {
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			next = child(n, path[:end])
			path = strings.TrimPrefix(path[end:], ".")
		}
		if next == nil {
			return n
		}
		n = next
	}
	return n
}
