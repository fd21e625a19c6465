package brain

import (
	"maps"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/model"
)

// foreignBalance is an annotation of another project that counts as [model.BalanceAnnotation].
type foreignBalance struct {
	name string
	// values has pairs of a value of the other project and its meaning in ours.
	values [][2]string
}

// ciliumDomain is also the domain of [model.CiliumWeightAnnotation].
const ciliumDomain, kubeRouterDomain = "cilium.io", "kube-router.io"

// foreignBalances has the annotation of each domain of [Config.AcceptAnnotationsOf].
var foreignBalances = map[string]foreignBalance{
	ciliumDomain:        {model.CiliumAlgorithmAnnotation, [][2]string{{"random", "random"}, {"maglev", "hash-connection"}}},
	kubeRouterDomain:    {model.KubeRouterSchedAnnotation, [][2]string{{"rr", "random"}, {"lc", "least-connections"}, {"sh", "hash"}, {kubeRouterMaglev, "hash"}}},
	"loxilb.io":         {model.LoxilbSelectAnnotation, [][2]string{{"rr", "random"}, {"lc", "least-connections"}, {"hash", "hash-connection"}, {"persist", "hash"}}},
	"projectcalico.org": {model.CalicoStrategyAnnotation, [][2]string{{"maglev", "hash-connection"}}},
}

// kubeRouterMaglev is the scheduler of kube-router that its flags are for, and kubeRouterPorts the flag that has it hash ports as well.
const kubeRouterMaglev, kubeRouterPorts = "mh", "flag-2"

// AnnotationDomains returns the domains of other projects whose annotations can count, sorted.
func AnnotationDomains() []string { return slices.Sorted(maps.Keys(foreignBalances)) }

// accepts reports whether annotations of a domain count.
func (c *Config) accepts(domain string) bool { return slices.Contains(c.AcceptAnnotationsOf, domain) }

// readForeign takes the first accepted annotation of another project into settings, unless the service has one of ours. That one wins also with
// a bad value, so that a slip does not bring an old annotation back.
func (s *Settings) readForeign(cfg *Config, svc *model.Service) (bad []BadAnnotation) {
	if len(svc.Annotations) == 0 || svc.Annotation(model.BalanceAnnotation) != "" {
		return nil
	}
	for _, domain := range cfg.AcceptAnnotationsOf {
		f := foreignBalances[domain]
		a := model.Annotation{Name: f.name, Value: svc.Annotation(f.name)}
		if a.Value == "" {
			continue
		}
		if readBalance(s, f.ours(a.Value)) != "" {
			bad = append(bad, BadAnnotation{a, f.want()})
			continue
		}
		s.BalanceFrom = a
		if domain == kubeRouterDomain && a.Value == kubeRouterMaglev {
			bad = append(bad, s.readKubeRouterFlags(svc)...)
		}
		break
	}
	return bad
}

// readKubeRouterFlags takes kube-router's flags of its scheduler mh into settings.
func (s *Settings) readKubeRouterFlags(svc *model.Service) (bad []BadAnnotation) {
	a := model.Annotation{Name: model.KubeRouterFlagsAnnotation, Value: svc.Annotation(model.KubeRouterFlagsAnnotation)}
	if a.Value == "" {
		return nil
	}
	flags := strings.Split(a.Value, ",")
	for i := range flags {
		if flags[i] = strings.TrimSpace(flags[i]); !slices.Contains([]string{"flag-1", kubeRouterPorts, "flag-3"}, flags[i]) {
			return []BadAnnotation{{a, "flag-1, flag-2 or flag-3, or several of them with commas in between"}}
		}
	}
	if slices.Contains(flags, kubeRouterPorts) {
		readBalance(s, "hash-connection")
	}
	return nil
}

// ours returns our value for a value of the other project, empty if there is none.
func (f *foreignBalance) ours(value string) string {
	for _, v := range f.values {
		if v[0] == value {
			return v[1]
		}
	}
	return ""
}

// want lists the values whose meaning is known here.
func (f *foreignBalance) want() string {
	var known []string
	for _, v := range f.values {
		if readBalance(new(Settings), v[1]) == "" {
			known = append(known, v[0])
		}
	}
	last := len(known) - 1
	if last == 0 {
		return known[0]
	}
	return strings.Join(known[:last], ", ") + " or " + known[last]
}
