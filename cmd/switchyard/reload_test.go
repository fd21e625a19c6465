package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestOtherFilesDoNotPostponeReading: a neighbouring file is written continuously. The configuration is still read
// once it has been left alone, or a second after the first event.
func TestOtherFilesDoNotPostponeReading(t *testing.T) {
	for what, c := range map[string]struct {
		events int
		after  time.Duration
	}{
		"one event":  {1, quietPeriod},
		"all events": {1000, latestReading},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			synctest.Test(t, func(t *testing.T) {
				var logged strings.Builder
				d := &daemon{files: &configFiles{paths: []string{path}}, log: slog.New(slog.NewTextHandler(&logged, nil))}
				ctx, cancel := context.WithCancel(t.Context())
				events, ended := make(chan fsnotify.Event), make(chan error)
				go func() { ended <- d.followEvents(ctx, events, nil) }()
				time.Sleep(time.Minute) // it was read at the start, when there was no file
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				for range c.events {
					events <- fsnotify.Event{}
					time.Sleep(quietPeriod / 2)
				}
				time.Sleep(time.Minute)
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				line, _, _ := strings.Cut(logged.String(), " ")
				at, err := time.Parse("time="+time.RFC3339, line)
				if err != nil {
					t.Fatalf("the file was not read: %s", logged.String())
				}
				if after := at.Sub(start); after != c.after {
					t.Errorf("the file was read after %v, want %v", after, c.after)
				}
			})
		})
	}
}
