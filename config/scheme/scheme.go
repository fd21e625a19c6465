// Package scheme registers the configuration files of every version with the machinery of Kubernetes, for tools that read and
// write configuration files of many components with it.
//
// Only this package depends on that machinery. Files are read more thoroughly, with positions of all faults, and converted by
// package configfile.
package scheme

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
)

// The versions of the files.
var (
	V1alpha1 = schema.FromAPIVersionAndKind(v1alpha1.APIVersion, "").GroupVersion()
	V1alpha2 = schema.FromAPIVersionAndKind(v1alpha2.APIVersion, "").GroupVersion()
)

// AddToScheme registers the kinds of all versions, and their defaults.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(V1alpha1.WithKind(v1alpha1.Kind), &ConfigurationV1alpha1{})
	s.AddKnownTypeWithName(V1alpha2.WithKind(v1alpha2.Kind), &ConfigurationV1alpha2{})
	s.AddKnownTypeWithName(V1alpha2.WithKind(v1alpha2.InstanceKind), &InstanceConfigurationV1alpha2{})
	s.AddTypeDefaultingFunc(&ConfigurationV1alpha1{}, func(o any) { o.(*ConfigurationV1alpha1).SetDefaults() })
	return nil
}

// ConfigurationV1alpha1 is a [v1alpha1.KubeProxyConfiguration] as an object of Kubernetes.
type ConfigurationV1alpha1 struct {
	v1alpha1.KubeProxyConfiguration
}

// ConfigurationV1alpha2 is a [v1alpha2.KubeProxyConfiguration] as an object of Kubernetes. It is decoded over the defaults, as
// they are distinguished from zero there, and unknown fields are errors.
type ConfigurationV1alpha2 struct {
	v1alpha2.KubeProxyConfiguration
}

// InstanceConfigurationV1alpha2 is a [v1alpha2.KubeProxyInstanceConfiguration] as an object of Kubernetes. Unknown fields are errors.
type InstanceConfigurationV1alpha2 struct {
	v1alpha2.KubeProxyInstanceConfiguration
}

// UnmarshalJSON reads the file over the defaults.
func (o *ConfigurationV1alpha2) UnmarshalJSON(data []byte) error {
	o.KubeProxyConfiguration = *v1alpha2.Default()
	return strictly(data, &o.KubeProxyConfiguration)
}

// UnmarshalJSON reads the file.
func (o *InstanceConfigurationV1alpha2) UnmarshalJSON(data []byte) error {
	o.KubeProxyInstanceConfiguration = v1alpha2.KubeProxyInstanceConfiguration{}
	return strictly(data, &o.KubeProxyInstanceConfiguration)
}

func strictly(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// GetObjectKind implements [runtime.Object].
func (o *ConfigurationV1alpha1) GetObjectKind() schema.ObjectKind {
	return kind{&o.APIVersion, &o.Kind}
}

// GetObjectKind implements [runtime.Object].
func (o *ConfigurationV1alpha2) GetObjectKind() schema.ObjectKind {
	return kind{&o.APIVersion, &o.Kind}
}

// GetObjectKind implements [runtime.Object].
func (o *InstanceConfigurationV1alpha2) GetObjectKind() schema.ObjectKind {
	return kind{&o.APIVersion, &o.Kind}
}

// DeepCopyObject implements [runtime.Object].
func (o *ConfigurationV1alpha1) DeepCopyObject() runtime.Object {
	return &ConfigurationV1alpha1{*o.KubeProxyConfiguration.DeepCopy()}
}

// DeepCopyObject implements [runtime.Object].
func (o *ConfigurationV1alpha2) DeepCopyObject() runtime.Object {
	return &ConfigurationV1alpha2{*o.KubeProxyConfiguration.DeepCopy()}
}

// DeepCopyObject implements [runtime.Object].
func (o *InstanceConfigurationV1alpha2) DeepCopyObject() runtime.Object {
	return &InstanceConfigurationV1alpha2{*o.KubeProxyInstanceConfiguration.DeepCopy()}
}

// kind is the apiVersion and the kind of an object.
type kind struct{ apiVersion, kind *string }

func (k kind) SetGroupVersionKind(gvk schema.GroupVersionKind) {
	*k.apiVersion, *k.kind = gvk.ToAPIVersionAndKind()
}

func (k kind) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(*k.apiVersion, *k.kind)
}
