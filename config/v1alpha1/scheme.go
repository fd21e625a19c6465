package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the version of the files.
var GroupVersion = schema.FromAPIVersionAndKind(APIVersion, "").GroupVersion()

// AddToScheme registers the kind, with its defaults, for tools that read and write files with the machinery of Kubernetes.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(GroupVersion.WithKind(Kind), &Object{})
	s.AddTypeDefaultingFunc(&Object{}, func(o any) { o.(*Object).SetDefaults() })
	return nil
}

// Object is a [KubeProxyConfiguration] as an object of Kubernetes.
type Object struct{ KubeProxyConfiguration }

// GetObjectKind implements [runtime.Object].
func (o *Object) GetObjectKind() schema.ObjectKind { return kind{&o.APIVersion, &o.Kind} }

// DeepCopyObject implements [runtime.Object].
func (o *Object) DeepCopyObject() runtime.Object { return &Object{*o.DeepCopy()} }

// kind is the apiVersion and the kind of an object.
type kind struct{ apiVersion, kind *string }

func (k kind) SetGroupVersionKind(gvk schema.GroupVersionKind) {
	*k.apiVersion, *k.kind = gvk.ToAPIVersionAndKind()
}

func (k kind) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(*k.apiVersion, *k.kind)
}
