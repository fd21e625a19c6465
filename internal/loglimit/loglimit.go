// Package loglimit limits the amount of logging, because other users can cause log lines by creating objects,
// connecting or sending statuses.
//
// A [Limiter] counts the lines of each message at each level. After the first few, it passes one from time to time,
// with the number of lines that were left out before it. Messages are constant texts, and attributes hold the variable
// parts. So a frequent message leaves room for the other messages.
package loglimit

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Key is the attribute with the number of lines that were left out since the last one with the same message.
const Key = "suppressed"

// rate is how many lines of one message pass: so many at once, and later one in each period.
type rate struct {
	burst  int
	period time.Duration
}

var (
	// usual is for what operators read: 8,640 lines a day at most.
	usual = rate{30, 10 * time.Second}
	// debugging is for level Debug, where most of the details are wanted.
	debugging = rate{1000, 100 * time.Millisecond}
)

// maxMessages is how many messages are counted apart. The program has fewer; there can only be more while some are not constant,
// and then those that come last are counted as one.
const maxMessages = 1024

// Limiter bounds what its handlers log together. Its methods may be called concurrently.
type Limiter struct {
	seed       maphash.Seed
	suppressed atomic.Uint64

	mu       sync.Mutex // guards all below
	messages map[message]*bucket
	swept    time.Time // when messages was full and looked through last
	// others counts messages beyond maxMessages: those that operators read, and others.
	others [2]*bucket
}

// message stands for a level and text. It is a hash, so that long texts take no memory.
type message struct {
	level slog.Level
	text  uint64
}

// bucket has the lines of a message that may pass.
type bucket struct {
	rate
	left       int       // lines
	filled     time.Time // when the last of them was added
	suppressed uint64    // since the last line that passed
}

// New returns a limiter that has counted nothing yet.
func New() *Limiter {
	return &Limiter{seed: maphash.MakeSeed(), messages: map[message]*bucket{}}
}

// Suppressed returns how many lines have been left out so far.
func (l *Limiter) Suppressed() uint64 { return l.suppressed.Load() }

// Handler returns a handler that forwards the passed lines to next. Its loggers should have no open groups: otherwise,
// the number of omitted lines is in the group.
func (l *Limiter) Handler(next slog.Handler) slog.Handler { return &handler{next, l} }

type handler struct {
	slog.Handler
	limiter *Limiter
}

// Handle implements [slog.Handler].
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	before, ok := h.limiter.pass(r.Level, r.Message, time.Now())
	if !ok {
		return nil
	}
	if before > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64(Key, before))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.limiter}
}

// WithGroup implements [slog.Handler].
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.limiter}
}

// pass decides about a line. If it passes, before is how many were left out since the last one.
func (l *Limiter) pass(level slog.Level, text string, now time.Time) (before uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(level, text, now)
	b.fill(now)
	if b.left == 0 {
		b.suppressed++
		l.suppressed.Add(1)
		return 0, false
	}
	b.left--
	before, b.suppressed = b.suppressed, 0
	return before, true
}

// bucket returns the bucket of a message. The caller holds mu.
func (l *Limiter) bucket(level slog.Level, text string, now time.Time) *bucket {
	key := message{level, maphash.String(l.seed, text)}
	b := l.messages[key]
	if b != nil {
		return b
	}
	if len(l.messages) >= maxMessages {
		l.sweep(now)
	}
	if len(l.messages) < maxMessages {
		b = newBucket(level, now)
		l.messages[key] = b
		return b
	}
	other := &l.others[0]
	if level < slog.LevelInfo {
		other = &l.others[1]
	}
	if *other == nil {
		*other = newBucket(level, now)
	}
	return *other
}

// sweep forgets messages that are as if they had never been logged. It does so once in a while only, because it looks at all of them.
// The caller holds mu.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < usual.period {
		return
	}
	l.swept = now
	for key, b := range l.messages {
		if b.fill(now); b.left == b.burst && b.suppressed == 0 {
			delete(l.messages, key)
		}
	}
}

func newBucket(level slog.Level, now time.Time) *bucket {
	of := usual
	if level < slog.LevelInfo {
		of = debugging
	}
	return &bucket{rate: of, left: of.burst, filled: now}
}

// fill adds the lines that may pass by now.
func (b *bucket) fill(now time.Time) {
	if n := int(now.Sub(b.filled) / b.period); n > 0 {
		b.left = min(b.left+n, b.burst)
		b.filled = b.filled.Add(time.Duration(n) * b.period)
	}
}
