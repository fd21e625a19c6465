package v1alpha2

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the version of the files.
var GroupVersion = schema.FromAPIVersionAndKind(APIVersion, "").GroupVersion()

// AddToScheme registers the kinds, for tools that read and write files with the machinery of Kubernetes.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(GroupVersion.WithKind(Kind), &Object{})
	s.AddKnownTypeWithName(GroupVersion.WithKind(InstanceKind), &InstanceObject{})
	return nil
}

// Object is a [KubeProxyConfiguration] as an object of Kubernetes. It is decoded over the defaults, as they are distinguished from zero
// there, and unknown fields are errors.
type Object struct{ KubeProxyConfiguration }

// InstanceObject is a [KubeProxyInstanceConfiguration] as an object of Kubernetes. Unknown fields are errors.
type InstanceObject struct{ KubeProxyInstanceConfiguration }

// UnmarshalJSON reads the file over the defaults.
func (o *Object) UnmarshalJSON(data []byte) error {
	o.KubeProxyConfiguration = *Default()
	return strictly(data, &o.KubeProxyConfiguration)
}

// UnmarshalJSON reads the file.
func (o *InstanceObject) UnmarshalJSON(data []byte) error {
	o.KubeProxyInstanceConfiguration = KubeProxyInstanceConfiguration{}
	return strictly(data, &o.KubeProxyInstanceConfiguration)
}

func strictly(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// GetObjectKind implements [runtime.Object].
func (o *Object) GetObjectKind() schema.ObjectKind { return kind{&o.APIVersion, &o.Kind} }

// GetObjectKind implements [runtime.Object].
func (o *InstanceObject) GetObjectKind() schema.ObjectKind { return kind{&o.APIVersion, &o.Kind} }

// DeepCopyObject implements [runtime.Object].
func (o *Object) DeepCopyObject() runtime.Object { return &Object{*o.DeepCopy()} }

// DeepCopyObject implements [runtime.Object].
func (o *InstanceObject) DeepCopyObject() runtime.Object { return &InstanceObject{*o.DeepCopy()} }

// kind is the apiVersion and the kind of an object.
type kind struct{ apiVersion, kind *string }

func (k kind) SetGroupVersionKind(gvk schema.GroupVersionKind) {
	*k.apiVersion, *k.kind = gvk.ToAPIVersionAndKind()
}

func (k kind) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(*k.apiVersion, *k.kind)
}
