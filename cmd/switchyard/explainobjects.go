package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/store"
)

// clusterObjects are what 'switchyard explain' answers from.
type clusterObjects struct {
	objects []model.Object
	facts   *diagnosis.Facts
	// problems are objects that are left out.
	problems []error
	known    map[model.Ref]bool
}

func newClusterObjects() *clusterObjects {
	return &clusterObjects{known: map[model.Ref]bool{}, facts: apifacts.New()}
}

// store returns what the node with a name makes of the objects. It is to be closed.
func (c *clusterObjects) store(conf *config.Config, name string) *store.Store {
	s := store.New(store.Options{Brain: node.BrainConfig(conf, name), Budgets: node.Budgets(conf)})
	sink := s.Source("objects")
	sink.Update(c.objects, nil)
	sink.Complete()
	return s
}

// maxSource is how many bytes of manifests standard input may have.
const maxSource = 512 << 20

// manifestObjects reads manifests.
func manifestObjects(cmd *cobra.Command, path string) (*clusterObjects, error) {
	var found []manifest.Object
	var problems []error
	if path == stdinName {
		data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxSource+1))
		if err == nil && len(data) > maxSource {
			err = fmt.Errorf("it has more than %d MiB", maxSource>>20)
		}
		if err != nil {
			return nil, fmt.Errorf("read manifests from standard input: %w", err)
		}
		found, problems = manifest.Decode("stdin", data)
	} else {
		found, problems = manifest.Load(path)
	}
	if len(found) == 0 && len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c := newClusterObjects()
	c.problems = problems
	places := make(map[diagnosis.Object]string)
	c.facts.Place = func(o diagnosis.Object, _ string) string { return places[o] }
	for _, o := range found {
		defaultObject(o.Object)
		places[apifacts.ObjectOf(o.Object)] = fmt.Sprintf("%s:%d", o.File, o.Line)
		if err := c.add(o.Object); err != nil {
			c.problems = append(c.problems, fmt.Errorf("%s:%d: %w", o.File, o.Line, err))
		}
	}
	sliced := c.sliced()
	for _, o := range found {
		if name, ok := isMirrored(o.Object); ok && !sliced[name] {
			c.problems = append(c.problems, fmt.Errorf("%s:%d: Endpoints %v: %w", o.File, o.Line, name, errEndpoints))
		}
	}
	return c, nil
}

// apiObjects reads the objects that an API server has, and the Pods that a question is about.
func apiObjects(ctx context.Context, c *config.Config, master string, from explain.From, to explain.To) (*clusterObjects, error) {
	reader, err := newReader(c, master)
	if err != nil {
		return nil, err
	}
	found, err := reader.Routing(ctx)
	if err != nil {
		return nil, err
	}
	objects := newClusterObjects()
	for _, o := range found {
		objects.take(o)
	}
	for _, q := range objects.podQueries(from, to) {
		pods, err := reader.Pods(ctx, q.namespace, q.fields)
		if err != nil {
			objects.problems = append(objects.problems, err)
		}
		for _, p := range pods {
			objects.take(p)
		}
	}
	return objects, nil
}

var errNoObjects = errors.New("which cluster? Name manifests or a dump with --source, or a kubeconfig with --kubeconfig or in $KUBECONFIG; " +
	"there is no ~/.kube/config, no service account of a pod, and no running process (--socket)")

// newReader returns a reader of an operator's API server.
func newReader(c *config.Config, master string) (*kube.Reader, error) {
	connection, ok, err := operatorConnection(c, master)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNoObjects
	}
	api, err := connection.Config()
	if err != nil {
		return nil, err
	}
	return kube.NewReader(api)
}

// podQuery selects Pods of a namespace, or of all if it is empty.
type podQuery struct{ namespace, fields string }

// podQueries are for the Pods whose namespaces a question is about, and for the one whose address it names.
func (c *clusterObjects) podQueries(from explain.From, to explain.To) []podQuery {
	var namespaces []string
	add := func(namespace string) {
		if namespace != "" && !slices.Contains(namespaces, namespace) {
			namespaces = append(namespaces, namespace)
		}
	}
	add(from.Namespace)
	for _, namespace := range to.Namespaces(from) {
		add(namespace)
	}
	for _, o := range c.objects {
		s, ok := o.(*model.Service)
		if ok && to.Addr().IsValid() && slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs), to.Addr().Addr()) {
			add(s.Name.Namespace)
		}
	}
	var queries []podQuery
	for _, n := range namespaces {
		queries = append(queries, podQuery{namespace: n})
	}
	if from.Addr().IsValid() {
		queries = append(queries, podQuery{fields: "status.podIP=" + from.Addr().String()})
	}
	return queries
}

// take is add for an object of an API server. Pods that several queries return are taken once.
func (c *clusterObjects) take(object runtime.Object) {
	if pod, ok := object.(*corev1.Pod); ok && c.facts.Pod(pod.Namespace, pod.Name) != nil {
		return
	}
	if err := c.add(object); err != nil {
		name := ""
		if o, ok := object.(metav1.Object); ok {
			name = fmt.Sprintf("%T %s/%s: ", object, o.GetNamespace(), o.GetName())
		}
		c.problems = append(c.problems, fmt.Errorf("%s%w", name, err))
	}
}

// only leaves out the Nodes that a proxy which follows an API server does not know: all but its own.
func (c *clusterObjects) only(node string) {
	c.objects = slices.DeleteFunc(c.objects, func(o model.Object) bool {
		n, ok := o.(*model.Node)
		return ok && n.Name != node
	})
}

// defaultObject does to an object of a manifest what kubectl and the API server would have done.
func defaultObject(object runtime.Object) {
	if o, ok := object.(metav1.Object); ok {
		switch object.(type) {
		case *corev1.Service, *discoveryv1.EndpointSlice, *corev1.Pod:
			o.SetNamespace(cmp.Or(o.GetNamespace(), metav1.NamespaceDefault))
		}
	}
	if s, ok := object.(*discoveryv1.EndpointSlice); ok {
		for i := range s.Ports {
			if s.Ports[i].Name == nil {
				s.Ports[i].Name = new("")
			}
		}
	}
}

// add takes an object. Of two with the same name, the first counts.
func (c *clusterObjects) add(object runtime.Object) error {
	o, ok, err := kubeconv.Object(object)
	switch {
	case err != nil:
		return err
	case ok && c.known[o.Ref()]:
		return fmt.Errorf("%v is there twice: remove one of the two", o.Ref())
	}
	apifacts.Add(c.facts, object)
	if ok {
		c.known[o.Ref()] = true
		c.objects = append(c.objects, o)
	}
	return nil
}

// nodeNames are the names of all Nodes, sorted.
func (c *clusterObjects) nodeNames() []string {
	var names []string
	for _, o := range c.objects {
		if n, ok := o.(*model.Node); ok {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// nodeOf returns the node that a client is on, empty if that is not known.
func (c *clusterObjects) nodeOf(from explain.From) string {
	addr := from.Addr()
	if pod := c.facts.Pod(from.Namespace, from.Name); pod != nil {
		return pod.Node
	}
	if !addr.IsValid() {
		return ""
	}
	for _, p := range c.facts.Pods {
		if slices.Contains(p.Addrs, addr) && p.Node != "" {
			return p.Node
		}
	}
	for _, o := range c.objects {
		n, ok := o.(*model.Node)
		if ok && (slices.Contains(n.Addresses, addr) || slices.ContainsFunc(n.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(addr) })) {
			return n.Name
		}
	}
	return ""
}
