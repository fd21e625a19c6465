package configfile

import (
	"bytes"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// Versions are those that [Convert] writes, the latest one first.
func Versions() []string {
	return []string{path.Base(v1alpha2.APIVersion), path.Base(v1alpha1.APIVersion)}
}

// Convert reads files like [LoadFiles] and returns one file with the same meaning in a version, such as v1alpha1. Every
// field is written. Comments stay with their fields. The file of a single dataplane keeps its kind, which has one
// version.
//
// The notes are the notes of LoadFiles, and one for each lost value and comment. There is no file if there is a fault.
func Convert(files []File, version string, o Options) ([]byte, []config.Note, error) {
	if !slices.Contains(Versions(), version) {
		return nil, nil, fmt.Errorf("there is no version %q: use %s", version, strings.Join(Versions(), " or "))
	}
	l, err := load(files, o)
	if err != nil {
		return nil, l.notes, err
	}
	root, rename, err := l.root(version)
	if err != nil {
		return nil, l.notes, err
	}
	plain, err := encode(root)
	if err != nil {
		return nil, l.notes, err
	}
	l.comment(root, rename)
	text, err := encode(root)
	if err != nil || !sameValues(plain, text) {
		text = plain // some comments cannot be written where they stood
	}
	l.nameLostComments(text)
	return text, l.notes, nil
}

// root returns the file in a version, without comments, and the path in it of a field of v1alpha2. It notes what gets lost.
func (l *loaded) root(version string) (root *yaml.Node, rename func(path string) string, err error) {
	var lost []config.Note
	switch {
	case l.dataplane != nil:
		root, lost, err = l.dataplane.root(l.config)
		rename = l.dataplane.path
	case version == path.Base(v1alpha1.APIVersion):
		var old *v1alpha1.KubeProxyConfiguration
		old, lost = v1alpha1.From(l.config)
		root, err = nodes(old)
		rename = old.Path
	default:
		root, err = nodes(v1alpha2.From(l.config))
		rename = func(path string) string { return path }
	}
	for _, n := range lost {
		n.File = l.origin(n.Path).File()
		n.Path = l.pathIn(l.origin(n.Path), n.Path)
		l.notes = append(l.notes, n)
	}
	return root, rename, err
}

// comment puts the comments of all documents to the fields of root. Rename returns the path in root of a field of v1alpha2.
func (l *loaded) comment(root *yaml.Node, rename func(string) string) {
	keys, values := map[string]*yaml.Node{}, map[string]*yaml.Node{}
	manifest.Walk(root, func(path string, key, value *yaml.Node) { keys[path], values[path] = key, value })
	for _, doc := range l.documents() {
		to := map[string]string{} // from paths in doc to those in root
		manifest.Walk(l.latest(), func(path string, _, _ *yaml.Node) {
			from, at := l.pathIn(doc, path), rename(path)
			if _, known := to[from]; (!known || from == path) && values[at] != nil {
				to[from] = at
			}
		})
		for _, c := range doc.Comments() {
			list, _, isItem := strings.Cut(c.Path, "[")
			at, ok := to[list]
			if value := values[at]; ok && isItem {
				item := slices.IndexFunc(value.Content, func(n *yaml.Node) bool { return c.Item != "" && n.Value == c.Item })
				if item < 0 {
					continue
				}
				attach(c, value.Content[item], value.Content[item])
			} else if ok && c.Path == "" {
				attach(manifest.Comment{Head: c.Head}, root.Content[0], root.Content[0])
				attach(manifest.Comment{Foot: c.Foot}, root.Content[len(root.Content)-2], root.Content[len(root.Content)-2])
			} else if ok {
				beside := value
				if value.Kind != yaml.ScalarNode && len(value.Content) > 0 {
					beside = keys[at]
				}
				attach(c, keys[at], beside)
			}
		}
	}
}

// latest returns the file of the latest version.
func (l *loaded) latest() *yaml.Node {
	root, _ := nodes(v1alpha2.From(l.config)) // it cannot fail: this value, or one that contains it, has been encoded before
	return root
}

// attach adds a comment to a field.
func attach(c manifest.Comment, field, beside *yaml.Node) {
	join := func(to *string, text string) {
		if text != "" {
			*to = strings.TrimPrefix(*to+"\n"+text, "\n")
		}
	}
	join(&field.HeadComment, c.Head)
	join(&field.FootComment, c.Foot)
	if c.Beside != "" && (strings.Contains(c.Beside, "\n") || beside.LineComment != "") {
		join(&field.HeadComment, c.Beside)
	} else {
		join(&beside.LineComment, c.Beside)
	}
}

// maxLostComments is how many lost comments of a document are named one by one.
const maxLostComments = 20

// nameLostComments adds a note for each comment that is not in text.
func (l *loaded) nameLostComments(text []byte) {
	for _, doc := range l.documents() {
		comments := doc.CommentLines()
		for _, c := range doc.Comments() {
			if c.Beside != "" {
				comments = append(comments, manifest.CommentLine{Line: c.Line, Text: c.Beside})
			}
		}
		kept := map[string]bool{}
		lost := 0
		for _, c := range comments {
			if _, known := kept[c.Text]; !known {
				kept[c.Text] = bytes.Contains(text, []byte(c.Text))
			}
			if kept[c.Text] {
				continue
			}
			if lost++; lost <= maxLostComments {
				l.notes = append(l.notes, config.Note{File: doc.File(), Path: fmt.Sprintf("the comment in line %d", c.Line), Text: fmt.Sprintf("is lost: %.60s", c.Text)})
			}
		}
		if more := lost - maxLostComments; more > 0 {
			l.notes = append(l.notes, config.Note{File: doc.File(), Path: "comments", Text: fmt.Sprintf("are lost in %d more lines", more)})
		}
	}
}

// sameValues reports whether two texts of YAML have the same values.
func sameValues(a, b []byte) bool {
	var x, y any
	return yaml.Unmarshal(a, &x) == nil && yaml.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
