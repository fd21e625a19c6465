// Package objects is a source of one's own: it delivers the Services and EndpointSlices of one file of manifests, once. An agent that
// knows objects from elsewhere delivers them in the same way, and each change by another Update.
package objects

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// Source is a [model.Source] of objects that do not change.
type Source []model.Object

// Run delivers the objects, and waits until ctx ends.
func (s Source) Run(ctx context.Context, sink model.Sink) error {
	sink.Update(s, nil)
	sink.Complete()
	<-ctx.Done()
	return nil
}

// Read returns the objects of a file.
func Read(path string) (Source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var objects Source
	for docs := yaml.NewYAMLToJSONDecoder(f); ; {
		var doc json.RawMessage
		if err := docs.Decode(&doc); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		o, ok, err := convert(doc)
		if err != nil {
			return nil, err
		}
		if ok {
			objects = append(objects, o)
		}
	}
}

// convert returns the object of one document. ok is false for kinds that the example does not read.
func convert(doc []byte) (o model.Object, ok bool, err error) {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(doc, &kind); err != nil {
		return nil, false, err
	}
	var obj any
	switch kind.Kind {
	case "Service":
		obj = new(corev1.Service)
	case "EndpointSlice":
		obj = new(discoveryv1.EndpointSlice)
	default:
		return nil, false, nil
	}
	if err := json.Unmarshal(doc, obj); err != nil {
		return nil, false, err
	}
	return kubeconv.Object(obj)
}
