package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Reader reads objects once, as the API server has them, for tools that explain what a service proxy does with them.
type Reader struct{ clients clients }

// NewReader returns a reader for the API server. It does not talk to it yet.
func NewReader(config *rest.Config) (*Reader, error) {
	types, err := scheme()
	if err != nil {
		return nil, fmt.Errorf("register the types of the API: %w", err)
	}
	made, err := newClients(config, types, serializer.NewCodecFactory(types))
	if err != nil {
		return nil, err
	}
	return &Reader{made}, nil
}

// Routing returns all Services, EndpointSlices, Nodes, Namespaces and ServiceCIDRs. An API server that does not know the last, or does
// not let them or Namespaces be listed, has none.
func (r *Reader) Routing(ctx context.Context) ([]runtime.Object, error) {
	var all []runtime.Object
	for _, k := range []struct {
		version  schema.GroupVersion
		plural   string
		list     runtime.Object
		needless bool
	}{
		{corev1.SchemeGroupVersion, "namespaces", &corev1.NamespaceList{}, true},
		{corev1.SchemeGroupVersion, "nodes", &corev1.NodeList{}, false},
		{networkingv1.SchemeGroupVersion, "servicecidrs", &networkingv1.ServiceCIDRList{}, true},
		{corev1.SchemeGroupVersion, "services", &corev1.ServiceList{}, false},
		{discoveryv1.SchemeGroupVersion, "endpointslices", &discoveryv1.EndpointSliceList{}, false},
	} {
		objects, err := r.list(ctx, k.version, k.plural, "", "", k.list)
		if err != nil && !(k.needless && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err))) {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// Pods returns the Pods of a namespace, or of all namespaces if it is empty, that a field selector matches; empty for all.
func (r *Reader) Pods(ctx context.Context, namespace, fields string) ([]runtime.Object, error) {
	return r.list(ctx, corev1.SchemeGroupVersion, "pods", namespace, fields, &corev1.PodList{})
}

func (r *Reader) list(ctx context.Context, version schema.GroupVersion, plural, namespace, fields string, into runtime.Object) ([]runtime.Object, error) {
	client, ok := r.clients[version]
	if !ok {
		return nil, fmt.Errorf("list %s: there is no client for %v", plural, version)
	}
	// Version 0 is what the API server has in memory.
	options := metav1.ListOptions{FieldSelector: fields, ResourceVersion: "0"}
	request := client.Get().Resource(plural).VersionedParams(&options, metav1.ParameterCodec)
	if namespace != "" {
		request = request.Namespace(namespace)
	}
	if err := request.Do(ctx).Into(into); err != nil {
		if apierrors.IsForbidden(err) {
			err = errors.Join(err, fmt.Errorf(`a role with {apiGroups: [%q], resources: [%q], verbs: ["list"]} allows it`, version.Group, plural))
		}
		return nil, fmt.Errorf("list %s: %w", plural, err)
	}
	return meta.ExtractList(into)
}
