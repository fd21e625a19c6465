//go:build linux

package userspace_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/conformance"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// pair is a relay with nftables below.
type pair struct {
	*userspace.Backend
	base *nftables.Backend
}

func newPair(ctx context.Context, base nftables.Options, o userspace.Options) (*pair, error) {
	b, err := nftables.New(ctx, base)
	if err != nil {
		return nil, err
	}
	o.Logger = base.Logger
	relay, err := userspace.New(b, o)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &pair{relay, b}, nil
}

// drainTime is how long what is open waits for a next process.
const drainTime = 5 * time.Second

// Close ends the pair as the end of a process does: the base takes new connections, and those that are open wait for a next process.
func (p *pair) Close() error {
	err := errors.Join(p.Release(context.Background()), p.base.Close())
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		_ = p.Drain(ctx) // what is left ends
		_ = p.Backend.Close()
	}()
	return err
}

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Dataplane{
		Name: "userspace",
		New: func(s conformance.Settings) (backend.Backend, error) {
			return newPair(t.Context(), nftables.Options{Logger: s.Logger}, userspace.Options{})
		},
		Limits: []conformance.Limit{conformance.ClientSourceLost, conformance.EndpointRefusalLost},
	})
}
