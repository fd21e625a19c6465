package configfile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// loaded is a configuration, and where it is from.
type loaded struct {
	input
	// old is the file of v1alpha1, if shared is one.
	old *v1alpha1.KubeProxyConfiguration
	// dataplane is the kind of shared, if that is the file of a single dataplane.
	dataplane *dataplaneFile
	config    *config.Config
	// unset is the configuration if none of the fields that an instance may have were in shared.
	unset *config.Config
	// by has the documents of instances that set a field.
	by map[string]*manifest.Document
	report
}

func load(files []File, o Options) (*loaded, error) {
	l := &loaded{by: map[string]*manifest.Document{}}
	if err := l.read(files, o); err != nil {
		return l, err
	}
	l.dataplane = dataplaneFileOf(l.shared)
	switch {
	case l.dataplane != nil:
		l.loadDataplane()
	case l.shared.APIVersion == v1alpha1.APIVersion:
		l.loadV1alpha1()
	default:
		l.loadV1alpha2()
	}
	for _, doc := range l.instances {
		l.loadInstance(doc)
	}
	hasDefaults := l.old == nil && l.dataplane == nil // for fields at fault
	if hasDefaults {
		l.resetInvalid()
	}
	for _, f := range l.config.Validate(o.Platform) {
		l.add(l.origin(f.Path), &config.FieldError{Path: l.pathIn(l.origin(f.Path), f.Path), Problem: f.Problem})
	}
	if len(l.errs) == 0 {
		return l, nil
	}
	l.resetInvalid()
	if !hasDefaults || l.fatal || len(l.config.Validate(o.Platform)) > 0 {
		l.config = nil
	}
	return l, l.err(l.documents())
}

func (l *loaded) loadV1alpha2() {
	file := v1alpha2.Default()
	l.decoded(l.shared, l.shared.Into(file))
	c, faults := file.Convert()
	l.add(l.shared, faults...)
	c.ResetInvalid(l.faults, config.Default())
	l.config, l.unset = c, config.Default()
}

func (l *loaded) loadV1alpha1() {
	doc := l.shared
	l.old = &v1alpha1.KubeProxyConfiguration{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind}
	newUnknown := sync.OnceValue(func() map[string]bool { return unknownInV1alpha2(doc) }) // a file may have many such fields
	l.decoded(doc, slices.DeleteFunc(doc.Into(l.old), func(err error) bool {
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok || !errors.Is(err, manifest.ErrUnknownField) {
			return false
		}
		why := e.Err.Error()
		if removed, ok := v1alpha1.Removed[e.Field]; ok {
			why = removed
		} else if !newUnknown()[e.Field] {
			why = fmt.Sprintf("only version v1alpha2 has this field: convert the file with 'switchyard config convert %s', then add the field", doc.File())
		}
		l.notes = append(l.notes, config.Note{File: doc.File(), Path: e.Field, Text: fmt.Sprintf("is ignored: %s (line %d)", why, e.Line)})
		return true
	}))
	unset := &v1alpha1.KubeProxyConfiguration{BindAddress: l.old.BindAddress}
	unset.SetDefaults()
	l.unset, _, _ = unset.Convert()
	l.unset.NodeIPOverride = nil
	l.old.SetDefaults()
	c, notes, faults := l.old.Convert()
	for _, n := range notes {
		n.File = doc.File()
		l.notes = append(l.notes, n)
	}
	l.add(doc, faults...)
	l.config = c
}

// unknownInV1alpha2 are the fields of a document that v1alpha2 does not have.
func unknownInV1alpha2(doc *manifest.Document) map[string]bool {
	unknown := map[string]bool{}
	for _, err := range doc.Into(v1alpha2.Default()) {
		if e, ok := errors.AsType[*manifest.Error](err); ok && errors.Is(err, manifest.ErrUnknownField) {
			unknown[e.Field] = true
		}
	}
	return unknown
}

// loadInstance adds the settings of one node.
func (l *loaded) loadInstance(doc *manifest.Document) {
	instance := &v1alpha2.KubeProxyInstanceConfiguration{}
	l.decoded(doc, doc.Into(instance))
	c := l.config.DeepCopy()
	for _, path := range instance.Apply(c) {
		was, is := l.config.Text(path), c.Text(path)
		other := l.by[path]
		if other == nil && was != l.unset.Text(path) {
			other = l.shared
		}
		if other != nil && is != was {
			l.add(doc, &config.FieldError{Path: path, Problem: fmt.Sprintf("is %s here, and %s in %s: keep one of them", is, was, other.Position(l.pathIn(other, path)))})
		}
		l.by[path] = doc
	}
	l.config = c
}

// resetInvalid gives the fields at fault their defaults, each if its value is from the document at fault.
func (l *loaded) resetInvalid() {
	for i, f := range l.faults {
		if l.in[i] == l.origin(f.Path) {
			l.config.ResetInvalid(l.faults[i:i+1], config.Default())
		}
	}
}

// origin returns the document that gives the field at path.
func (l *loaded) origin(path string) *manifest.Document {
	field, _, _ := strings.Cut(path, "[")
	return cmp.Or(l.by[field], l.shared)
}

// pathIn returns the path in doc of the field at path in v1alpha2.
func (l *loaded) pathIn(doc *manifest.Document, path string) string {
	switch {
	case doc != l.shared:
	case l.old != nil:
		return l.old.Path(path)
	case l.dataplane != nil:
		return l.dataplane.path(path)
	}
	return path
}

// report collects the faults of documents.
type report struct {
	errs []error
	// faults are in the documents in, item by item.
	faults []*config.FieldError
	in     []*manifest.Document
	// fatal is set by a fault that a default of its field cannot replace.
	fatal bool
}

// decoded adds what could not be decoded.
func (r *report) decoded(doc *manifest.Document, errs []error) {
	for _, err := range errs {
		r.errs = append(r.errs, err)
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok || e.Field == "" {
			r.fatal = true
			continue
		}
		r.faults, r.in = append(r.faults, &config.FieldError{Path: e.Field, Problem: e.Err.Error()}), append(r.in, doc)
	}
}

// maxFaults is how many faults are reported. With more of them it is no configuration.
const maxFaults = 100

// add adds faults at their positions. One that follows from a fault that is known of the same field is left out.
func (r *report) add(doc *manifest.Document, faults ...*config.FieldError) {
	for _, f := range faults {
		if r.known(doc, f.Path) {
			continue
		}
		if len(r.faults) >= maxFaults {
			if !slices.Contains(r.errs, errMoreFaults) {
				r.errs = append(r.errs, errMoreFaults)
			}
			r.fatal = true
			return
		}
		r.faults, r.in = append(r.faults, f), append(r.in, doc)
		r.errs = append(r.errs, doc.Error(f.Path, errors.New(f.Problem)))
	}
}

func (r *report) known(doc *manifest.Document, path string) bool {
	for i, k := range r.faults {
		rest, found := strings.CutPrefix(path, k.Path)
		if found && r.in[i] == doc && (rest == "" || rest[0] == '[' || rest[0] == '.') {
			return true
		}
	}
	return false
}

var errMoreFaults = errors.New("there are more errors: fix the others first")

// err joins the faults, in the order of the documents.
func (r *report) err(docs []*manifest.Document) error {
	slices.SortStableFunc(r.errs, func(a, b error) int {
		x, isX := errors.AsType[*manifest.Error](a)
		y, isY := errors.AsType[*manifest.Error](b)
		if !isX || !isY {
			return 0
		}
		return cmp.Or(fileOrder(docs, x.File)-fileOrder(docs, y.File), x.Line-y.Line, x.Column-y.Column)
	})
	return errors.Join(r.errs...)
}

func fileOrder(docs []*manifest.Document, name string) int {
	return slices.IndexFunc(docs, func(d *manifest.Document) bool { return d.File() == name })
}
