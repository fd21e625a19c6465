// Package relay is the source of cluster objects that follows a relay. A relay is an instance of Switchyard that gets
// the objects from an API server or from another relay.
//
// All objects come over one stream at the pace of the sink. After a lost connection, a new one continues where the lost
// one ended, if the relay still knows that position. Otherwise the full set is sent again, and objects that are not in
// it are deleted. While no relay can be reached, the last known objects stay.
package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/internal/source/upstream"
	"github.com/switchyard-net/switchyard/model"
)

// Options specifies which relay to follow, and how to reach it.
type Options struct {
	// Targets are relays that have the same objects, written as for [client.Options]: tcp://host:port, host:port,
	// dns:///host:port, unix:///path. One of them is followed; when it fails, the next one, and after the last the first. At
	// least one is required.
	Targets []string
	// Certificates are how to know the relay, and to be known: TLS by files that may be replaced while the source runs. Without
	// them, targets must be unix sockets or loopback addresses.
	Certificates *client.Certificates
	// SocketUsers are users whose processes may serve a unix socket, as for [client.Options].
	SocketUsers []string
	// Mark is the mark of the packets to relays, as far as the process may set it (CAP_NET_ADMIN on Linux). Default: none.
	Mark uint32
	// NodeHealth is whether the health of Nodes is needed. A relay without it is a problem.
	NodeHealth bool
	// Edge is whether it is needed which Nodes take part in the edge. A relay without that is a problem.
	Edge bool
	// DialOptions follow the options of [client.Dial].
	DialOptions []grpc.DialOption
	// Logger gets errors of relays and objects. Nil discards it.
	Logger *slog.Logger
}

// Source implements [model.Source].
type Source struct {
	options Options
	log     *slog.Logger
	health  health
	peers   upstream.Peers
}

var _ model.Source = (*Source)(nil)

// New returns a source that follows one of the targets. It does not talk to them yet. It returns an error if there is no
// target, one cannot be understood, or one needs TLS.
func New(o Options) (*Source, error) {
	if len(o.Targets) == 0 {
		return nil, errors.New("no Targets: name a relay to follow")
	}
	o.Targets = slices.Clone(o.Targets)
	s := &Source{options: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	s.health.log, s.peers.Mark = s.log, o.Mark
	for _, target := range o.Targets {
		if target == "" {
			return nil, errors.New("one of Targets is empty: name a relay, or leave it out")
		}
		conn, err := s.dial(target)
		if err != nil {
			return nil, err
		}
		conn.Close()
	}
	return s, nil
}

// Problems reports why no relay can be followed now, the start and the remedy, and nothing if all is well. Known
// objects stay in effect, so a problem does not make the node unhealthy. It may be called at any time, from any
// goroutine.
func (s *Source) Problems() []error { return s.health.problems() }

// Peers implements [model.WithPeers].
func (s *Source) Peers() (addrs []netip.AddrPort, changed <-chan struct{}) { return s.peers.Peers() }

// After a stream has ended, the next one waits: at first shortest, then twice as long each time, up to longest. The
// actual wait is random, between half and all of this. So the followers of a restarted relay do not all connect at
// once. A stream that lasted for longest was no failure.
const (
	shortest = 200 * time.Millisecond
	longest  = 10 * time.Second
)

// Run delivers until ctx ends.
func (s *Source) Run(ctx context.Context, sink model.Sink) error {
	d := &delivery{log: s.log, sink: sink}
	wait := shortest
	for at := 0; ctx.Err() == nil; {
		target := s.options.Targets[at%len(s.options.Targets)]
		begun := time.Now()
		useful, err := s.follow(ctx, target, d)
		if ctx.Err() != nil {
			break
		}
		if useful && err == errEnded && time.Since(begun) >= longest {
			wait = shortest
			continue // The connection had lasted long enough; the relay lets no two followers go at the same time.
		}
		s.health.fail(target, err)
		if !useful {
			at++ // one that was of use is retried: it knows what we have
		}
		if time.Since(begun) >= longest {
			wait = shortest
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
		wait = min(2*wait, longest)
	}
	return nil
}
