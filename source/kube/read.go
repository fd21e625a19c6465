package kube

import (
	"context"
	"errors"
	"fmt"
	"io"

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

// Reader reads objects once, unchanged from the API server, for tools that explain how a service proxy uses them.
type Reader struct {
	clients clients
	decoder runtime.Decoder
}

// NewReader returns a reader for the API server. It does not talk to it yet.
func NewReader(config *rest.Config) (*Reader, error) {
	types, err := scheme()
	if err != nil {
		return nil, fmt.Errorf("register the types of the API: %w", err)
	}
	codecs := serializer.NewCodecFactory(types)
	made, err := newClients(config, types, codecs, nil)
	if err != nil {
		return nil, err
	}
	return &Reader{made, codecs.UniversalDeserializer()}, nil
}

// Routing returns all Services, EndpointSlices, Nodes, Namespaces and ServiceCIDRs. An API server that does not know the last, or does
// not let them or Namespaces be listed, has none.
func (r *Reader) Routing(ctx context.Context) ([]runtime.Object, error) {
	var all []runtime.Object
	for _, k := range []struct {
		version  schema.GroupVersion
		plural   string
		kind     string
		needless bool
	}{
		{corev1.SchemeGroupVersion, "namespaces", "Namespace", true},
		{corev1.SchemeGroupVersion, "nodes", "Node", false},
		{networkingv1.SchemeGroupVersion, "servicecidrs", "ServiceCIDR", true},
		{corev1.SchemeGroupVersion, "services", "Service", false},
		{discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice", false},
	} {
		objects, err := r.list(ctx, k.version, k.plural, "", "", k.kind)
		if err != nil && !(k.needless && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err))) {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// Pods returns the Pods of a namespace, or of all namespaces if it is empty, that a field selector matches; empty for all.
func (r *Reader) Pods(ctx context.Context, namespace, fields string) ([]runtime.Object, error) {
	return r.list(ctx, corev1.SchemeGroupVersion, "pods", namespace, fields, "Pod")
}

// Services returns the Services of a namespace.
func (r *Reader) Services(ctx context.Context, namespace string) ([]runtime.Object, error) {
	return r.list(ctx, corev1.SchemeGroupVersion, "services", namespace, "", "Service")
}

// Namespaces returns all Namespaces.
func (r *Reader) Namespaces(ctx context.Context) ([]runtime.Object, error) {
	return r.list(ctx, corev1.SchemeGroupVersion, "namespaces", "", "", "Namespace")
}

// Nodes returns all Nodes.
func (r *Reader) Nodes(ctx context.Context) ([]runtime.Object, error) {
	return r.list(ctx, corev1.SchemeGroupVersion, "nodes", "", "", "Node")
}

// list returns all objects of a kind, whose lists are as large as they may be for a service proxy.
func (r *Reader) list(ctx context.Context, version schema.GroupVersion, plural, namespace, fields, kind string) ([]runtime.Object, error) {
	client, ok := r.clients[version]
	if !ok {
		return nil, fmt.Errorf("list %s: there is no client for %v", plural, version)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listTime, fmt.Errorf("it has not ended after %v", listTime))
	defer cancel()
	// Version 0 reads from the API server's memory.
	options := metav1.ListOptions{FieldSelector: fields, ResourceVersion: "0"}
	request := client.Get().Resource(plural).VersionedParams(&options, metav1.ParameterCodec)
	if namespace != "" {
		request = request.Namespace(namespace)
	}
	objects, err := r.read(ctx, request, version.WithKind(kind+"List"))
	if err != nil {
		err = late(ctx, err)
		if apierrors.IsForbidden(err) {
			err = errors.Join(err, fmt.Errorf(`a role with {apiGroups: [%q], resources: [%q], verbs: ["list"]} allows it`, version.Group, plural))
		}
		return nil, fmt.Errorf("list %s: %w", plural, err)
	}
	return objects, nil
}

// read returns the objects of a list, which is read as a whole.
func (r *Reader) read(ctx context.Context, request *rest.Request, want schema.GroupVersionKind) ([]runtime.Object, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	const most = maxList / textCost
	text, err := io.ReadAll(io.LimitReader(body, most+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > most:
		return nil, fmt.Errorf("it is larger than %d MiB", most>>20)
	}
	list, got, err := r.decoder.Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	if *got != want {
		return nil, fmt.Errorf("the API server sent a %s of %s instead of a %s of %s", got.Kind, got.GroupVersion(), want.Kind, want.GroupVersion())
	}
	return meta.ExtractList(list)
}
