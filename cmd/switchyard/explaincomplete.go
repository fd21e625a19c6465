package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source/kube"
)

// completionTime is how long a shell waits for names.
const completionTime = 3 * time.Second

// namer knows the names that complete a question. A kind is pod or svc. After an error there are no names: a message would be printed into
// the command line.
type namer interface {
	namespaces(ctx context.Context) []string
	names(ctx context.Context, kind, namespace string) []string
}

// complete completes FROM and TO.
func (o *explainOptions) complete(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
	kind, words := "pod", []string{"node", "outside"}
	switch len(args) {
	case 0:
	case 1:
		kind, words = "svc", nil
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	rest, named := strings.CutPrefix(start, kind+"/")
	if !named {
		return beginning(append(words, kind+"/"), start), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	names := o.namer(ctx, cmd)
	if names == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	namespace, _, hasNamespace := strings.Cut(rest, "/")
	if !hasNamespace {
		for _, n := range names.namespaces(ctx) {
			found = append(found, kind+"/"+n+"/")
		}
		return beginning(found, start), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	for _, n := range names.names(ctx, kind, namespace) {
		found = append(found, kind+"/"+namespace+"/"+n)
	}
	return beginning(found, start), cobra.ShellCompDirectiveNoFileComp
}

// beginning returns the words that begin as one does, sorted and each once.
func beginning(words []string, start string) []string {
	found := slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, start) })
	slices.Sort(found)
	return slices.Compact(found)
}

// namer returns the source of names that explain would ask with these flags, nil if there is none.
func (o *explainOptions) namer(ctx context.Context, cmd *cobra.Command) namer {
	if o.check() != nil || o.source == stdinName || slices.Contains(o.lab, stdinName) {
		return nil
	}
	if o.asksProcess() {
		return &processNames{&o.socket}
	}
	c, err := o.config(cmd)
	if err != nil {
		return nil
	}
	if o.source != "" || len(o.lab) > 0 {
		objects, err := o.objects(cmd, c, explain.From{}, explain.To{})
		if err != nil {
			return nil
		}
		return objects
	}
	reader, err := newReader(c, o.master)
	if err != nil {
		return nil
	}
	return (*apiNames)(reader)
}

// completeNode completes --node.
func (o *explainOptions) completeNode(cmd *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	var nodes []string
	switch n := o.namer(ctx, cmd).(type) {
	case *processNames:
		nodes = n.list(ctx, &adminv1.Selection{Kind: adminv1.Kind_KIND_NODE})
	case *clusterObjects:
		nodes = n.nodeNames()
	case *apiNames:
		objects, _ := (*kube.Reader)(n).Nodes(ctx)
		nodes = namesOfObjects(objects)
	}
	return beginning(nodes, start), cobra.ShellCompDirectiveNoFileComp
}

// processNames are the names that a running process knows. It knows no Pods.
type processNames struct{ socket *adminSocket }

// list returns the keys of rows.
func (p *processNames) list(ctx context.Context, selection *adminv1.Selection) []string {
	client, err := p.socket.dial()
	if err != nil {
		return nil
	}
	defer client.Close()
	keys, err := client.keys(ctx, selection)
	if err != nil {
		return nil
	}
	return keys
}

// completeNamespace completes --namespace.
func (s *adminSocket) completeNamespace(cmd *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	if s.check() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	return beginning((&processNames{s}).namespaces(ctx), start), cobra.ShellCompDirectiveNoFileComp
}

func (p *processNames) namespaces(ctx context.Context) (found []string) {
	for _, key := range p.list(ctx, &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE}) {
		namespace, _, _ := strings.Cut(key, "/")
		found = append(found, namespace)
	}
	return found
}

func (p *processNames) names(ctx context.Context, kind, namespace string) (found []string) {
	if kind != "svc" {
		return nil
	}
	for _, key := range p.list(ctx, &adminv1.Selection{Kind: adminv1.Kind_KIND_SERVICE, Namespace: namespace}) {
		_, name, _ := strings.Cut(key, "/")
		found = append(found, name)
	}
	return found
}

func (c *clusterObjects) namespaces(context.Context) (found []string) {
	for _, p := range c.facts.Pods {
		found = append(found, p.Namespace)
	}
	for name := range c.facts.Services {
		found = append(found, name.Namespace)
	}
	return found
}

func (c *clusterObjects) names(_ context.Context, kind, namespace string) (found []string) {
	for _, p := range c.facts.Pods {
		if kind == "pod" && p.Namespace == namespace {
			found = append(found, p.Name)
		}
	}
	for _, o := range c.objects {
		if s, ok := o.(*model.Service); ok && kind == "svc" && s.Name.Namespace == namespace {
			found = append(found, s.Name.Name)
		}
	}
	return found
}

// apiNames are the names that an API server knows.
type apiNames kube.Reader

func (a *apiNames) namespaces(ctx context.Context) []string {
	objects, _ := (*kube.Reader)(a).Namespaces(ctx)
	return namesOfObjects(objects)
}

func (a *apiNames) names(ctx context.Context, kind, namespace string) []string {
	list := (*kube.Reader)(a).Services
	if kind == "pod" {
		list = func(ctx context.Context, namespace string) ([]runtime.Object, error) {
			return (*kube.Reader)(a).Pods(ctx, namespace, "")
		}
	}
	objects, _ := list(ctx, namespace)
	return namesOfObjects(objects)
}

func namesOfObjects(objects []runtime.Object) (names []string) {
	for _, o := range objects {
		if m, ok := o.(metav1.Object); ok {
			names = append(names, m.GetName())
		}
	}
	return names
}
