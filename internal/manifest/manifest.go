// Package manifest reads ordinary Kubernetes manifests, YAML or JSON, into typed API objects.
//
// It is strict about the kinds it knows, like `kubectl apply --validate=strict`. An unknown field, a value of the wrong
// type and a repeated key are errors. Each error has its file, line, column, object and field, and all are reported at
// once. Objects of other kinds are skipped, so that a directory of application manifests can be read without changes.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is one object of a manifest.
type Object struct {
	File string
	// Line is where the object begins, counted from 1.
	Line int
	// Object is a pointer to one of the known types, for example *corev1.Service, with apiVersion and kind set. Defaults
	// of the API server are not filled in.
	Object runtime.Object

	column int
}

// aliasAllowance is how many nodes aliases may add to a file, beyond one for each of its bytes. Real manifests use a few
// dozen; an "alias bomb" of 500 bytes describes billions.
const aliasAllowance = 100_000

// Decode reads all documents of one file, whose name is used for positions only. It returns every valid object, in the
// order of the file, and one *Error for each fault of the other objects. After a hundred errors, one more says how many
// are left out. The objects of a List (also ServiceList, and so on) are returned one by one. The result does not refer
// to data.
func Decode(file string, data []byte) (objects []Object, errs []error) {
	c := Read(file, data)
	return c.Objects, c.Errs
}

// Content is the content of a file.
type Content struct {
	// Objects are those without a fault.
	Objects []Object
	// Skipped are the objects of other kinds.
	Skipped []Skipped
	// References are skipped objects whose names of other objects can be checked: Ingresses, Jobs and CronJobs.
	References []Object
	// Errs are the faults of all others, as of [Decode].
	Errs []error
}

// Skipped is an object of a kind that is not decoded.
type Skipped struct {
	APIVersion, Kind string
	// Name has the namespace before it if the object has one.
	Name string
}

// Read decodes like [Decode], and also returns the skipped documents.
func Read(file string, data []byte) Content {
	var c Content
	d := newDecoder(file, len(data))
	d.skip = func(s Skipped) { c.Skipped = append(c.Skipped, s) }
	d.refer = func(o Object) { c.References = append(c.References, o) }
	for object, err := range d.each(data) {
		if err != nil {
			c.Errs = append(c.Errs, err)
		} else {
			c.Objects = append(c.Objects, object)
		}
	}
	return c
}

// Each yields what [Decode] returns, document by document, for callers that need not hold a large file's objects all at once.
func Each(file string, data []byte) iter.Seq2[Object, error] {
	return newDecoder(file, len(data)).each(data)
}

func newDecoder(file string, size int) *decoder {
	return &decoder{file: file, allowance: size + aliasAllowance, following: map[*yaml.Node]bool{}, skip: func(Skipped) {}}
}

func (d *decoder) each(data []byte) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		file := d.file
		if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
			yield(Object{}, &Error{File: file, Line: 1, Err: errUTF16})
			return
		}
		if foreign := foreignName(file); foreign != nil {
			yield(Object{}, &Error{File: file, Err: foreign})
			return
		}
		template := false
		for doc := range documents(data) {
			d.objects, d.errs = d.objects[:0], d.errs[:0]
			before := d.faults
			root, err := doc.parse(file)
			if err != nil {
				if d.faults++; d.faults <= maxFaults {
					d.errs = append(d.errs, err)
				}
			} else if root != nil {
				d.line = doc.line - 1
				d.document(root, typeMeta{})
			}
			if d.faults > before {
				// A fault of a template need not be a fault of its manifest. It is reported once.
				if fault, line := templateIn(file, doc.text); fault != nil {
					d.faults, d.errs = before, d.errs[:0]
					if !template {
						d.faults++
						d.errs = append(d.errs, &Error{File: file, Line: doc.line - 1 + line, Err: fault})
					}
					template = true
				}
			}
			for _, o := range d.objects {
				if !yield(o, nil) {
					return
				}
			}
			for _, err := range d.errs {
				if !yield(Object{}, err) {
					return
				}
			}
		}
		if err := d.more(); err != nil {
			yield(Object{}, err)
		}
	}
}

// document is the text of one document of a file.
type document struct {
	// line is the line of the file in which the text begins, counted from 1.
	line int
	text []byte
}

// documents yields the documents of a file. It splits them before parsing, at lines that begin with "---" or "...",
// which YAML allows nowhere within a document. So a syntax error in one document does not hide the next.
func documents(data []byte) iter.Seq[document] {
	return func(yield func(document) bool) {
		data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
		doc, line := document{line: 1}, 0
		start := 0
		for pos := 0; pos < len(data); {
			line++
			end := len(data)
			if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
				end = pos + i + 1
			}
			text := data[pos:end]
			switch {
			case isMarker(text, "---"):
				doc.text = data[start:pos]
				if !yield(doc) {
					return
				}
				doc, start = document{line: line}, pos
			case isMarker(text, "..."):
				doc.text = data[start:pos]
				if !yield(doc) {
					return
				}
				doc, start = document{line: line + 1}, end
			}
			pos = end
		}
		doc.text = data[start:]
		yield(doc)
	}
}

// isMarker reports whether line begins with the three-character marker as a word of its own.
func isMarker(line []byte, marker string) bool {
	if !bytes.HasPrefix(line, []byte(marker)) {
		return false
	}
	return len(line) == len(marker) || bytes.IndexByte([]byte(" \t\r\n"), line[len(marker)]) >= 0
}

// parse returns the document's content, or nil if it is empty: white space, comments or directives only.
func (doc document) parse(file string) (*yaml.Node, error) {
	if onlyDirectives(doc.text) {
		return nil, nil
	}
	n, err := parseYAML(asYAML(doc.text))
	if err != nil {
		return nil, syntaxError(file, doc, err)
	}
	if n.Kind != yaml.DocumentNode || len(n.Content) == 0 || isEmpty(n.Content[0]) {
		return nil, nil
	}
	// The file's comments on the document as a whole are kept with its content.
	n.Content[0].HeadComment = joinComments(n.HeadComment, n.Content[0].HeadComment)
	n.Content[0].FootComment = joinComments(n.Content[0].FootComment, n.FootComment)
	return n.Content[0], nil
}

// parseYAML parses text to its end. yaml.Unmarshal stops after the first value: of two JSON objects in a row, the second would
// get lost without a word.
func parseYAML(text []byte) (n yaml.Node, err error) {
	in := yaml.NewDecoder(bytes.NewReader(text))
	if err = in.Decode(&n); err == nil {
		err = in.Decode(new(yaml.Node))
	}
	switch {
	case err == nil:
		err = errors.New("yaml: a second value follows the first")
	case errors.Is(err, io.EOF):
		err = nil
	}
	return n, err
}

// asYAML returns text, with those escapes of JSON replaced that YAML lacks if text is JSON: \/ and pairs of surrogates.
func asYAML(text []byte) []byte {
	isJSON := bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && json.Valid(text)
	if !isJSON || !bytes.Contains(text, []byte(`\/`)) && !bytes.Contains(bytes.ToLower(text), []byte(`\ud`)) {
		return text
	}
	return jsonEscape.ReplaceAllFunc(text, func(escape []byte) []byte {
		switch string(bytes.ToLower(escape[:min(3, len(escape))])) {
		case `\/`:
			return []byte("/")
		case `\ud`:
			var s string
			if json.Unmarshal(slices.Concat([]byte(`"`), escape, []byte(`"`)), &s) == nil {
				return []byte(s)
			}
		}
		return escape
	})
}

// jsonEscape matches a pair of surrogates or any other escape, up to where its length matters.
var jsonEscape = regexp.MustCompile(`(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\ud[0-9a-f]{3}|\\.`)

// onlyDirectives reports whether text has only blank lines, comments and directives such as %YAML. The text may begin
// with one "---" and precedes the next. The parser would reject directives that are cut off from their document.
func onlyDirectives(text []byte) bool {
	if isMarker(text, "---") {
		text = text[len("---"):]
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '%' && line[0] != '#' {
			return false
		}
	}
	return true
}

// isEmpty reports whether n is a plain null, the result of a document with only comments.
func isEmpty(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Anchor == ""
}

// segment is one step of a field path: a name, an index or a key of a map.
type segment struct {
	name  string
	index int
	kind  segmentKind
}

type segmentKind uint8

const (
	segField segmentKind = iota
	segIndex
	segKey
)

// pathString renders a path the way Kubernetes does: spec.ports[0].port, metadata.labels[app]. It stops once a path is longer
// than anybody reads.
func pathString(path []segment) string {
	var b []byte
	for _, s := range path {
		if len(b) > maxText {
			break
		}
		switch s.kind {
		case segField:
			if len(b) > 0 {
				b = append(b, '.')
			}
			b = append(b, s.name...)
		case segIndex:
			b = strconv.AppendInt(append(b, '['), int64(s.index), 10)
			b = append(b, ']')
		case segKey:
			b = append(append(append(b, '['), s.name...), ']')
		}
	}
	return string(b)
}
