package brain

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Settings are what the annotations of a Service ask for. The zero value stands for a Service without annotations.
type Settings struct {
	// Balance is how new connections are shared between endpoints. Session affinity wins over it.
	Balance state.Balance
	// Eject is whether TCP endpoints that do not answer get no new connections.
	Eject option
}

// option is true, false, or what the configuration says.
type option uint8

const (
	asConfigured option = iota
	yes
	no
)

// or returns the option, or configured if there is none.
func (o option) or(configured bool) bool { return o == yes || o == asConfigured && configured }

// readers take the values of annotations into settings. They return what a value must be, if it is not, and change nothing then.
var readers = map[string]func(s *Settings, value string) (want string){
	model.BalanceAnnotation: readBalance,
	model.EjectAnnotation:   func(s *Settings, value string) string { return readOption(&s.Eject, value) },
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

func readOption(o *option, value string) (want string) {
	switch value {
	case "true":
		*o = yes
	case "false":
		*o = no
	default:
		return "true or false"
	}
	return ""
}
