package minicluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/switchyard-net/switchyard/internal/spelling"
)

// explain warns of a Service without endpoints, and says why it has none.
func (b *builder) explain(svc clusterService) {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || len(svc.Spec.Ports) == 0 {
		return
	}
	if len(svc.Spec.Selector) == 0 {
		byHand := slices.ContainsFunc(b.out.Slices, func(s *discoveryv1.EndpointSlice) bool {
			return s.Namespace == svc.Namespace && s.Labels[discoveryv1.LabelServiceName] == svc.Name
		})
		if !byHand {
			b.warnf(svc.given, "spec.selector", "is empty, and there is no EndpointSlice with the label %s: %s: it has no endpoints until it gets the one or the other",
				discoveryv1.LabelServiceName, svc.Name)
		}
		return
	}
	pods := b.selected(svc.Service)
	ready := func(p *Pod) bool { return p.Ready && !p.Terminating }
	switch {
	case len(pods) == 0:
		b.warnf(svc.given, "spec.selector", "%s: it has no endpoints: %s", labels.SelectorFromSet(svc.Spec.Selector), b.whyNone(svc))
	case !svc.Spec.PublishNotReadyAddresses && !slices.ContainsFunc(pods, ready):
		b.warnf(svc.given, "", "it has no endpoints: none of the %s that it selects is ready, such as %s", count(len(pods), "pod"), pods[0].Name)
	}
}

// whyNone is why a Service selects no pod.
func (b *builder) whyNone(svc clusterService) string {
	sel := labels.SelectorFromSet(svc.Spec.Selector)
	var elsewhere, near *workload
	var nearMiss string
	least := 0
	for i := range b.workloads {
		w := &b.workloads[i]
		matches := sel.Matches(labels.Set(w.labels))
		switch {
		case matches && w.namespace == svc.Namespace:
			return whyNoPods(w)
		case matches && elsewhere == nil:
			elsewhere = w
		case w.namespace == svc.Namespace:
			if text, cost := miss(svc.Spec.Selector, w.labels); text != "" && (near == nil || cost < least) {
				near, nearMiss, least = w, text, cost
			}
		}
	}
	switch {
	case elsewhere != nil:
		return fmt.Sprintf("%s has these labels, in another namespace; a Service selects pods of its own namespace, which is %s", nameOf(elsewhere.object), svc.Namespace)
	case near != nil:
		return fmt.Sprintf("no pod has these labels; the pods of %s have %s", nameOf(near.object), nearMiss)
	}
	return "no pod in namespace " + svc.Namespace + " has these labels"
}

// whyNoPods is why a workload has none.
func whyNoPods(w *workload) string {
	name := nameOf(w.object)
	switch {
	case w.err != nil:
		return name + " has these labels, and cannot run"
	case w.pending > 0:
		return name + " has these labels, and no node for its pods"
	case w.ended():
		return name + " has these labels, and has ended"
	}
	return name + " has these labels, and 0 replicas"
}

// miss describes how labels miss a selector, if they do so by a little: one label that is like the one demanded, or all but one
// of several. cost orders such misses.
func miss(selector, has map[string]string) (text string, cost int) {
	var wrong []string
	matched := 0
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		want := selector[key]
		value, there := has[key]
		if there && value == want {
			matched++
			continue
		}
		switch like := likeKey(want, key, has); {
		case there:
			wrong = append(wrong, fmt.Sprintf("%s=%s", key, value))
			if spelling.Distance(value, want) > 2 && !strings.Contains(value, want) && !strings.Contains(want, value) {
				cost += 10
			}
		case like != "":
			wrong = append(wrong, fmt.Sprintf("%s=%s in place of %s", like, has[like], key))
		default:
			wrong = append(wrong, "no label "+key)
			cost += 10
		}
	}
	cost += len(wrong)
	if matched == 0 && cost >= 10 {
		return "", 0 // they have nothing to do with each other
	}
	return strings.Join(wrong, ", "), cost
}

// likeKey returns the key under which labels have the wanted value, or nearly the wanted key.
func likeKey(want, key string, has map[string]string) string {
	keys := slices.Sorted(maps.Keys(has))
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(spelling.Distance(a, key), spelling.Distance(b, key)) })
	for _, k := range keys {
		if has[k] == want {
			return k
		}
	}
	return ""
}
