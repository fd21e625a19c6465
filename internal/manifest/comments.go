package manifest

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// CommentLine is a comment in a line of its own.
type CommentLine struct {
	// Line is the line in the file, counted from 1.
	Line int
	// Text begins with the #.
	Text string
}

// CommentLines returns the comments of the document that stand in a line of their own. A line of a text that looks like one counts.
func (d *Document) CommentLines() []CommentLine { return d.comments }

// commentLines finds the lines of comments in a document that is no JSON, which has none.
func commentLines(doc document) (found []CommentLine) {
	n := doc.line - 1
	for line := range bytes.Lines(doc.text) {
		n++
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] == '#' {
			found = append(found, CommentLine{Line: n, Text: strings.ToValidUTF8(string(line), "\uFFFD")})
		}
	}
	return found
}

// Comment has a document's comments on a field. The texts have a # in each line.
type Comment struct {
	// Path is the path of the field; "" for the document as a whole.
	Path string
	// Item is the value if the path names an item of a list, and the item is a scalar.
	Item string
	// Line is where the field is in the file, counted from 1.
	Line int
	// Head precedes the field, the comment in its line is next, and Foot follows the field.
	Head, Beside, Foot string
}

// Comments returns the comments of the document's fields, in the order of the fields.
func (d *Document) Comments() []Comment {
	var found []Comment
	Walk(d.root, func(path string, key, value *yaml.Node) {
		c := Comment{Path: path, Line: d.line + value.Line}
		if key == nil {
			key = &yaml.Node{}
			if path != "" && value.Kind == yaml.ScalarNode {
				c.Item = value.Value
			}
		} else {
			c.Line = d.line + key.Line
		}
		c.Head = joinComments(key.HeadComment, value.HeadComment)
		c.Beside = joinComments(key.LineComment, value.LineComment)
		c.Foot = joinComments(value.FootComment, key.FootComment)
		if c.Head+c.Beside+c.Foot != "" {
			found = append(found, c)
		}
	})
	return found
}

func joinComments(a, b string) string { return strings.Trim(a+"\n"+b, "\n") }

// Walk calls visit for a tree of YAML, with path "". It also calls visit for all fields and items in it, with their
// paths and, for a field, its key. It does not follow aliases.
func Walk(n *yaml.Node, visit func(path string, key, value *yaml.Node)) {
	visit("", nil, n)
	walk(n, nil, visit)
}

func walk(n *yaml.Node, path []segment, visit func(path string, key, value *yaml.Node)) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := append(path, segment{name: n.Content[i].Value})
			visit(pathString(at), n.Content[i], n.Content[i+1])
			walk(n.Content[i+1], at, visit)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			at := append(path, segment{index: i, kind: segIndex})
			visit(pathString(at), nil, item)
			walk(item, at, visit)
		}
	}
}
