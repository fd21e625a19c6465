package main

import (
	"context"
	"io"
	"log/slog"
	"math"
	"path"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/loglimit"
)

// newLog logs as the configuration says, to stderr unless it splits the streams. A Windows service also logs to the
// event log. v decides the log level, which can change at run time, and the limit of lines.
func newLog(stdout, stderr io.Writer, c *config.Config, v *verbosity) *slog.Logger {
	v.set(&c.Logging)
	handler := func(w io.Writer) slog.Handler {
		return cli.LogHandler(w, c.Logging.Format, math.MinInt) // v decides
	}
	output := c.Logging.Options.Text
	if c.Logging.Format == "json" {
		output = c.Logging.Options.JSON
	}
	h := handler(stderr)
	if output.SplitStream {
		h = split{slog.LevelError, h, handler(stdout)}
	}
	var failed error
	if c.Windows.RunAsService && runtime.GOOS == "windows" {
		var to events
		if to, failed = openEvents(); failed == nil {
			h = withEvents(to, handler, stderr)
		}
	}
	log := slog.New(&filter{v.limiter.Handler(h), v})
	if failed != nil {
		log.Warn("cannot open the event log: lines are written to stderr only", "error", failed)
	}
	return log
}

// verbosity is how much is logged. It may be used concurrently.
type verbosity struct {
	now     atomic.Pointer[levels]
	limiter *loglimit.Limiter
}

func newVerbosity() *verbosity { return &verbosity{limiter: loglimit.New()} }

type levels struct {
	general, lowest slog.Level
	modules         []config.VModule
}

func (v *verbosity) set(c *config.Logging) {
	l := &levels{general: cli.LevelOf(c.Verbosity), lowest: cli.LevelOf(c.Verbosity), modules: c.VModule}
	for _, m := range c.VModule {
		l.lowest = min(l.lowest, cli.LevelOf(m.Verbosity))
	}
	v.now.Store(l)
}

// shows reports whether a record is to be logged.
func (l *levels) shows(r *slog.Record) bool {
	if r.Level >= l.general {
		return true
	}
	if r.Level < l.lowest || r.PC == 0 {
		return false
	}
	frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
	file := strings.TrimSuffix(frame.File, ".go")
	for _, m := range l.modules {
		name := path.Base(file)
		if strings.Contains(m.FilePattern, "/") {
			name = file
		}
		if ok, _ := path.Match(m.FilePattern, name); ok {
			return r.Level >= cli.LevelOf(m.Verbosity)
		}
	}
	return false
}

// filter hands on what the verbosity shows.
type filter struct {
	slog.Handler
	v *verbosity
}

func (f *filter) Enabled(_ context.Context, level slog.Level) bool {
	return level >= f.v.now.Load().lowest
}

func (f *filter) Handle(ctx context.Context, r slog.Record) error {
	if !f.v.now.Load().shows(&r) {
		return nil
	}
	return f.Handler.Handle(ctx, r)
}

func (f *filter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &filter{f.Handler.WithAttrs(attrs), f.v}
}

func (f *filter) WithGroup(name string) slog.Handler { return &filter{f.Handler.WithGroup(name), f.v} }

// split hands what has a level, or a higher one, to one handler and the rest to another.
type split struct {
	level       slog.Level
	above, rest slog.Handler
}

func (s split) Enabled(context.Context, slog.Level) bool { return true }

func (s split) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= s.level {
		return s.above.Handle(ctx, r)
	}
	return s.rest.Handle(ctx, r)
}

func (s split) WithAttrs(attrs []slog.Attr) slog.Handler {
	return split{s.level, s.above.WithAttrs(attrs), s.rest.WithAttrs(attrs)}
}

func (s split) WithGroup(name string) slog.Handler {
	return split{s.level, s.above.WithGroup(name), s.rest.WithGroup(name)}
}
