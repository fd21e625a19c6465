package main

import (
	"io"
	"log/slog"
	"strings"
)

// events is the event log of a Windows machine.
type events interface {
	Info(id uint32, text string) error
	Warning(id uint32, text string) error
	Error(id uint32, text string) error
}

// eventID is the ID of all events: their text identifies them.
const eventID = 1

// withEvents returns a handler whose lines are events, and go to the handler's writer as well. A service has nobody who reads its streams.
func withEvents(to events, handler func(io.Writer) slog.Handler, w io.Writer) slog.Handler {
	of := func(write func(uint32, string) error) slog.Handler { return handler(eventWriter{write, w}) }
	return split{slog.LevelError, of(to.Error), split{slog.LevelWarn, of(to.Warning), of(to.Info)}}
}

// eventWriter writes lines as events, and to a stream that may not be there.
type eventWriter struct {
	write  func(id uint32, text string) error
	stream io.Writer
}

// Write implements [io.Writer].
func (w eventWriter) Write(line []byte) (int, error) {
	err := w.write(eventID, strings.TrimSpace(string(line)))
	_, _ = w.stream.Write(line)
	return len(line), err
}
