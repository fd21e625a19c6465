//go:build linux

package nftables

import (
	"fmt"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// batchRecorder notes the batches that go to the kernel.
type batchRecorder struct {
	kernel
	batches []string
}

func (r *batchRecorder) Commit(b *nft.Batch) error {
	r.batches = append(r.batches, fmt.Sprintf("%v", *b))
	return r.kernel.Commit(b)
}

// TestBatchesRepeat makes the same changes in several namespaces: the batches must be the same, byte by byte, so that what happened
// on one node can be told from what happened on another.
func TestBatchesRepeat(t *testing.T) {
	var services, changed, others []*state.Service
	for n := range 8 {
		services = append(services, everyKind(fmt.Sprintf("s%d", n), n, 3+n, 0))
		changed = append(changed, everyKind(fmt.Sprintf("s%d", n), n, 9-n, 0))
		others = append(others, everyKind(fmt.Sprintf("s%d", n+4), n+4, 5, 0))
	}
	run := func() []string {
		ns := netnstest.New(t)
		c := dial(t, ns)
		var r batchRecorder
		record := func(c *nft.Conn) kernel {
			r.kernel = sharedKernel{c}
			return &r
		}
		b := openBackend(t, ns, Options{}, record)
		apply(t, b, full(services...))
		apply(t, b, delta(changed...))
		closeBackend(b)
		b = openBackend(t, ns, Options{}, record)
		apply(t, b, full(others...)) // some are gone
		commitRaw(t, c, func(b *nft.Batch) { b.FlushChain(table(state.IPv4), "strays") })
		commitRaw(t, c, func(b *nft.Batch) { b.AddChain(table(state.IPv6), &nft.Chain{Name: "foreign"}) })
		b.guard.raise(foreignChange)
		verify(t, b)
		return r.batches
	}
	first := run()
	if len(first) != 4 {
		t.Fatalf("%d batches, want one for each change", len(first))
	}
	for range 4 {
		for i, batch := range run() {
			if batch != first[i] {
				t.Errorf("batch %d differs", i)
			}
		}
	}
}
