// Package kubeconv turns Kubernetes API objects into the objects of package model.
//
// It fills in the API server's defaults, parses addresses and checks the form of its input, so that later code need not
// do so. It accepts any input, including input that no API server would store. It returns one [FieldError] for each
// fault, twenty at most, joined. With an error, the object is nil: keep its previous version. The error does not name the object. The result
// shares no memory with the input.
//
// Addresses are parsed by Kubernetes' traditional rules. IPv4 addresses may have leading zeros, which are decimal
// (010.0.0.1 is 10.0.0.1), and CIDRs may have bits set after the prefix. Newer API servers refuse such objects, but
// existing clusters may still have them. IPv4-mapped IPv6 addresses become IPv4.
package kubeconv

import (
	"errors"
	"fmt"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/switchyard-net/switchyard/model"
)

// Object converts obj if it is a pointer to one of the five kinds that model knows. For any other ok is false.
func Object(obj any) (o model.Object, ok bool, err error) {
	switch obj := obj.(type) {
	case *corev1.Service:
		return result(Service(obj))
	case *discoveryv1.EndpointSlice:
		return result(EndpointSlice(obj))
	case *corev1.Node:
		return result(Node(obj))
	case *corev1.Namespace:
		return result(Namespace(obj))
	case *networkingv1.ServiceCIDR:
		return result(ServiceCIDR(obj))
	}
	return nil, false, nil
}

// result keeps a nil pointer from becoming an Object that is not nil.
func result[T model.Object](o T, err error) (model.Object, bool, error) {
	if err != nil {
		return nil, true, err
	}
	return o, true, nil
}

// FieldError is a fault of one field of an object.
type FieldError struct {
	// Path is the field, for example spec.ports[0].port.
	Path string
	// Value is the value of the field, nil if it has none. A long text is cut to its beginning.
	Value any
	// Problem describes the fault, worded to follow the path.
	Problem string
}

// Error renders the path and [FieldError.Fault].
func (e *FieldError) Error() string { return e.Path + ": " + e.Fault() }

// Fault is the problem and the value, without the path.
func (e *FieldError) Fault() string {
	switch v := e.Value.(type) {
	case nil:
		return e.Problem
	case string:
		return fmt.Sprintf("%s, got %q", e.Problem, v)
	default:
		return fmt.Sprintf("%s, got %v", e.Problem, v)
	}
}

var errNil = errors.New("there is no object (nil)")

// faults collects the errors of one object.
type faults []error

// A log gains nothing from the thousandth fault of an object, nor from a megabyte of text in one.
const maxFaults, maxValue = 20, 100

func (f *faults) add(path string, value any, problem string) {
	if len(*f) == maxFaults {
		*f = append(*f, errMore)
	}
	if len(*f) > maxFaults {
		return
	}
	if text, ok := value.(string); ok {
		value = shorten(text)
	}
	*f = append(*f, &FieldError{path, value, problem})
}

var errMore = errors.New("and more errors of this kind: fix these first")

// shorten returns a copy of text, or of its beginning if it is too long for an error.
func shorten(text string) string {
	if len(text) <= maxValue {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(strings.Clone(text[:maxValue]), "") + "..."
}

// err returns the faults joined, or nil if there are none.
func (f faults) err() error { return errors.Join(f...) }

// The longest names of objects, and the longest of namespaces, ports and labels' values, that the API server takes.
const maxName, maxLabel = 253, 63

// name checks the name of an object and returns a copy. Few objects have the same.
func (f *faults) name(name string) string {
	if name == "" {
		f.add("metadata.name", nil, "is missing")
	}
	if !f.fits("metadata.name", name, maxName) {
		return ""
	}
	return strings.Clone(name)
}

// text checks the length of a text that many objects have, and returns it. Nothing else about it matters here.
func (f *faults) text(path, s string, longest int) string {
	if !f.fits(path, s, longest) {
		return ""
	}
	return intern(s)
}

func (f *faults) fits(path, s string, longest int) bool {
	if len(s) > longest {
		f.add(path, s, fmt.Sprintf("must be no longer than %d bytes", longest))
		return false
	}
	return true
}

// label checks the value of a label and returns it, empty if there is none.
func (f *faults) label(labels map[string]string, key string) string {
	value := labels[key]
	if value == "" { // as nearly always
		return ""
	}
	return f.text("metadata.labels["+key+"]", value, maxLabel)
}

// serviceName returns a copy of the label of an EndpointSlice that names its Service.
func (f *faults) serviceName(labels map[string]string) string {
	name := labels[discoveryv1.LabelServiceName]
	if !f.fits("metadata.labels["+discoveryv1.LabelServiceName+"]", name, maxLabel) {
		return ""
	}
	return strings.Clone(name)
}

// intern returns a copy of s that equal strings share, so that s, which may be part of something large, can be freed. A string that
// nothing shares takes several times the memory of a copy.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
