package configfile

import (
	"errors"

	"github.com/switchyard-net/switchyard/field"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// SectionAPIVersion is the version of files that hold the section of one dataplane.
const SectionAPIVersion = "switchyard.net/v1alpha1"

// Section is the configuration of one dataplane, such as nftables.Config.
type Section interface {
	// Kind is the kind of a file that holds the section alone, such as NFTablesConfiguration.
	Kind() string
	// Validate returns all faults of the section at path.
	Validate(path string) []*field.Error
}

// LoadSection reads the file of a dataplane that runs on its own: apiVersion [SectionAPIVersion], the kind of the section, and
// beside them the same fields that the section has within the whole configuration. Those that the file does not have keep the
// values of defaults. The error joins all faults of the file; the section is of no use then.
func LoadSection[T Section](name string, data []byte, defaults T) (T, error) {
	doc, errs := manifest.Single(name, data)
	if len(errs) > 0 {
		return defaults, errors.Join(errs...)
	}
	if doc.Kind != defaults.Kind() || doc.APIVersion != SectionAPIVersion {
		return defaults, wrongKind(doc, []string{defaults.Kind()}, SectionAPIVersion)
	}
	section := defaults
	var r report
	r.decoded(doc, doc.Into(&section))
	r.add(doc, section.Validate("")...)
	return section, r.err([]*manifest.Document{doc})
}
