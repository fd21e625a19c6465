package manifest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/switchyard-net/switchyard/internal/spelling"
)

// decoder walks the nodes of one file along the Go types of the objects.
type decoder struct {
	file string
	// line is how many lines of the file precede the document that is read.
	line int
	// inText is set if columns do not match the columns of the file.
	inText  bool
	objects []Object
	errs    []error
	// faults counts the errors, also those beyond maxFaults, which are not kept.
	faults int

	// skip is called for each object of a kind that is not known.
	skip func(Skipped)
	// refer is called for each object of a kind that only refers to others. It may be nil.
	refer func(Object)

	// kind, name and path report where in which object the walk is.
	kind, name string
	path       []segment

	// whole is the type of the whole object where fields are looked for that stand in the wrong place, nil if they are not.
	whole reflect.Type

	// allowance is how many more nodes may be read through aliases; following holds the targets of those being read.
	allowance int
	following map[*yaml.Node]bool
}

// The reports about one file are bounded, because a megabyte of nested faults would otherwise make a gigabyte of paths.
const (
	// maxFaults bounds the faults that are reported. Fixing these shows the rest.
	maxFaults = 100
	// maxText is how many bytes of a path, a name or a message are reported. Kubernetes' own are shorter.
	maxText = 1 << 10
)

// fail records a fault of n.
func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	if d.faults++; d.faults > maxFaults {
		return
	}
	err := fmt.Errorf(format, args...)
	if text := err.Error(); len(text) > maxText {
		err = errors.New(shorten(text, maxText))
	}
	column := n.Column
	if d.inText {
		column = 0
	}
	d.errs = append(d.errs, &Error{
		File: d.file, Line: d.line + n.Line, Column: column, Kind: shorten(d.kind, maxText), Name: shorten(d.name, maxText),
		Field: shorten(pathString(d.path), maxText), Err: err,
	})
}

// more reports how many faults are not listed, nil if all are.
func (d *decoder) more() error {
	if d.faults <= maxFaults {
		return nil
	}
	return &Error{File: d.file, Err: fmt.Errorf("has %d more errors: fix those listed first", d.faults-maxFaults)}
}

// shorten returns the first n bytes of a longer text, with dots.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:n]), "") + "..."
}

// within runs f one step further down the path.
func (d *decoder) within(s segment, f func()) {
	d.path = append(d.path, s)
	f()
	d.path = d.path[:len(d.path)-1]
}

// document reads one object, or the objects of one list. An object without a type is of type implied.
func (d *decoder) document(n *yaml.Node, implied typeMeta) {
	if n.Kind == yaml.AliasNode {
		d.follow(n, func(target *yaml.Node) { d.document(target, implied) })
		return
	}
	if !d.spend(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%w", notManifest(d.file, "it has "+describe(n)+" in place of an object with apiVersion and kind"))
		return
	}
	m := typeMeta{d.text(n, "apiVersion"), d.text(n, "kind")}
	if m == (typeMeta{}) {
		m = implied
	}
	if m == (typeMeta{}) {
		d.fail(n, "%w", notManifest(d.file, "it has neither apiVersion nor kind"))
		return
	}
	d.kind, d.name = m.kind, d.nameOf(n)
	defer func() { d.kind, d.name = "", "" }()
	if m.apiVersion == "" || m.kind == "" {
		for _, f := range []struct{ name, value string }{{"apiVersion", m.apiVersion}, {"kind", m.kind}} {
			if f.value == "" {
				d.within(segment{name: f.name}, func() { d.fail(n, "is missing: every document needs apiVersion and kind") })
			}
		}
		return
	}
	if item, isList := listOf(m); isList {
		d.list(n, item)
		return
	}
	known, supported, ok := lookUp(m)
	if ok {
		d.object(n, m, known)
	} else if supported != "" {
		d.within(segment{name: "apiVersion"}, func() {
			d.fail(orElse(d.find(n, "apiVersion"), n), "%s is not supported for kind %s: use %s", m.apiVersion, m.kind, supported)
		})
	} else {
		d.reference(n, m)
		d.skip(Skipped{APIVersion: shorten(m.apiVersion, maxText), Kind: shorten(m.kind, maxText), Name: shorten(d.name, maxText)})
	}
}

// object reads an object of a known kind and keeps it if it has no fault.
func (d *decoder) object(n *yaml.Node, m typeMeta, known knownKind) {
	before := d.faults
	v := reflect.New(known.typ)
	d.value(n, v.Elem())
	if d.faults == before && v.Interface().(metav1.Object).GetName() == "" {
		d.within(segment{name: "metadata"}, func() {
			d.within(segment{name: "name"}, func() {
				d.fail(orElse(d.find(n, "metadata"), n), "is missing: nothing can refer to an object without a name")
			})
		})
	}
	if d.faults > before {
		return
	}
	object := v.Interface().(runtime.Object)
	object.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(m.apiVersion, m.kind))
	d.objects = append(d.objects, Object{File: d.file, Line: d.line + n.Line, Object: object, column: n.Column})
}

// reference reads an object of a kind that only refers to others. One with a fault is left out: nothing is made of it.
func (d *decoder) reference(n *yaml.Node, m typeMeta) {
	known, ok := referenceKinds[m.kind]
	if d.refer == nil || !ok || known.apiVersion != m.apiVersion {
		return
	}
	own := newDecoder(d.file, 0)
	own.line, own.allowance = d.line, d.allowance
	own.object(n, m, known)
	for _, o := range own.objects {
		d.refer(o)
	}
}

// list reads the items of a list. Other fields of the list have no meaning here.
func (d *decoder) list(n *yaml.Node, implied typeMeta) {
	items := d.find(n, "items")
	switch {
	case items == nil || isEmpty(items):
		return
	case items.Kind != yaml.SequenceNode:
		d.within(segment{name: "items"}, func() { d.fail(items, "must be a list, got %s", describe(items)) })
		return
	}
	for _, item := range items.Content {
		d.kind, d.name = "", ""
		d.document(item, implied)
	}
}

// follow reads the target of alias n. It refuses anchors that contain themselves and more nodes than the allowance.
func (d *decoder) follow(n *yaml.Node, read func(target *yaml.Node)) {
	if d.following[n.Alias] {
		d.fail(n, "the anchor &%s contains itself", n.Value)
		return
	}
	d.following[n.Alias] = true
	read(n.Alias)
	delete(d.following, n.Alias)
}

// spend counts n and its children against the allowance if n is read through an alias, and reports whether it may be read.
func (d *decoder) spend(n *yaml.Node) bool {
	if len(d.following) == 0 {
		return true
	}
	had := d.allowance
	d.allowance -= 1 + len(n.Content)
	if had >= 0 && d.allowance < 0 {
		d.fail(n, "the aliases of this file stand for too many values: write them out")
	}
	return d.allowance >= 0
}

// value reads n into v. A null leaves v as it is.
func (d *decoder) value(n *yaml.Node, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.follow(n, func(target *yaml.Node) { d.value(target, v) })
		return
	}
	if !d.spend(n) || n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		v.Set(reflect.New(t.Elem()))
		d.value(n, v.Elem())
		return
	}
	info := infoOf(t)
	switch {
	case info.unmarshals:
		d.unmarshal(n, v)
	case info.textual:
		d.unmarshalText(n, v)
	case t.Kind() == reflect.Struct:
		d.structure(n, v, info)
	case t.Kind() == reflect.Map:
		d.mapOf(n, v)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		d.slice(n, v)
	default:
		d.scalar(n, v)
	}
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, info *typeInfo) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "must be an object, got %s", describe(n))
		return
	}
	d.mapping(n, segField, func(name string, key, value *yaml.Node) {
		if index, ok := info.fields[name]; ok {
			d.value(value, v.FieldByIndex(index))
		} else if like := spelling.Closest(name, info.names); like != "" {
			d.fail(key, "%w: did you mean %s?", ErrUnknownField, like)
		} else if path := d.elsewhere(name); path != "" {
			d.fail(key, "%w here: did you mean %s?", ErrUnknownField, path)
		} else {
			d.fail(key, "%w", ErrUnknownField)
		}
	})
}

func (d *decoder) mapOf(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "must be an object, got %s", describe(n))
		return
	}
	t := v.Type()
	v.Set(reflect.MakeMapWithSize(t, len(n.Content)/2))
	d.mapping(n, segKey, func(name string, _, value *yaml.Node) {
		item := reflect.New(t.Elem()).Elem()
		d.value(value, item)
		v.SetMapIndex(reflect.ValueOf(name).Convert(t.Key()), item)
	})
}

func (d *decoder) slice(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "must be a list, got %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.path = append(d.path, segment{index: i, kind: segIndex})
		d.value(item, v.Index(i))
		d.path = d.path[:len(d.path)-1]
	}
}

// mapping calls each for every key of n, with the path leading to it. Keys of merged mappings (<<) come last, those that n
// has itself excepted.
func (d *decoder) mapping(n *yaml.Node, kind segmentKind, each func(name string, key, value *yaml.Node)) {
	d.pairs(n, kind, make(map[string]int, len(n.Content)/2), false, each)
}

func (d *decoder) pairs(n *yaml.Node, kind segmentKind, seen map[string]int, merged bool, each func(string, *yaml.Node, *yaml.Node)) {
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			merges = append(merges, value)
			continue
		}
		name := key
		if name.Kind == yaml.AliasNode {
			name = name.Alias
		}
		if name.Kind != yaml.ScalarNode {
			d.fail(key, "a key must be a string, got %s", describe(name))
			continue
		}
		d.path = append(d.path, segment{name: name.Value, kind: kind})
		if line, twice := seen[name.Value]; !twice {
			seen[name.Value] = key.Line
			each(name.Value, key, value)
		} else if !merged {
			d.fail(key, "is given twice, first in line %d", d.line+line)
		}
		d.path = d.path[:len(d.path)-1]
	}
	for _, m := range merges {
		d.merge(m, kind, seen, each)
	}
}

// merge adds the keys of n, the value of a merge key: a mapping or a sequence of mappings, where the first wins.
func (d *decoder) merge(n *yaml.Node, kind segmentKind, seen map[string]int, each func(string, *yaml.Node, *yaml.Node)) {
	switch {
	case n.Kind == yaml.AliasNode:
		d.follow(n, func(target *yaml.Node) { d.merge(target, kind, seen, each) })
	case !d.spend(n):
	case n.Kind == yaml.MappingNode:
		d.pairs(n, kind, seen, true, each)
	case n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			d.merge(item, kind, seen, each)
		}
	default:
		d.fail(n, "<< takes an object or a list of objects, got %s", describe(n))
	}
}

// find returns the value at a path of keys below n, with aliases followed, or nil. It does not look into merged mappings.
func (d *decoder) find(n *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		if n = child(n, key); n == nil {
			return nil
		}
		if n.Kind == yaml.AliasNode {
			n = n.Alias
			d.allowance -= len(n.Content)
		}
	}
	return n
}

// child returns the value of key in n, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i].Kind == yaml.ScalarNode {
			return n.Content[i+1]
		}
	}
	return nil
}

// text returns the text of the scalar at a path of keys below n, or "".
func (d *decoder) text(n *yaml.Node, keys ...string) string {
	n = d.find(n, keys...)
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return ""
	}
	return n.Value
}

// nameOf returns the name of the object n, with its namespace if it has one.
func (d *decoder) nameOf(n *yaml.Node) string {
	namespace, name := d.text(n, "metadata", "namespace"), d.text(n, "metadata", "name")
	if namespace == "" || name == "" {
		return name
	}
	return namespace + "/" + name
}

func orElse(n, other *yaml.Node) *yaml.Node {
	if n == nil {
		return other
	}
	return n
}

// elsewhere returns the path of the only field with a name in the whole object, "" if there is none, or several.
func (d *decoder) elsewhere(name string) string {
	if d.whole == nil {
		return ""
	}
	var found []string
	seen := make(map[reflect.Type]bool)
	var look func(t reflect.Type, path []segment)
	look = func(t reflect.Type, path []segment) {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		defer delete(seen, t)
		info := infoOf(t)
		for _, field := range info.names {
			at := append(path[:len(path):len(path)], segment{name: field})
			if strings.EqualFold(field, name) {
				found = append(found, pathString(at))
			}
			look(t.FieldByIndex(info.fields[field]).Type, at)
		}
	}
	look(d.whole, nil)
	if len(found) != 1 {
		return ""
	}
	return found[0]
}
