package nftables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// tooLargeError reports services for each of which alone there is no room. What else an update adds has been committed.
type tooLargeError struct {
	services map[state.ServiceName]error
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("no room for %d services", len(e.services))
}

// mostWithoutRoom is after how many services in a row without room the kernel is asked whether it has any at all. They may be large
// ones of one owner, who must not keep others from being programmed; but if it has none, to try all others is in vain.
const mostWithoutRoom = 16

// moreRoom is the remedy where a batch exceeds the socket's buffer.
const moreRoom = "raise net.core.wmem_max where this process may not exceed it"

// commitParts carries out a plan that there was no room for as a whole, in as few transactions as there is room for, and returns how
// many objects it wrote. Services that do not even fit alone are left as they are, with all that is to be deleted after
// others, and are reported by a [tooLargeError].
func (b *Backend) commitParts(p *plan) (written int, err error) {
	commit := func(fill func(*nft.Batch)) error {
		n, err := b.commitBatch(fill)
		written += n
		return err
	}
	for i := range p.tables {
		if err := commit(func(b *nft.Batch) { p.tables[i].write(b, p.flags) }); err != nil {
			return written, err
		}
	}
	d := p.divide()
	failed, inARow := map[state.ServiceName]error{}, 0
	var search func([]unit) error
	search = func(units []unit) error {
		if len(units) == 0 {
			return nil
		}
		err := commit(func(b *nft.Batch) { d.write(b, units) })
		switch {
		case err == nil:
			inARow = 0
			return nil
		case !errors.Is(err, nft.ErrNoRoom):
			return err
		case len(units) > 1:
			half := len(units) / 2
			if err := search(units[:half]); err != nil {
				return err
			}
			return search(units[half:])
		case units[0].stage == orphanedFrontends:
			return d.orphan(units[0], func(pieces []piece) error {
				return commit(func(b *nft.Batch) { writePieces(b, pieces) })
			})
		case units[0].stage != wholeServices:
			return err
		}
		name := d.names[units[0].index]
		failed[name] = fmt.Errorf("service %v does not fit into one transaction of the kernel: give it fewer endpoints, ports or "+
			"source ranges, or %s: %w", name, moreRoom, err)
		if inARow++; inARow%mostWithoutRoom == 0 {
			return b.probeRoom()
		}
		return nil
	}
	if err := search(d.stages(sharedAdditions, orphanedFrontends)); err != nil {
		return written, err
	}
	if len(failed) > 0 {
		return written, &tooLargeError{failed}
	}
	return written, search(d.stages(orphanedFrontends, numStages))
}

// probeRoom returns an error if there is no room even for a single element, which nobody sees: the same transaction deletes it.
func (b *Backend) probeRoom() error {
	e := newSharedKey(hairpin, netip.IPv4Unspecified()).element()
	_, err := b.commitBatch(func(batch *nft.Batch) {
		t, name, encoded := table(e.family), e.set.name(), e.encode(e.set.layout(e.family))
		batch.AddElem(t, name, encoded)
		batch.DeleteElem(t, name, encoded)
	})
	return err
}
