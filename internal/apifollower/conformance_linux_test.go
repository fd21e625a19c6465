package apifollower_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/internal/apifollower"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// TestConformance runs the suite on the nftables dataplane behind the API: store, server, unix socket, client, follower,
// reconciler. The suite waits for the dataplane's reports at the server, under the server's revisions.
func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Dataplane{Name: "nftables behind the API", Follow: follow, Seeds: 4})
}

// follow is what 'switchyard apply nftables' does.
func follow(ctx context.Context, api string, s conformance.Settings) error {
	f, err := apifollower.New(apifollower.Options{Client: client.Options{Target: api, Name: "nftables", Logger: s.Logger}, Logger: s.Logger})
	if err != nil {
		return err
	}
	dataplane, err := nftables.New(ctx, nftables.Options{Logger: s.Logger})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	err = backend.Run(ctx, f, dataplane, backend.RunOptions{
		Logger: s.Logger, OnStatus: func(s backend.Status) { f.Report(s.Applied, s.Failed) },
	})
	return errors.Join(err, <-done, dataplane.Close())
}
