package client

import (
	"maps"
	"slices"
	"strings"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

const (
	// maxFailed is how many failed services are named in a status, by the protocol.
	maxFailed = 100
	// maxReason is how many bytes of each reason are sent, so that a status stays a small message.
	maxReason = 1 << 10
)

// Status is how a dataplane is doing.
type Status struct {
	// Applied is the position of the update that the dataplane shows, but for the services in Failed.
	Applied Position
	// Failed are the services that cannot be programmed now, with the reason and the remedy. The server gets the first
	// hundred, and 1 KiB of each reason.
	Failed map[ServiceName]error
}

// wire returns the status for a server.
func (s *Status) wire() *localnetv1.Status {
	w := &localnetv1.Status{FailedTotal: uint32(len(s.Failed))}
	if s.Applied != (Position{}) {
		w.Applied = &localnetv1.Position{InstanceId: s.Applied.InstanceID, Rev: s.Applied.Rev}
	}
	names := slices.SortedFunc(maps.Keys(s.Failed), ServiceName.Compare)
	for _, name := range names[:min(len(names), maxFailed)] {
		e := &localnetv1.ServiceError{Service: &localnetv1.ServiceName{Namespace: name.Namespace, Name: name.Name}}
		if err := s.Failed[name]; err != nil {
			text := err.Error()
			e.Message = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
		}
		w.Failed = append(w.Failed, e)
	}
	return w
}
