package manifest

import (
	"bytes"
	"encoding"
	"errors"
	"net/netip"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// ErrUnknownField is wrapped by the [Error] of a field that the type read into does not have.
var ErrUnknownField = errors.New("there is no such field")

// Document is a file that holds one object of any kind, for those who bring the type to read it into themselves.
type Document struct {
	// APIVersion and Kind are what the document says of itself; either may be empty.
	APIVersion, Kind string

	file string
	size int
	line int // as decoder.line
	root *yaml.Node
}

// Single parses a file that must hold exactly one object. It returns one *[Error] for each fault. It does not keep data.
func Single(file string, data []byte) (*Document, []error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, []error{&Error{File: file, Line: 1, Err: errUTF16}}
	}
	var found *Document
	for doc := range documents(data) {
		root, err := doc.parse(file)
		switch {
		case err != nil:
			return nil, []error{err}
		case root == nil:
			continue
		case found != nil:
			return nil, []error{&Error{File: file, Line: doc.line - 1 + root.Line, Err: errors.New("holds a second document: keep one, in a file of its own")}}
		}
		found = &Document{file: file, size: len(data), line: doc.line - 1, root: root}
	}
	if found == nil {
		return nil, []error{&Error{File: file, Err: errors.New("is empty: it needs at least apiVersion and kind")}}
	}
	d := found.decoder()
	if found.root.Kind != yaml.MappingNode {
		d.fail(found.root, "must be an object with apiVersion and kind, got %s", describe(found.root))
		return nil, d.errs
	}
	found.APIVersion, found.Kind = d.text(found.root, "apiVersion"), d.text(found.root, "kind")
	return found, nil
}

func (d *Document) decoder() *decoder {
	return &decoder{file: d.file, line: d.line, allowance: d.size + aliasAllowance, following: map[*yaml.Node]bool{}}
}

// Into reads the document, apiVersion and kind excepted, into the struct that v points to. Fields are matched by their JSON
// names. What the document does not mention, or gives as null, keeps its value. It returns one *[Error] for each fault, as
// [Decode] does; the rest has then been read nevertheless. Types with an UnmarshalJSON or UnmarshalText method are read by it.
func (d *Document) Into(v any) []error {
	content := *d.root
	content.Content = nil
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if key := d.root.Content[i].Value; key != "apiVersion" && key != "kind" {
			content.Content = append(content.Content, d.root.Content[i], d.root.Content[i+1])
		}
	}
	dec := d.decoder()
	dec.value(&content, reflect.ValueOf(v).Elem())
	if err := dec.more(); err != nil {
		dec.errs = append(dec.errs, err)
	}
	return dec.errs
}

// Error returns err as an *Error with the position of the field at path, or of the closest field around it.
func (d *Document) Error(path string, err error) *Error {
	n := descend(d.root, path)
	return &Error{File: d.file, Line: d.line + n.Line, Column: n.Column, Field: path, Err: err}
}

// wantedTexts says how the text of some types looks, whose own errors are not meant for operators.
var wantedTexts = map[reflect.Type]string{
	reflect.TypeFor[netip.Addr]():     "an IP address such as 192.0.2.10",
	reflect.TypeFor[netip.AddrPort](): "an IP address and port such as 0.0.0.0:10256 or [::]:10256",
	reflect.TypeFor[netip.Prefix]():   "a CIDR such as 10.244.0.0/16",
}

// unmarshalText reads n into v, a type that reads its own text.
func (d *decoder) unmarshalText(n *yaml.Node, v reflect.Value) {
	var err error
	if s, ok := stringOf(n); ok {
		err = v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s))
		if err == nil {
			return
		}
	}
	if wanted, ok := wantedTexts[v.Type()]; ok {
		d.fail(n, "must be %s, got %s", wanted, describe(n))
	} else if err != nil {
		d.fail(n, "%w", err)
	} else {
		d.fail(n, "must be a string, got %s", describe(n))
	}
}
