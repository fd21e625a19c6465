package manifest

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// ErrUnknownField is wrapped by the [Error] of a field that the type read into does not have.
var ErrUnknownField = errors.New("there is no such field")

// Document is one object of any kind in a file, for callers that bring the type to read it into.
type Document struct {
	// APIVersion and Kind are the document's apiVersion and kind; either may be empty.
	APIVersion, Kind string

	file string
	size int
	line int // as decoder.line
	// inText is set for a document in the text of another one, in which columns are unknown.
	inText bool
	root   *yaml.Node
	// comments are those that stand in a line of their own.
	comments []CommentLine
}

// Single parses a file that must hold exactly one object. It returns one *[Error] for each fault. It does not keep data.
func Single(file string, data []byte) (*Document, []error) {
	docs, err := Documents(file, data)
	switch {
	case err != nil:
		return nil, []error{err}
	case len(docs) > 1:
		return nil, []error{&Error{File: file, Line: docs[1].line + docs[1].root.Line, Err: errors.New("contains a second document: keep one, in a file of its own")}}
	}
	return docs[0], nil
}

// Documents parses a file that must hold at least one object. The error is the first *[Error]. Nothing returned refers to data.
func Documents(file string, data []byte) ([]*Document, error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, &Error{File: file, Line: 1, Err: errUTF16}
	}
	var docs []*Document
	var before []CommentLine // in documents that have nothing else
	for text := range documents(data) {
		root, err := text.parse(file)
		if err != nil {
			return nil, err
		}
		comments := commentLines(text)
		if root == nil {
			before = append(before, comments...)
			continue
		}
		doc := &Document{file: file, size: len(text.text), line: text.line - 1, root: root, comments: append(before, comments...)}
		before = nil
		d := doc.decoder()
		if root.Kind != yaml.MappingNode {
			d.fail(root, "must be an object with apiVersion and kind, got %s", describe(root))
			return nil, d.errs[0]
		}
		doc.APIVersion, doc.Kind = d.text(root, "apiVersion"), d.text(root, "kind")
		docs = append(docs, doc)
	}
	if len(docs) == 0 {
		return nil, &Error{File: file, Err: errors.New("is empty: it needs at least apiVersion and kind")}
	}
	last := docs[len(docs)-1]
	last.comments = append(last.comments, before...)
	return docs, nil
}

// Text is a text in an object, such as a file in a ConfigMap.
type Text struct {
	Key, Data string

	file string
	// line is how many lines of the file precede the text; -1 if its lines do not match the lines of the file.
	line int
}

// Texts returns the texts of the map in the field of the document with that name.
func (d *Document) Texts(name string) []Text {
	var texts []Text
	dec := d.decoder()
	m := dec.find(d.root, name)
	if m == nil || m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		data, ok := stringOf(value)
		if !ok {
			continue
		}
		t := Text{Key: key.Value, Data: data, file: d.file, line: d.line + value.Line}
		if value.Style&yaml.LiteralStyle == 0 {
			t.file, t.line = d.file+"("+name+"."+shorten(key.Value, maxText)+")", -1
		}
		texts = append(texts, t)
	}
	return texts
}

// Documents parses the text as a file. Positions are those in the file around it if the text is a literal block of YAML, otherwise
// those in the text.
func (t Text) Documents() ([]*Document, error) {
	docs, err := Documents(t.file, []byte(t.Data))
	if t.line < 0 {
		return docs, err
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Line > 0 {
		e.Line, e.Column = e.Line+t.line, 0
	}
	for _, doc := range docs {
		doc.line, doc.inText = doc.line+t.line, true
		for i := range doc.comments {
			doc.comments[i].Line += t.line
		}
	}
	return docs, err
}

func (d *Document) decoder() *decoder {
	return &decoder{file: d.file, line: d.line, inText: d.inText, allowance: d.size + aliasAllowance, following: map[*yaml.Node]bool{}}
}

// File returns the name of the file.
func (d *Document) File() string { return d.file }

// Position returns where the field at path is, or the closest field around it, as errors begin.
func (d *Document) Position(path string) string {
	e := d.Error(path, nil)
	if e.Column == 0 {
		return fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column)
}

// Into reads the document, except apiVersion and kind, into the struct that v points to. Fields are matched by their
// JSON names. Fields that the document does not mention, or gives as null, keep their value. It returns one *[Error]
// for each fault, like [Decode], and still reads the rest. Types with an UnmarshalJSON or UnmarshalText method are read
// by it.
func (d *Document) Into(v any) []error {
	content := *d.root
	content.Content = nil
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if key := d.root.Content[i].Value; key != "apiVersion" && key != "kind" {
			content.Content = append(content.Content, d.root.Content[i], d.root.Content[i+1])
		}
	}
	dec := d.decoder()
	dec.whole = reflect.TypeOf(v).Elem()
	dec.value(&content, reflect.ValueOf(v).Elem())
	if err := dec.more(); err != nil {
		dec.errs = append(dec.errs, err)
	}
	return dec.errs
}

// Error returns err as an *Error with the position of the field at path, or of the closest field around it.
func (d *Document) Error(path string, err error) *Error {
	n := descend(d.root, path)
	e := &Error{File: d.file, Line: d.line + n.Line, Column: n.Column, Field: path, Err: err}
	if d.inText {
		e.Column = 0
	}
	return e
}

// wantedTexts describes how the text of some types looks, whose own errors are not meant for operators.
var wantedTexts = map[reflect.Type]string{
	reflect.TypeFor[netip.Addr]():     "an IP address such as 192.0.2.10",
	reflect.TypeFor[netip.AddrPort](): "an IP address and port such as 0.0.0.0:10256 or [::]:10256",
	reflect.TypeFor[netip.Prefix]():   "a CIDR such as 10.244.0.0/16",
}

// unmarshalText reads n into v, a type that reads its own text.
func (d *decoder) unmarshalText(n *yaml.Node, v reflect.Value) {
	read := func(s string) error { return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)) }
	var err error
	if s, ok := stringOf(n); ok {
		if err = read(s); err == nil {
			return
		}
	} else if n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!float") {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		err = read(n.Value) // for its remedy: a number is none in any case
		v.Set(was)
	}
	if wanted, ok := wantedTexts[v.Type()]; ok {
		d.fail(n, "must be %s, got %s", wanted, describe(n))
	} else if err != nil {
		d.fail(n, "%w", err)
	} else {
		d.fail(n, "must be a string, got %s", describe(n))
	}
}
