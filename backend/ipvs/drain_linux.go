package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
)

const (
	// drainPeriod is how often it is looked which endpoints have no connections any more.
	drainPeriod = 5 * time.Second
	// drainServers is how many virtual servers are looked at each time, at most: each takes a dump of its endpoints.
	drainServers = 256
	// drainStep is how often it is looked while somebody waits.
	drainStep = 200 * time.Millisecond
)

// drain lets endpoints and servers go whose connections have ended.
func (b *Backend) drain(ctx context.Context) {
	tick := time.NewTicker(drainPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.drainNow(time.Now())
		}
	}
}

// Drain is for when no new connection comes to IPVS any more, because another dataplane ahead of it takes them all. It lets all endpoints go as
// their connections end, and returns when none is left, or when ctx ends. No Apply or Verify may follow. What is left then ends with [Cleanup].
func (b *Backend) Drain(ctx context.Context) error {
	if err := b.retire(); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	tick := time.NewTicker(drainStep)
	defer tick.Stop()
	for {
		b.drainNow(time.Now())
		b.mu.Lock()
		left := len(b.servers.byKey)
		b.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// retire has no server take new connections. Flows of UDP to their endpoints go on.
func (b *Backend) retire() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	var ended []plan.Key
	for _, v := range b.servers.byKey {
		if v.want != nil {
			v.keep, v.want = v.want.Endpoints, nil
		}
		b.show(v)
	}
	// New connections to their addresses are another dataplane's, which is ahead: whatever reaches the tables it did not take.
	if err := b.tables.flush(true); err != nil {
		return err
	}
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(b.servers.byKey), plan.Key.Compare) {
		errs = append(errs, b.servers.sync(k, now))
		if b.servers.byKey[k] == nil {
			ended = append(ended, k)
		}
	}
	return errors.Join(append(errs, b.release(ended))...)
}

func (b *Backend) drainNow(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.known || len(b.servers.draining) == 0 {
		return
	}
	ended, err := b.servers.drain(now, drainServers)
	if releaseErr := b.release(ended); err == nil {
		err = releaseErr
	}
	if err != nil {
		b.log.Warn("virtual servers are not cleared of endpoints that are gone; will try again", "error", err)
		b.known = false
		b.disturb()
	}
}
