package brain

import (
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Settings are what the annotations of a Service ask for. The zero value stands for a Service without annotations.
type Settings struct {
	// Balance is how new connections are shared between endpoints. Session affinity wins over it.
	Balance state.Balance
	// Ping is whether the node answers echo requests to the addresses of the Service.
	Ping option
	// DrainSeconds is how long TCP connections to an endpoint may stay after it has ceased to get new ones. 0 sets no deadline.
	DrainSeconds uint32
	// BalanceFrom is the annotation that Balance is from.
	BalanceFrom model.Annotation
	// Ranges are ranges of ports in addition to the ports of the Service.
	Ranges []PortRange
	// Eject is whether TCP endpoints that do not answer get no new connections.
	Eject option
	// Edge is whether nodes hand connections from outside over to each other.
	Edge option
	// ZoneWeights are the weights of endpoints by their zone.
	ZoneWeights ZoneWeights
	// SlowStart is how long it takes until a new endpoint has its full weight. 0 is for no time.
	SlowStart time.Duration
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

// forRanges returns what counts for ranges of ports. Dataplanes count, probe and reset connections by the port of an endpoint, and endpoints of a range have
// none.
func (s Settings) forRanges() Settings {
	if s.Balance == state.LeastConnections {
		s.Balance = state.Random
	}
	s.DrainSeconds, s.Eject = 0, no
	return s
}

// readers take the values of annotations into settings. They return what a value must be, if it is not, and change nothing then.
var readers = map[string]func(s *Settings, value string) (want string){
	model.BalanceAnnotation:     readBalance,
	model.DrainAnnotation:       readDrain,
	model.EdgeAnnotation:        func(s *Settings, value string) string { return readOption(&s.Edge, value) },
	model.EjectAnnotation:       func(s *Settings, value string) string { return readOption(&s.Eject, value) },
	model.PingAnnotation:        func(s *Settings, value string) string { return readOption(&s.Ping, value) },
	model.PortRangesAnnotation:  readRanges,
	model.SlowStartAnnotation:   readSlowStart,
	model.ZoneWeightsAnnotation: readZoneWeights,
}

// BadAnnotation is an annotation of a Service that counts as absent, because its value is not what Want says.
type BadAnnotation struct {
	model.Annotation
	Want string // such as "true or false"
}

// SettingsOf returns what the annotations of a service ask for. Bad values count as absent, and so do annotations of other projects that the
// configuration does not accept.
func SettingsOf(cfg *Config, svc *model.Service) Settings {
	if len(svc.Annotations) == 0 { // as nearly always
		return Settings{}
	}
	s, _ := readSettings(cfg, svc)
	return s
}

// BadAnnotations returns the annotations with bad values of a service that this instance routes.
func BadAnnotations(cfg *Config, svc *model.Service) []BadAnnotation {
	if skips(cfg, svc) != "" || len(svc.Annotations) == 0 {
		return nil
	}
	_, bad := readSettings(cfg, svc)
	return bad
}

func readSettings(cfg *Config, svc *model.Service) (s Settings, bad []BadAnnotation) {
	for _, a := range svc.Annotations {
		read := readers[a.Name]
		if read == nil {
			continue // of a later version, or of another project
		}
		if want := read(&s, a.Value); want != "" {
			bad = append(bad, BadAnnotation{a, want})
		}
	}
	if s.Balance != state.Random {
		s.BalanceFrom = model.Annotation{Name: model.BalanceAnnotation, Value: svc.Annotation(model.BalanceAnnotation)}
	}
	bad = append(bad, s.readForeign(cfg, svc)...)
	if want := rangesClash(s.Ranges, svc.Ports); want != "" {
		s.Ranges = nil
		bad = append(bad, BadAnnotation{model.Annotation{Name: model.PortRangesAnnotation, Value: svc.Annotation(model.PortRangesAnnotation)}, want})
	}
	slices.SortFunc(bad, func(a, b BadAnnotation) int { return strings.Compare(a.Name, b.Name) })
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
	case "least-connections":
		s.Balance = state.LeastConnections
	default:
		return "random, hash, hash-connection or least-connections"
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

// maxDrain is the longest deadline.
const maxDrain = 24 * time.Hour

func readDrain(s *Settings, value string) (want string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > maxDrain || d%time.Second != 0 {
		return "a duration in whole seconds from 0s to 24h"
	}
	s.DrainSeconds = uint32(d / time.Second)
	return ""
}
