package backend

import (
	"context"
	"sync"
)

// alarm ends a wait when there is a disturbance. It saves a goroutine for each wait; one wait comes between two updates.
type alarm struct {
	mu     sync.Mutex
	raised bool
	end    context.CancelFunc // of the wait under way, nil if there is none
}

// follow raises the alarm for each disturbance, until ctx ends or disturbed is closed.
func (a *alarm) follow(ctx context.Context, disturbed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-disturbed:
			if !ok {
				return
			}
			a.raise()
		}
	}
}

func (a *alarm) raise() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.raised = true
	if a.end != nil {
		a.end()
	}
}

// set makes an alarm call end. If one was raised already, it returns false, and there is nothing to wait for.
func (a *alarm) set(end context.CancelFunc) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = end
	return !a.raised
}

// take reports whether there was an alarm since it was last called, and ends what set began.
func (a *alarm) take() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	raised := a.raised
	a.raised, a.end = false, nil
	return raised
}
