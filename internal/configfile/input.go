package configfile

import (
	"fmt"
	"slices"
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
		return wrongKind(in.other, o.kinds(), v1alpha1.APIVersion, v1alpha2.APIVersion)
	}
	return &manifest.Error{File: name, Err: fmt.Errorf("has no %s: give that one, too, in this file or in another one", strings.Join(o.kinds(), " or "))}
}

// sort puts a document where it belongs.
func (in *input) sort(doc *manifest.Document, o Options) error {
	isV1, isV2 := doc.APIVersion == v1alpha1.APIVersion, doc.APIVersion == v1alpha2.APIVersion
	switch {
	case doc.Kind == v1alpha2.Kind && (isV1 || isV2):
		return in.share(doc)
	case slices.Contains(o.Dataplanes, doc.Kind) && doc.APIVersion == SectionAPIVersion:
		return in.share(doc)
	case slices.Contains(o.Dataplanes, doc.Kind):
		return wrongKind(doc, []string{doc.Kind}, SectionAPIVersion)
	case doc.Kind == v1alpha2.InstanceKind && isV2:
		in.instances = append(in.instances, doc)
	case doc.Kind == v1alpha2.InstanceKind:
		return wrongKind(doc, []string{v1alpha2.InstanceKind}, v1alpha2.APIVersion)
	case !o.SkipOthers || doc.Kind == v1alpha2.Kind || strings.HasPrefix(doc.APIVersion, group) || doc.APIVersion == SectionAPIVersion:
		return wrongKind(doc, o.kinds(), v1alpha1.APIVersion, v1alpha2.APIVersion)
	case doc.Kind == "ConfigMap" && doc.APIVersion == "v1":
		return in.configMap(doc, o)
	default:
		in.skip(doc)
	}
	return nil
}

// share takes the document that nodes may share.
func (in *input) share(doc *manifest.Document) error {
	switch {
	case in.shared == nil:
		in.shared = doc
		return nil
	case in.shared.Kind != doc.Kind:
		return doc.Error("", fmt.Errorf("is a second configuration, after the %s in %s: keep one", in.shared.Kind, in.shared.Position("")))
	}
	return doc.Error("", fmt.Errorf("is a second %s, after the one in %s: keep one; settings of one node belong into a %s",
		doc.Kind, in.shared.Position(""), v1alpha2.InstanceKind))
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
		if !strings.Contains(text.Data, group) && (len(o.Dataplanes) == 0 || !strings.Contains(text.Data, SectionAPIVersion)) {
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

// kinds are the kinds of the document that nodes may share.
func (o Options) kinds() []string { return append([]string{v1alpha2.Kind}, o.Dataplanes...) }

// wrongKind returns the error that doc is not of one of the kinds in one of the versions.
func wrongKind(doc *manifest.Document, kinds []string, versions ...string) error {
	if !slices.Contains(kinds, doc.Kind) {
		text, last := "", len(kinds)-1
		if last > 0 {
			text = strings.Join(kinds[:last], ", ") + " or "
		}
		if f := dataplaneFileOf(doc); f != nil {
			return doc.Error("kind", fmt.Errorf("must be %s, got %s, which configures a process that only programs mode %s: "+
				"its fields are in the section %s of a KubeProxyConfiguration", text+kinds[last], doc.Kind, f.mode, f.section))
		}
		return doc.Error("kind", fmt.Errorf("must be %s, got %.60q", text+kinds[last], doc.Kind))
	}
	return doc.Error("apiVersion", fmt.Errorf("must be %s, got %.60q", strings.Join(versions, " or "), doc.APIVersion))
}
