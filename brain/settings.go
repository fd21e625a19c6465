package brain

import (
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Settings are what the annotations of a Service ask for. The zero value stands for a Service without annotations.
type Settings struct {
	// Balance is how new connections are shared between endpoints. Session affinity wins over it.
	Balance state.Balance
	// Ranges are ranges of ports in addition to the ports of the Service.
	Ranges []PortRange
}

// readers take the values of annotations into settings. They return what a value must be, if it is not, and change nothing then.
var readers = map[string]func(s *Settings, value string) (want string){
	model.BalanceAnnotation:    readBalance,
	model.PortRangesAnnotation: readRanges,
}

// BadAnnotation is an annotation of a Service that counts as absent, because its value is not what Want says.
type BadAnnotation struct {
	model.Annotation
	Want string // such as "true or false"
}

// SettingsOf returns what the annotations of a service ask for. Bad values count as absent.
func SettingsOf(svc *model.Service) Settings {
	s, _ := readSettings(svc)
	return s
}

// BadAnnotations returns the annotations with bad values of a service that this instance routes, sorted by name.
func BadAnnotations(cfg *Config, svc *model.Service) []BadAnnotation {
	if skips(cfg, svc) != "" {
		return nil
	}
	_, bad := readSettings(svc)
	return bad
}

func readSettings(svc *model.Service) (s Settings, bad []BadAnnotation) {
	for _, a := range svc.Annotations {
		read := readers[a.Name]
		if read == nil {
			continue // of a later version
		}
		if want := read(&s, a.Value); want != "" {
			bad = append(bad, BadAnnotation{a, want})
		}
	}
	if want := rangesClash(s.Ranges, svc.Ports); want != "" {
		s.Ranges = nil
		bad = append(bad, BadAnnotation{model.Annotation{Name: model.PortRangesAnnotation, Value: svc.Annotation(model.PortRangesAnnotation)}, want})
		slices.SortFunc(bad, func(a, b BadAnnotation) int { return strings.Compare(a.Name, b.Name) })
	}
	return s, bad
}

func readBalance(s *Settings, value string) (want string) {
	switch value {
	case "random":
		s.Balance = state.Random
	case "hash":
		s.Balance = state.HashClient
	case "hash-connection":
		s.Balance = state.HashConnection
	default:
		return "random, hash or hash-connection"
	}
	return ""
}
