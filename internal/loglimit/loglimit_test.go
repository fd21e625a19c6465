package loglimit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logged is the output of a limited logger.
type logged struct {
	bytes.Buffer
	limiter *Limiter
	log     *slog.Logger
}

func newLogged() *logged {
	l := &logged{limiter: New()}
	l.log = slog.New(l.limiter.Handler(slog.NewTextHandler(&l.Buffer, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return l
}

var suppressedAttr = regexp.MustCompile(Key + `=(\d+)`)

// count returns how many lines there are, and how many they say were left out.
func (l *logged) count(t *testing.T) (lines, suppressed int) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		lines++
		if m := suppressedAttr.FindStringSubmatch(line); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			suppressed += n
		}
	}
	return lines, suppressed
}

// TestFlood: a million lines that others cause become a few, and every one that is left out is counted, while other messages pass.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged()
		const all, perSecond = 1_000_000, 1000
		for i := range all {
			l.log.Warn("ignoring an object", "namespace", fmt.Sprint("tenant-", i%7), "number", i)
			if i%perSecond == perSecond-1 {
				time.Sleep(time.Second)
				l.log.Info("other message", "i", i) // one a second: some of them are left out, too
			}
		}
		const others = all / perSecond
		time.Sleep(usual.period)
		l.log.Warn("ignoring an object")
		l.log.Info("other message")
		lines, suppressed := l.count(t)
		if n := strings.Count(l.String(), "ignoring an object"); n > 150 {
			t.Errorf("%d of a million lines in %d s are written", n, all/perSecond)
		}
		if n := strings.Count(l.String(), "other message"); n < 100 {
			t.Errorf("%d lines of another message are written", n)
		}
		if total := all + others + 2; lines+suppressed != total || uint64(suppressed) != l.limiter.Suppressed() {
			t.Errorf("%d lines are written and say that %d are left out, together %d, want %d; the limiter counts %d",
				lines, suppressed, lines+suppressed, total, l.limiter.Suppressed())
		}
		t.Logf("%d lines of %d are written, %d KiB", lines, all+others+2, l.Len()>>10)
	})
}

func TestBurstAndRefill(t *testing.T) {
	for _, e := range []struct {
		level slog.Level
		rate
	}{{slog.LevelError, usual}, {slog.LevelWarn, usual}, {slog.LevelInfo, usual}, {slog.LevelDebug, debugging}} {
		t.Run(e.level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLogged()
				write := func(n int) (written int) {
					before, _ := l.count(t)
					for range n {
						l.log.Log(t.Context(), e.level, "message")
					}
					after, _ := l.count(t)
					return after - before
				}
				for i, want := range []int{e.burst, 0} {
					if got := write(2 * e.burst); got != want {
						t.Errorf("%d: %d lines at once, want %d", i, got, want)
					}
				}
				time.Sleep(3*e.period + e.period/2)
				if got := write(10); got != 3 {
					t.Errorf("%d lines after a while, want 3", got)
				}
				if want := fmt.Sprintf("%s=%d\n", Key, 3*e.burst); !strings.Contains(l.String(), want) {
					t.Errorf("no line ends with %q", want)
				}
				time.Sleep(e.period / 2) // the half from before counts
				if got := write(10); got != 1 {
					t.Errorf("%d lines after the rest of a period, want 1", got)
				}
				time.Sleep(time.Duration(2*e.burst) * e.period)
				if got := write(2 * e.burst); got != e.burst {
					t.Errorf("%d lines after a long time, want %d", got, e.burst)
				}
			})
		})
	}
}

// TestLevelsAndLoggers: a message counts at each level apart, and is the same in all loggers made from one.
func TestLevelsAndLoggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged()
		with, group := l.log.With("part", "source"), l.log.WithGroup("g")
		for range usual.burst {
			l.log.Warn("message")
			with.Warn("message")
			group.Warn("message", "k", "v")
			l.log.Error("message")
		}
		if lines, _ := l.count(t); lines != 2*usual.burst {
			t.Errorf("%d lines are written, want %d", lines, 2*usual.burst)
		}
		if !strings.Contains(l.String(), "part=source") || !strings.Contains(l.String(), "g.k=v") {
			t.Error("attributes of loggers are lost")
		}
	})
}

// TestMessagesThatDiffer: they take no more memory than there is for messages and are limited together. Later the
// limiter has room for other messages again.
func TestMessagesThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged()
		for i := range 100_000 {
			l.log.Warn(fmt.Sprint("number ", i))
			l.log.Debug(fmt.Sprint("number ", i))
		}
		if n := len(l.limiter.messages); n > maxMessages {
			t.Errorf("%d messages are kept apart, want %d at most", n, maxMessages)
		}
		lines, _ := l.count(t)
		if want := maxMessages + usual.burst + debugging.burst; lines != want {
			t.Errorf("%d lines are written, want %d", lines, want)
		}
		time.Sleep(time.Hour)
		for range 2 * usual.burst {
			l.log.Warn("a constant message")
			l.log.Warn("another constant message")
		}
		for _, message := range []string{"a constant message", "another constant message"} {
			if n := strings.Count(l.String(), `"`+message+`"`); n != usual.burst {
				t.Errorf("after an hour, %q is written %d times, want %d", message, n, usual.burst)
			}
		}
	})
}

// TestConcurrently: no line is lost or counted twice.
func TestConcurrently(t *testing.T) {
	l := newLogged()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				l.log.Warn("message")
				l.log.Info(fmt.Sprint("message ", i%10))
			}
		})
	}
	wg.Wait()
	lines, _ := l.count(t)
	if total := lines + int(l.limiter.Suppressed()); total != 8*2000*2 {
		t.Errorf("%d lines are written or counted, want %d", total, 8*2000*2)
	}
}

func BenchmarkSuppressed(b *testing.B) {
	for _, messages := range []int{1, 10_000} {
		b.Run(fmt.Sprint(messages), func(b *testing.B) {
			log := slog.New(New().Handler(enabled{slog.DiscardHandler}))
			texts := make([]string, messages)
			for i := range texts {
				texts[i] = fmt.Sprint("message ", i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				log.Warn(texts[i%messages], "number", i)
			}
		})
	}
}

// enabled discards, but only what has come that far.
type enabled struct{ slog.Handler }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }
