package ebpf

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ebpf/internal/maps"
	"github.com/switchyard-net/switchyard/backend/ebpf/internal/programs"
)

// search looks for connections that hooks have translated to endpoints that are gone. To netfilter they look like connections of clients
// that know the endpoint, so that it must be given each of them.
type search struct {
	log *slog.Logger
	// found is called when there are results.
	found func()
	wake  chan struct{}

	mu          sync.Mutex // guards all below
	connections *ebpf.Map  // in which the hooks note what they have translated; nil while they are off
	endpoints   []netip.AddrPort
	flows       []backend.Flow
}

// maxSearched and maxFound are how many endpoints wait to be looked for, and how many connections to be reset. What is beyond ends by itself.
const (
	maxSearched = 65536
	maxFound    = 65536
)

// While sockets are in the middle of connect(), they have no port. It takes no longer than a system call.
const (
	connectTries = 20
	connectPause = 50 * time.Millisecond
)

func newSearch(log *slog.Logger, found func()) *search {
	return &search{log: log, found: found, wake: make(chan struct{}, 1)}
}

// use takes the map in which hooks note connections, nil if there is none.
func (s *search) use(connections *ebpf.Map) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connections != nil {
		s.connections.Close()
	}
	s.connections = nil
	if connections != nil {
		s.connections, _ = connections.Clone() // fails if there is no file for it; then nothing is found
	}
}

// add has connections to these endpoints looked for, to which no route leads any longer.
func (s *search) add(endpoints []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = append(s.endpoints, endpoints[:min(len(endpoints), maxSearched-len(s.endpoints))]...)
	if len(s.endpoints) > 0 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// take returns the connections that were found since the last call.
func (s *search) take() []backend.Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	flows := s.flows
	s.flows = nil
	return flows
}

func (s *search) run(ctx context.Context) {
	defer s.use(nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		if err := s.find(ctx); err != nil {
			s.log.Warn("connections that were translated at their sockets to endpoints that are gone are not reset", "error", err)
		}
	}
}

// find looks for what waits to be looked for.
func (s *search) find(ctx context.Context) error {
	s.mu.Lock()
	endpoints := s.endpoints
	s.endpoints = nil
	var connections *ebpf.Map
	if s.connections != nil {
		connections, _ = s.connections.Clone()
	}
	s.mu.Unlock()
	if connections == nil {
		return nil
	}
	defer connections.Close()
	// A program that has drawn one of them may not have noted it yet.
	if err := maps.Barrier(); err != nil {
		return err
	}
	f, err := programs.NewFinder(connections)
	if err != nil {
		return err
	}
	defer f.Close()
	noted := map[programs.Flow]bool{}
	for range connectTries {
		flows, connecting, err := f.Find(endpoints, maxFound)
		if err != nil {
			return err
		}
		s.note(slices.DeleteFunc(flows, func(f programs.Flow) bool {
			was := noted[f]
			noted[f] = true
			return was
		}))
		if !connecting {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(connectPause):
		}
	}
	return nil
}

func (s *search) note(flows []programs.Flow) {
	if len(flows) == 0 {
		return
	}
	s.mu.Lock()
	for _, f := range flows[:min(len(flows), maxFound-len(s.flows))] {
		s.flows = append(s.flows, backend.Flow(f))
	}
	s.mu.Unlock()
	s.found()
}
