package apicluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// systemNamespaces are there from the start, and stay.
var systemNamespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

// Client writes objects to an API server.
type Client struct{ api kubernetes.Interface }

// NewClient returns a client. The config should have no rate limit.
func NewClient(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{api}, nil
}

// Kubernetes returns the client that this one is made of.
func (c *Client) Kubernetes() kubernetes.Interface { return c.api }

// Set creates or changes an object, and returns what the API server made of it. An object that cannot be changed into the new
// one, such as a service with another cluster IP, is deleted and created again. The error is one that apierrors.IsInvalid
// knows if the API server does not admit such an object; then the object may be gone.
func (c *Client) Set(ctx context.Context, obj model.Object) (model.Object, error) {
	var made any
	var err error
	switch obj := obj.(type) {
	case *model.Service:
		made, err = c.setService(ctx, Service(obj))
	case *model.EndpointSlice:
		made, err = set(ctx, c.api.DiscoveryV1().EndpointSlices(obj.Namespace), EndpointSlice(obj))
	case *model.Node:
		made, err = c.setNode(ctx, Node(obj))
	case *model.Namespace:
		made, err = set(ctx, c.api.CoreV1().Namespaces(), Namespace(obj))
	case *model.ServiceCIDR:
		made, err = set(ctx, c.api.NetworkingV1().ServiceCIDRs(), ServiceCIDR(obj))
	}
	if err != nil {
		return nil, fmt.Errorf("set %v: %w", obj.Ref(), err)
	}
	object, _, err := kubeconv.Object(made)
	return object, err
}

// CreateAll creates Services, EndpointSlices and Nodes that do not exist yet, many at a time and in no order. It returns the first error.
func (c *Client) CreateAll(ctx context.Context, objects []model.Object) error {
	const writers = 16
	queue := make(chan model.Object)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for obj := range queue {
				if err := again(func() error { return c.create(ctx, obj) }); err != nil {
					cancel(fmt.Errorf("create %v: %w", obj.Ref(), err))
				}
			}
		})
	}
	for _, obj := range objects {
		select {
		case queue <- obj:
		case <-ctx.Done():
		}
	}
	close(queue)
	wg.Wait()
	return context.Cause(ctx)
}

func (c *Client) create(ctx context.Context, obj model.Object) (err error) {
	switch obj := obj.(type) {
	case *model.Service:
		_, err = c.api.CoreV1().Services(obj.Name.Namespace).Create(ctx, Service(obj), metav1.CreateOptions{})
	case *model.EndpointSlice:
		_, err = c.api.DiscoveryV1().EndpointSlices(obj.Namespace).Create(ctx, EndpointSlice(obj), metav1.CreateOptions{})
	case *model.Node:
		_, err = c.api.CoreV1().Nodes().Create(ctx, Node(obj), metav1.CreateOptions{})
	default:
		err = errors.ErrUnsupported
	}
	return err
}

// again repeats the creation of an object if the server is too busy. An attempt that it has given up may have
// succeeded all the same.
func again(create func() error) (err error) {
	const attempts = 10
	for i := range attempts {
		err = create()
		switch {
		case i > 0 && apierrors.IsAlreadyExists(err):
			return nil
		case !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err):
			return err
		}
	}
	return err
}

// Replace replaces a slice that exists, in one request.
func (c *Client) Replace(ctx context.Context, slice *model.EndpointSlice) error {
	_, err := c.api.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, EndpointSlice(slice), metav1.UpdateOptions{})
	return err
}

// resource is a client for one kind.
type resource[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// set creates or updates an object, or deletes and creates it.
func set[T metav1.Object](ctx context.Context, r resource[T], obj T) (T, error) {
	old, err := r.Get(ctx, obj.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return r.Create(ctx, obj, metav1.CreateOptions{})
	}
	if err != nil {
		return old, err
	}
	obj.SetResourceVersion(old.GetResourceVersion())
	updated, err := r.Update(ctx, obj, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) {
		return updated, err
	}
	if err := r.Delete(ctx, obj.GetName(), metav1.DeleteOptions{}); err != nil {
		return old, err
	}
	obj.SetResourceVersion("")
	return r.Create(ctx, obj, metav1.CreateOptions{})
}

// setService also sets the status.
func (c *Client) setService(ctx context.Context, obj *corev1.Service) (*corev1.Service, error) {
	services := c.api.CoreV1().Services(obj.Namespace)
	status := obj.Status
	made, err := set(ctx, services, obj)
	if err != nil || equality.Semantic.DeepEqual(made.Status.LoadBalancer, status.LoadBalancer) {
		return made, err
	}
	made.Status.LoadBalancer = status.LoadBalancer
	return services.UpdateStatus(ctx, made, metav1.UpdateOptions{})
}

// setNode also sets the status.
func (c *Client) setNode(ctx context.Context, obj *corev1.Node) (*corev1.Node, error) {
	nodes := c.api.CoreV1().Nodes()
	status := obj.Status
	made, err := set(ctx, nodes, obj)
	if err != nil || equality.Semantic.DeepEqual(made.Status.Addresses, status.Addresses) && equality.Semantic.DeepEqual(made.Status.Conditions, status.Conditions) {
		return made, err
	}
	made.Status.Addresses, made.Status.Conditions = status.Addresses, status.Conditions
	return nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
}

// Delete removes an object, if it is there.
func (c *Client) Delete(ctx context.Context, ref model.Ref) error {
	var err error
	switch ref.Kind {
	case model.KindService:
		err = c.api.CoreV1().Services(ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{})
	case model.KindEndpointSlice:
		err = c.api.DiscoveryV1().EndpointSlices(ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{})
	case model.KindNode:
		err = c.api.CoreV1().Nodes().Delete(ctx, ref.Name, metav1.DeleteOptions{})
	case model.KindNamespace:
		err = c.deleteNamespace(ctx, ref.Name)
	case model.KindServiceCIDR:
		err = c.api.NetworkingV1().ServiceCIDRs().Delete(ctx, ref.Name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %v: %w", ref, err)
	}
	return nil
}

// deleteNamespace does what the namespace controller would: nothing else waits for the namespace to be empty.
func (c *Client) deleteNamespace(ctx context.Context, name string) error {
	namespaces := c.api.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ns, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ns.Spec.Finalizers = nil
	_, err = namespaces.Finalize(ctx, ns, metav1.UpdateOptions{})
	return err
}

// Wipe deletes all objects that the API server has not made for itself.
func (c *Client) Wipe(ctx context.Context) error {
	var refs []model.Ref
	add := func(kind model.Kind, meta metav1.Object) {
		refs = append(refs, model.Ref{Kind: kind, Namespace: meta.GetNamespace(), Name: meta.GetName()})
	}
	lists := []func() error{
		each(ctx, c.api.CoreV1().Services("").List, func(l *corev1.ServiceList) []corev1.Service { return l.Items }, func(s *corev1.Service) {
			if s.Namespace != "default" || s.Name != "kubernetes" {
				add(model.KindService, s)
			}
		}),
		each(ctx, c.api.DiscoveryV1().EndpointSlices("").List, func(l *discoveryv1.EndpointSliceList) []discoveryv1.EndpointSlice { return l.Items },
			func(s *discoveryv1.EndpointSlice) { add(model.KindEndpointSlice, s) }),
		each(ctx, c.api.CoreV1().Nodes().List, func(l *corev1.NodeList) []corev1.Node { return l.Items }, func(n *corev1.Node) { add(model.KindNode, n) }),
		each(ctx, c.api.CoreV1().Namespaces().List, func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items }, func(n *corev1.Namespace) {
			if !slices.Contains(systemNamespaces, n.Name) {
				add(model.KindNamespace, n)
			}
		}),
		each(ctx, c.api.NetworkingV1().ServiceCIDRs().List, func(l *networkingv1.ServiceCIDRList) []networkingv1.ServiceCIDR { return l.Items },
			func(s *networkingv1.ServiceCIDR) {
				if s.Name != "kubernetes" {
					add(model.KindServiceCIDR, s)
				}
			}),
	}
	for _, list := range lists {
		if err := list(); err != nil {
			return err
		}
	}
	for _, ref := range refs {
		if err := c.Delete(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// each lists a kind and visits all objects.
func each[L, T any](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), items func(L) []T, visit func(*T)) func() error {
	return func() error {
		l, err := list(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all := items(l)
		for i := range all {
			visit(&all[i])
		}
		return nil
	}
}
