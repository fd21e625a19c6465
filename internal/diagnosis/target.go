package diagnosis

import (
	"fmt"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// target returns where a port of the Service leads to, nil if it is not known.
func (s *subject) target(p *brain.PortReasons) *Target {
	spec, _ := s.facts.service(s.name())
	for i := range spec.Targets {
		if t := &spec.Targets[i]; t.Name == p.Name && t.Protocol == p.Protocol {
			return t
		}
	}
	return nil
}

func (s *subject) pods() []*Pod {
	spec, _ := s.facts.service(s.name())
	return s.facts.selected(s.name().Namespace, spec.Selector)
}

// noNamedPort is why no pod has a named port.
func (s *subject) noNamedPort(t *Target, protocol state.Protocol) (cause, remedy string) {
	pods := s.pods()
	var other, has []string
	for _, p := range pods {
		for _, c := range p.Ports {
			if c.Name == "" {
				continue
			}
			has = append(has, fmt.Sprintf("%s (%d/%v)", c.Name, c.Port, c.Protocol))
			if c.Name == t.Target && c.Protocol != protocol {
				other = append(other, c.Protocol.String())
			}
		}
	}
	slices.Sort(has)
	has = slices.Compact(has)
	remedy = "set targetPort to the name or the number of a port of the containers"
	switch {
	case len(pods) == 0:
		return fmt.Sprintf("targetPort %q is the name of no port of its pods", t.Target), remedy
	case len(other) > 0:
		return fmt.Sprintf("the port %s of its pods is %s, and the port of the Service is %v", t.Target, other[0], protocol),
			fmt.Sprintf("set the protocol of the Service's port to %s, or add a %v port to the containers", other[0], protocol)
	case len(has) == 0:
		return fmt.Sprintf("targetPort is the name %q, and the ports of %s have no names", t.Target, its(len(pods))), remedy
	}
	return fmt.Sprintf("targetPort %q is the name of no port of %s, only %s", t.Target, its(len(pods)), Some(has)), remedy
}

// somePods warns of a named targetPort that only some of the pods have.
func (s *subject) somePods(p *brain.PortReasons) {
	with, without, name := 0, 0, ""
	for i := range p.Endpoints {
		if p.Endpoints[i].Unusable == "" {
			with++
		}
	}
	for _, r := range p.Slices {
		if r.Reason == brain.NoSuchPort {
			if without += len(r.Slice.Endpoints); name == "" && len(r.Slice.Endpoints) > 0 {
				name = r.Slice.Name
			}
		}
	}
	if without == 0 || with == 0 {
		return
	}
	f := Finding{Reason: PodsWithoutPort, Severity: Warning, Text: fmt.Sprintf("%d of %d endpoints of the Service lack its %s", without, with+without, s.portName(p)),
		Cause: "EndpointSlice " + name + " has no such port", Remedy: "narrow spec.selector to the pods that serve the port, or declare the port in all of them"}
	if t := s.target(p); t != nil {
		if f.Field = t.Field; t.named() {
			for _, pod := range s.pods() {
				if !pod.has(t, p.Protocol) {
					f.Cause = fmt.Sprintf("pod %s has no port %s/%v", pod.Ref(), t.Target, p.Protocol)
					break
				}
			}
		}
	}
	s.add(f)
}

// targets warns of numeric targetPorts that pods do not declare. A declaration is information only, but a port that is missing from a list is
// rarely there.
func (s *subject) targets() {
	spec, _ := s.facts.service(s.name())
	if s.why.NotRouted != "" && s.why.NotRouted != brain.Headless {
		return
	}
	pods := s.pods()
	for i := range spec.Targets {
		t := &spec.Targets[i]
		if t.named() || s.full() {
			continue
		}
		var lacking *Pod
		declares, has := 0, 0
		for _, p := range pods {
			switch {
			case p.has(t, t.Protocol):
				has++
			case len(p.Ports) > 0 || lacking == nil:
				lacking = p
			}
			if len(p.Ports) > 0 {
				declares++
			}
		}
		if declares == 0 || lacking == nil {
			continue
		}
		f := Finding{Field: t.Field, Severity: Warning, Cause: "pod " + lacking.Ref() + " declares " + lacking.portsText()}
		if has == 0 {
			f.Reason = UndeclaredPort
			f.Text = fmt.Sprintf("targetPort %s/%v is not declared by the %s that the Service selects", t.Target, t.Protocol, Count(len(pods), "pod"))
			f.Remedy = "set targetPort to a port that the containers serve, or declare this one as containerPort"
			if lacking.Configured != "" {
				f.Severity = Remark
				f.Cause += ", and ConfigMap " + lacking.Configured + " may have others"
			}
		} else {
			f.Reason = PodsWithoutPort
			f.Text = fmt.Sprintf("%d of the %s that the Service selects %s not declare targetPort %s/%v", len(pods)-has, Count(len(pods), "pod"), do(len(pods)-has), t.Target, t.Protocol)
			f.Remedy = "narrow spec.selector to the pods that serve the port, or declare the port in all of them"
		}
		s.add(f)
	}
}

// headless looks at the targets of a headless Service, for whose named ports DNS has no answer.
func (s *subject) headless() {
	if s.why.NotRouted != brain.Headless {
		return
	}
	spec, known := s.facts.service(s.name())
	if !known || len(spec.Selector) == 0 || s.facts.empty() && !s.facts.Whole {
		return
	}
	pods := s.pods()
	if len(pods) == 0 {
		f := s.nothing(0)
		s.add(*f)
		return
	}
	for i := range spec.Targets {
		t := &spec.Targets[i]
		if t.named() && !slices.ContainsFunc(pods, func(p *Pod) bool { return p.has(t, t.Protocol) }) {
			f := s.finding(NoSuchPort, t.Field, fmt.Sprintf("%s of the Service has no endpoints", s.portName(&brain.PortReasons{Name: t.Name, Protocol: t.Protocol})), "", "")
			f.Severity = Warning // its addresses are still in DNS
			f.Cause, f.Remedy = s.noNamedPort(t, t.Protocol)
			s.add(*f)
		}
	}
}
