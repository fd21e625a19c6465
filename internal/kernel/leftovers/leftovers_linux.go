package leftovers

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A sweep finds the leftovers of one kind, and removes them if it is told to. It returns them, even with an error. A
// feature that the kernel lacks has no leftovers, which is no error.
type sweep func(ctx context.Context, do action) ([]Item, error)

// action is what a sweep does.
type action bool

const (
	find   action = false // changes nothing, and takes no lock
	remove action = true
)

// sweeps are in the order of removal: IP sets cannot go before the rules that refer to them.
func sweeps() []sweep {
	return []sweep{sweepNFT, sweepLegacy, realIPVS().sweep, sweepIPSets}
}

// Remove removes kube-proxy's leftovers in the calling thread's network namespace, and returns them. It needs
// CAP_NET_ADMIN, and CAP_NET_RAW where tables of iptables-legacy exist. It goes on after a failure; the error then
// names everything that may be left. It waits for other programs that are about to change the same tables, at most for
// some seconds. It may be repeated, and called while another process does the same.
func Remove(ctx context.Context) ([]Item, error) { return run(ctx, sweeps(), remove) }

// Find returns what [Remove] would remove, and changes nothing. A kube-proxy that runs has the same.
func Find(ctx context.Context) ([]Item, error) { return run(ctx, sweeps(), find) }

func run(ctx context.Context, sweeps []sweep, do action) ([]Item, error) {
	var items []Item
	var errs []error
	for _, s := range sweeps {
		if err := ctx.Err(); err != nil {
			return items, errors.Join(append(errs, err)...)
		}
		found, err := s(ctx, do)
		items = slices.Concat(items, found)
		errs = append(errs, err)
	}
	return items, errors.Join(errs...)
}

// How often something is retried that others are in the way of, and the time between: five seconds in all.
const (
	attempts = 100
	pause    = 50 * time.Millisecond
)

// retry calls fn until it succeeds, fails with another error than those given, or that time is over.
func retry(ctx context.Context, fn func() error, again ...error) error {
	for n := 1; ; n++ {
		err := fn()
		if err == nil || n == attempts || !slices.ContainsFunc(again, func(a error) bool { return errors.Is(err, a) }) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}
