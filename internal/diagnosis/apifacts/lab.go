package apifacts

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/manifest"
)

// The annotations of the objects that the lab hands to 'switchyard explain --lab'.
const (
	// Place has the file, line and column of an object.
	Place = "switchyard.net/place"
	// NotRun is on workloads that the lab cannot run.
	NotRun = "switchyard.net/not-run"
)

// LeftOut is the kind of an object that the lab hands over if it left out something that may have workloads.
var LeftOut = schema.GroupVersionKind{Group: "switchyard.net", Version: "v1", Kind: "LeftOut"}

// FromLab reads the objects that the lab made of manifests. The facts have the places of the objects and the custom resources; the caller adds the
// objects with [Add]. The errors are about objects that are left out.
func FromLab(data []byte) (*diagnosis.Facts, []runtime.Object, []error) {
	content := manifest.Read("lab", data)
	f := New()
	f.Whole = true
	for _, s := range content.Skipped {
		AddSkipped(f, s)
	}
	places := make(map[diagnosis.Object]string)
	f.Place = func(o diagnosis.Object, _ string) string { return places[o] }
	var objects []runtime.Object
	for _, o := range append(content.Objects, content.References...) {
		places[ObjectOf(o.Object)] = o.Object.(metav1.Object).GetAnnotations()[Place]
		objects = append(objects, o.Object)
	}
	return f, objects, content.Errs
}
