// Package configfile reads configuration files of every version, and writes those of the latest.
package configfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/field"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// Options say how a file is read.
type Options struct {
	// Name is the file's name, for positions in errors. Default "configuration".
	Name string
	// Platform is the platform that the configuration is for, named as in runtime.GOOS. Default: any.
	Platform string
}

// Load reads a configuration file of any version, with its defaults, and checks it. The notes say what the operator should
// know, but need not mend: fields that landed elsewhere or were dropped, and unknown fields of v1alpha1, which kube-proxy
// ignores as well.
//
// The error, if any, joins all faults of the file, each with its line, field and remedy. The configuration is returned beside it
// if the file is of a version that has ConfigHardFail, only single fields are at fault, and it is valid with their defaults in
// their place: see [config.Choose].
func Load(data []byte, o Options) (*config.Config, []config.Note, error) {
	if o.Name == "" {
		o.Name = "configuration"
	}
	doc, errs := manifest.Single(o.Name, data)
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	switch [2]string{doc.APIVersion, doc.Kind} {
	case [2]string{v1alpha1.APIVersion, v1alpha1.Kind}:
		return loadV1alpha1(doc, o)
	case [2]string{v1alpha2.APIVersion, v1alpha2.Kind}:
		return loadV1alpha2(doc, o)
	}
	return nil, nil, wrongKind(doc, v1alpha2.Kind, v1alpha1.APIVersion, v1alpha2.APIVersion)
}

// wrongKind says that doc is not of the kind in one of the versions.
func wrongKind(doc *manifest.Document, kind string, versions ...string) error {
	if doc.Kind != kind {
		return doc.Error("kind", fmt.Errorf("must be %s, got %.60q", kind, doc.Kind))
	}
	return doc.Error("apiVersion", fmt.Errorf("must be %s, got %.60q", strings.Join(versions, " or "), doc.APIVersion))
}

func loadV1alpha2(doc *manifest.Document, o Options) (*config.Config, []config.Note, error) {
	file := v1alpha2.Default()
	r := report{doc: doc}
	r.decoded(doc.Into(file))
	c, faults := file.Convert()
	r.add(faults)
	c.Mend(r.faults, config.Default())
	r.add(c.Validate(o.Platform))
	if len(r.errs) == 0 {
		return c, nil, nil
	}
	c.Mend(r.faults, config.Default())
	if r.unmendable || len(c.Validate(o.Platform)) > 0 {
		c = nil
	}
	return c, nil, r.err()
}

func loadV1alpha1(doc *manifest.Document, o Options) (*config.Config, []config.Note, error) {
	file := &v1alpha1.KubeProxyConfiguration{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind}
	var unknown []config.Note
	errs := slices.DeleteFunc(doc.Into(file), func(err error) bool {
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok || !errors.Is(err, manifest.ErrUnknownField) {
			return false
		}
		unknown = append(unknown, config.Note{Path: e.Field, Text: fmt.Sprintf("is ignored: %v (line %d)", e.Err, e.Line)})
		return true
	})
	r := report{doc: doc}
	r.decoded(errs)
	file.SetDefaults()
	c, notes, faults := file.Convert()
	r.add(faults)
	faults = c.Validate(o.Platform)
	for i, f := range faults {
		faults[i] = &field.Error{Path: file.Path(f.Path), Problem: f.Problem}
	}
	r.add(faults)
	if len(r.errs) > 0 {
		return nil, append(unknown, notes...), r.err()
	}
	return c, append(unknown, notes...), nil
}

// report collects the faults of a file.
type report struct {
	doc    *manifest.Document
	errs   []error
	faults []*field.Error
	// unmendable says that a fault is not that of a field which could have its default.
	unmendable bool
}

// decoded adds what could not be decoded.
func (r *report) decoded(errs []error) {
	for _, err := range errs {
		r.errs = append(r.errs, err)
		e, ok := errors.AsType[*manifest.Error](err)
		if !ok || e.Field == "" {
			r.unmendable = true
			continue
		}
		r.faults = append(r.faults, &field.Error{Path: e.Field, Problem: e.Err.Error()})
	}
}

// maxFaults is how many faults of a file are told. With more of them it is no configuration.
const maxFaults = 100

// add adds faults at their positions. One that follows from a fault that is known of the same field is left out.
func (r *report) add(faults []*field.Error) {
	for i, f := range faults {
		if len(r.faults) >= maxFaults {
			r.unmendable = true
			r.errs = append(r.errs, fmt.Errorf("there may be %d more faults: mend the others first", len(faults)-i))
			return
		}
		known := func(k *field.Error) bool {
			rest, found := strings.CutPrefix(f.Path, k.Path)
			return found && (rest == "" || rest[0] == '[' || rest[0] == '.')
		}
		if slices.ContainsFunc(r.faults, known) {
			continue
		}
		r.faults = append(r.faults, f)
		r.errs = append(r.errs, r.doc.Error(f.Path, errors.New(f.Problem)))
	}
}

// err joins the faults, in the order of the file.
func (r *report) err() error {
	slices.SortStableFunc(r.errs, func(a, b error) int {
		x, isX := errors.AsType[*manifest.Error](a)
		y, isY := errors.AsType[*manifest.Error](b)
		if !isX || !isY {
			return 0
		}
		return cmp.Or(x.Line-y.Line, x.Column-y.Column)
	})
	return errors.Join(r.errs...)
}

// Marshal returns the file of the latest version that says what c says. Every field is written.
func Marshal(c *config.Config) ([]byte, error) { return MarshalObject(v1alpha2.From(c)) }

// MarshalObject returns a configuration object of any version as YAML. The fields are in the order of their type.
func MarshalObject(object any) ([]byte, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	// JSON is YAML, and a node keeps the order of keys, which a map would not.
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	block(&n)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&n), enc.Close()); err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	return b.Bytes(), nil
}

// block has n written in the usual style of YAML, instead of that of JSON.
func block(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		block(c)
	}
}
