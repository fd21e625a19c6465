package winkernel

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// HNS stops and starts, alone in its process or in one with other services.
func TestWatchProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sightings := []struct {
			id   uint32
			err  error
			want int // restarts so far
		}{
			{7, nil, 0}, {7, nil, 0}, {9, nil, 1}, {9, nil, 1}, {0, nil, 1}, {0, nil, 1}, {9, nil, 2}, {0, errors.New("no service manager"), 2}, {9, nil, 2}, {10, nil, 3},
		}
		var now atomic.Int64 // nothing but time orders the two goroutines
		restarts := 0
		end := watchProcess(func() (uint32, error) { s := sightings[now.Load()]; return s.id, s.err }, slog.New(slog.DiscardHandler), func() { restarts++ })
		defer end()
		for i, s := range sightings {
			synctest.Wait()
			if restarts != s.want {
				t.Fatalf("sighting %d: %d restarts, want %d", i, restarts, s.want)
			}
			now.Store(int64(min(i+1, len(sightings)-1)))
			time.Sleep(watchPeriod)
		}
	})
}
