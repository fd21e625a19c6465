package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/spelling"
)

// nothing is why a Service has no endpoint at all, in n slices.
func (s *subject) nothing(n int) *Finding {
	f := s.finding(NoEndpoints, "", "the Service has no endpoints", "its EndpointSlices are empty", "compare its selector with the labels of the pods: kubectl describe service")
	if n == 0 {
		f.Cause = "it has no EndpointSlice"
	}
	spec, known := s.facts.service(s.name())
	switch {
	case !known:
	case len(spec.Selector) == 0:
		s.withoutSelector(f)
	default:
		f.Field = "spec.selector"
		s.withSelector(f, spec.Selector)
	}
	return f
}

// withoutSelector is why a Service without a selector has no endpoints.
func (s *subject) withoutSelector(f *Finding) {
	label := "kubernetes.io/service-name: " + s.name().Name
	f.Cause = "it has no selector, and no EndpointSlice has the label " + label
	f.Remedy = "add spec.selector, or an EndpointSlice with the label " + label
	if slice := s.facts.unlabelled(s.name()); slice != "" {
		f.Cause = fmt.Sprintf("EndpointSlice %s has no label kubernetes.io/service-name", slice)
		f.Remedy = "add the label " + label + " to the EndpointSlice"
	}
	if e := s.facts.endpoints(s.name()); e != nil {
		switch {
		case e.NotMirrored != "":
			f.Cause = fmt.Sprintf("the cluster makes no EndpointSlice of Endpoints %s, which have the %s", e.Name, e.NotMirrored)
			f.Remedy = "remove it, or write an EndpointSlice with the label " + label
		case e.Addresses == 0:
			f.Cause, f.Remedy = "Endpoints "+e.Name+" has no addresses", "add them to subsets.addresses"
		default:
			f.Cause = fmt.Sprintf("it has Endpoints %s, and only a controller of the cluster makes EndpointSlices of Endpoints", e.Name)
			f.Remedy = "write an EndpointSlice with the label " + label + ", or ask with 'switchyard explain --lab'"
		}
	}
}

// withSelector is why a selector leads to no endpoint.
func (s *subject) withSelector(f *Finding, selector map[string]string) {
	text := labelsText(selector)
	f.Cause, f.Remedy = "its selector is "+text, "compare the selector with the labels of the pods: kubectl get pods --show-labels"
	if s.facts.empty() && !s.facts.Whole {
		return
	}
	namespace := s.name().Namespace
	if pods := s.facts.selected(namespace, selector); len(pods) > 0 {
		f.Field = ""
		f.Cause = fmt.Sprintf("%s its selector %s, but no EndpointSlice has them", matches(len(pods)), text)
		f.Remedy = "look at the controller manager, which makes EndpointSlices; a dump needs them (kubectl get endpointslices)"
		return
	}
	var idle, elsewhere, near *Workload
	miss, least := "", 0
	for _, w := range s.facts.templates() {
		switch {
		case selectsAll(selector, w.Labels) && w.Object.Namespace == namespace:
			idle = cmp.Or(idle, w)
		case selectsAll(selector, w.Labels):
			elsewhere = cmp.Or(elsewhere, w)
		case w.Object.Namespace == namespace:
			if m, cost := s.missOf(selector, w); m != "" && (near == nil || cost < least) {
				near, miss, least = w, m, cost
			}
		}
	}
	f.Remedy = "make the selector of the Service and the labels of the pods the same"
	switch {
	case idle != nil:
		f.Cause = fmt.Sprintf("its selector %s matches only %s, which %s", text, idle.Object, idle.Idle)
		f.Remedy, f.Severity = idle.Remedy, idle.Severity
	case elsewhere != nil:
		f.Cause = fmt.Sprintf("its selector %s matches %s in another namespace", text, elsewhere.Object)
		f.Remedy = "put the Service into the namespace of its pods: a Service selects pods of its own namespace, which is " + namespace
	case near != nil:
		f.Cause = fmt.Sprintf("no pod matches its selector %s; %s has %s", text, near.Object, miss)
	default:
		f.Cause = fmt.Sprintf("no pod in namespace %s matches its selector %s", namespace, text)
		f.Remedy = "add the workload that the Service is for, or correct the selector"
		s.elsewhere(f, selector)
	}
}

// elsewhere makes a remark of a finding about pods that probably come from elsewhere than the manifests.
func (s *subject) elsewhere(f *Finding, selector map[string]string) {
	switch group := s.facts.operator(selector); {
	case !s.facts.Whole:
	case group != "":
		f.Severity, f.Remedy = Remark, "check that the operator runs in the cluster"
		f.Cause += "; the operator of " + group + " may create such pods"
	case s.facts.Partial:
		f.Severity, f.Remedy = Remark, "correct the files with faults, and render templates and charts"
		f.Cause += "; files that were left out may have such pods"
	case !s.facts.hasWorkload(s.name().Namespace):
		f.Severity = Remark
		f.Cause += "; the manifests have no workload there"
	}
}

// namedIn reports whether the Service's name is the value of a label.
func (s *subject) namedIn(labels map[string]string) bool {
	for _, v := range labels {
		if v == s.name().Name {
			return true
		}
	}
	return false
}

// missOf describes how the labels of a workload miss a selector. A near miss has labels that are like the demanded
// ones, or lacks one of several. Others count only if the workload has the name of the Service. cost orders such
// misses.
func (s *subject) missOf(selector map[string]string, w *Workload) (text string, cost int) {
	const far = 10
	has, kin := w.Labels, s.name().Name == w.Object.Name || s.namedIn(w.Labels)
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
				if cost += far; want == s.name().Name {
					cost += far // another component of the same application
				}
			}
		case like != "":
			wrong = append(wrong, fmt.Sprintf("%s=%s in place of %s", like, has[like], key))
		default:
			wrong = append(wrong, "no label "+key)
			cost += far
		}
	}
	if !kin && (cost > far || cost == far && matched == 0) {
		return "", 0 // they have nothing to do with each other
	}
	cost += len(wrong)
	return Some(wrong), cost
}

// likeKey returns the key under which labels have the wanted value, the one nearest to the wanted key.
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

// selectsAll reports whether labels have all that a selector asks for.
func selectsAll(selector, labels map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return len(selector) > 0
}

func labelsText(labels map[string]string) string {
	var texts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, k+"="+labels[k])
	}
	return strings.ReplaceAll(Some(texts), ", ", ",")
}
