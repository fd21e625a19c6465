package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

type fakeEvents []string

func (f *fakeEvents) Info(_ uint32, text string) error { *f = append(*f, "info: "+text); return nil }
func (f *fakeEvents) Warning(_ uint32, text string) error {
	*f = append(*f, "warning: "+text)
	return nil
}
func (f *fakeEvents) Error(_ uint32, text string) error { *f = append(*f, "error: "+text); return nil }

// broken is the stream of a service, which nobody has opened.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("invalid handle") }

// TestEvents: each line of the log is an event of its level, whatever the stream says, and has its attributes.
func TestEvents(t *testing.T) {
	text := func(w io.Writer) slog.Handler {
		return slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
	}
	var stream bytes.Buffer
	for _, w := range []io.Writer{&stream, broken{}} {
		var got fakeEvents
		log := slog.New(withEvents(&got, text, w)).With("a", 1)
		log.Info("one")
		log.Warn("two")
		log.Error("three", "b", 2)
		want := []string{`info: level=INFO msg=one a=1`, `warning: level=WARN msg=two a=1`, `error: level=ERROR msg=three a=1 b=2`}
		if !slices.Equal(got, want) {
			t.Errorf("the events are %q, want %q", got, want)
		}
	}
	if lines := strings.Count(stream.String(), "\n"); lines != 3 {
		t.Errorf("the stream has %d lines:\n%s", lines, &stream)
	}
}
