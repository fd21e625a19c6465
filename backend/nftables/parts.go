package nftables

import (
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// tooLargeError reports services that do not fit even alone. The rest of the update has been committed.
type tooLargeError struct {
	services map[state.ServiceName]error
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("no room for %d services", len(e.services))
}

// mostWithoutRoom is after how many services in a row without room the kernel is asked whether it has any at all. They may be large
// services of one owner, who must not keep others from being programmed. If the kernel has no room, the rest is not tried.
const mostWithoutRoom = 16

// moreRoom is the remedy where a batch exceeds the socket's buffer.
const moreRoom = "raise net.core.wmem_max where this process may not exceed it"

// commitParts carries out a plan that does not fit into one transaction, in as few transactions as possible, and returns how many objects
// it wrote. Services that do not fit even alone stay unchanged, and so do the deletions that come last. A [tooLargeError] reports these
// services.
func (b *Backend) commitParts(p *ruleset.Plan) (written int, err error) {
	commit := func(fill func(*nft.Batch)) error {
		n, err := b.commitBatch(fill)
		written += n
		return err
	}
	failed, inARow := map[state.ServiceName]error{}, 0
	var search func(ruleset.Part) error
	search = func(p ruleset.Part) error {
		if p.Size() == 0 {
			return nil
		}
		err := commit(p.Write)
		switch {
		case err == nil:
			inARow = 0
			return nil
		case !errors.Is(err, nft.ErrNoRoom):
			return err
		case p.Size() > 1:
			first, second := p.Halves()
			if err := search(first); err != nil {
				return err
			}
			return search(second)
		}
		if first, last, ok := p.Orphan(); ok {
			if err := search(first); err != nil {
				return err
			}
			return search(last)
		}
		name, ok := p.Service()
		if !ok {
			return err
		}
		failed[name] = fmt.Errorf("service %v does not fit into one transaction of the kernel: give it fewer endpoints, ports or "+
			"source ranges, or %s: %w", name, moreRoom, err)
		if inARow++; inARow%mostWithoutRoom == 0 {
			return b.probeRoom()
		}
		return nil
	}
	first, last := p.Divide()
	if err := search(first); err != nil {
		return written, err
	}
	if len(failed) > 0 {
		return written, &tooLargeError{failed}
	}
	return written, search(last)
}

// probeRoom returns an error if there is no room even for a single element. The same transaction deletes the element,
// so that it is never visible.
func (b *Backend) probeRoom() error {
	_, err := b.commitBatch(ruleset.Probe)
	return err
}
