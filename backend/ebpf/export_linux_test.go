package ebpf

import (
	"context"
	"time"

	"github.com/cilium/ebpf"
)

// HookProgram returns a program of the hooks, which must be on.
func HookProgram(b *Backend, name string) *ebpf.Program { return b.hooks.programs.Programs[name] }

// AwaitEnder waits until the dataplane has walked through all sockets as often as it had to, and has nothing left to end.
func AwaitEnder(ctx context.Context, b *Backend) error {
	e := b.ender
	for {
		e.mu.Lock()
		over := e.running == nil && len(e.left) == 0
		e.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
