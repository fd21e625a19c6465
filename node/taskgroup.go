package node

import (
	"context"
	"errors"
	"sync"
)

// group runs parts of the process that can be stopped and replaced one by one. The first that fails ends all of them.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	parts  sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

// newGroup returns a group whose parts end with ctx.
func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel}
}

// start runs a part, and returns what stops it and waits for its end. It is called before [group.wait], or by a part.
func (g *group) start(part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(g.ctx)
	done := make(chan struct{})
	g.run(ctx, func(ctx context.Context) error {
		defer close(done)
		defer cancel()
		return part(ctx)
	})
	return func() {
		cancel()
		<-done
	}
}

// run runs a part with a context of the group.
func (g *group) run(ctx context.Context, part func(context.Context) error) {
	g.parts.Go(func() {
		if err := part(ctx); err != nil && !errors.Is(err, context.Canceled) {
			g.fail(err)
		}
	})
}

// fail ends all parts, with err as the reason.
func (g *group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errs = append(g.errs, err)
	g.cancel()
}

// wait waits for the end of all parts, and returns why they ended, nil if it was for the end of the context.
func (g *group) wait() error {
	g.parts.Wait()
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}

// together runs all parts until ctx ends or one of them fails, and returns why.
//
// They share one context. Contexts of their own would end one after the other, so that a part might meet the end of another one before
// its own.
func together(ctx context.Context, parts []func(context.Context) error) error {
	g := newGroup(ctx)
	for _, part := range parts {
		g.run(g.ctx, part)
	}
	return g.wait()
}
