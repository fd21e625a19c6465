package configfile

import (
	"fmt"
	"strings"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// group begins the apiVersion of every document that is meant for this program.
const group = "kubeproxy.config.k8s.io/"

// input is the documents of a configuration.
type input struct {
	shared    *manifest.Document
	instances []*manifest.Document
	// other is the first document that is skipped.
	other *manifest.Document
	notes []config.Note
}

// documents returns the documents in the order in which faults are reported.
func (in *input) documents() []*manifest.Document {
	return append([]*manifest.Document{in.shared}, in.instances...)
}

// read finds the documents in files.
func (in *input) read(files []File, o Options) error {
	name := "configuration"
	for i, f := range files {
		if i == 0 {
			name = f.Name
		}
		docs, err := manifest.Documents(f.Name, f.Data)
		if err != nil {
			return err
		}
		for _, doc := range docs {
			if err := in.sort(doc, o); err != nil {
				return err
			}
		}
	}
	switch {
	case in.shared != nil:
		return nil
	case in.other != nil && len(in.instances) == 0:
		return wrongKind(in.other, v1alpha2.Kind, v1alpha1.APIVersion, v1alpha2.APIVersion)
	}
	return &manifest.Error{File: name, Err: fmt.Errorf("has no %s: give that one, too, in this file or in another one", v1alpha2.Kind)}
}

// sort puts a document where it belongs.
func (in *input) sort(doc *manifest.Document, o Options) error {
	isV1, isV2 := doc.APIVersion == v1alpha1.APIVersion, doc.APIVersion == v1alpha2.APIVersion
	switch {
	case doc.Kind == v1alpha2.Kind && (isV1 || isV2):
		if in.shared != nil {
			return doc.Error("", fmt.Errorf("is a second %s, after the one in %s: keep one; settings of one node belong into a %s",
				doc.Kind, in.shared.Position(""), v1alpha2.InstanceKind))
		}
		in.shared = doc
	case doc.Kind == v1alpha2.InstanceKind && isV2:
		in.instances = append(in.instances, doc)
	case doc.Kind == v1alpha2.InstanceKind:
		return wrongKind(doc, v1alpha2.InstanceKind, v1alpha2.APIVersion)
	case !o.SkipOthers || doc.Kind == v1alpha2.Kind || strings.HasPrefix(doc.APIVersion, group):
		return wrongKind(doc, v1alpha2.Kind, v1alpha1.APIVersion, v1alpha2.APIVersion)
	case doc.Kind == "ConfigMap" && doc.APIVersion == "v1":
		return in.configMap(doc, o)
	default:
		in.skip(doc)
	}
	return nil
}

// maxNotes is how many skipped documents are named.
const maxNotes = 20

func (in *input) skip(doc *manifest.Document) {
	if in.other == nil {
		in.other = doc
	}
	if len(in.notes) < maxNotes {
		in.notes = append(in.notes, config.Note{File: doc.File(), Path: fmt.Sprintf("%.60s", doc.Kind), Text: "is skipped: it is no configuration of the service proxy"})
	}
}

// configMap takes the texts of a ConfigMap that are meant for this program.
func (in *input) configMap(doc *manifest.Document, o Options) error {
	found := false
	for _, text := range doc.Texts("data") {
		if !strings.Contains(text.Data, group) {
			continue
		}
		found = true
		docs, err := text.Documents()
		if err != nil {
			return err
		}
		for _, d := range docs {
			if d.Kind == doc.Kind { // a ConfigMap in a ConfigMap
				in.skip(d)
			} else if err := in.sort(d, o); err != nil {
				return err
			}
		}
	}
	if !found {
		in.skip(doc)
	}
	return nil
}

// wrongKind returns the error that doc is not of the kind in one of the versions.
func wrongKind(doc *manifest.Document, kind string, versions ...string) error {
	if doc.Kind != kind {
		return doc.Error("kind", fmt.Errorf("must be %s, got %.60q", kind, doc.Kind))
	}
	return doc.Error("apiVersion", fmt.Errorf("must be %s, got %.60q", strings.Join(versions, " or "), doc.APIVersion))
}
