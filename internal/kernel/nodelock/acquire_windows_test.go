package nodelock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestOneHolder: the second is refused, or waits for the end of the first.
func TestOneHolder(t *testing.T) {
	o := Options{Logger: slog.New(slog.DiscardHandler)}
	first, err := Acquire(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(t.Context(), o); !isInUse(err) {
		t.Errorf("the second gets %v", err)
	}
	o.Wait = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Acquire(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its context has ended: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { first.Close() })
	second, err := Acquire(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func isInUse(err error) bool { _, ok := errors.AsType[*InUseError](err); return ok }
