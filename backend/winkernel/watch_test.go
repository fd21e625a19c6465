package winkernel

import (
	"errors"
	"log/slog"
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
		now, restarts := 0, 0
		end := watchProcess(func() (uint32, error) { return sightings[now].id, sightings[now].err }, slog.New(slog.DiscardHandler), func() { restarts++ })
		defer end()
		for i, s := range sightings {
			synctest.Wait()
			if restarts != s.want {
				t.Fatalf("sighting %d: %d restarts, want %d", i, restarts, s.want)
			}
			now = min(i+1, len(sightings)-1)
			time.Sleep(watchPeriod)
		}
	})
}
