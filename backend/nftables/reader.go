package nftables

import (
	"errors"
	"os"
	"sync"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// kernel is what the dataplane needs of nf_tables. It is *nft.Conn outside tests.
type kernel interface {
	Commit(*nft.Batch) error
	Has(nft.Feature) (bool, error)
	HasTable(nft.Table) (bool, error)
	Table(nft.Table) (nft.TableInfo, error)
	ReadSkeleton(nft.Table) (*nft.Skeleton, error)
	Elems(nft.Table, string) ([]nft.Elem, error)
	elemFinder
	Generation() (uint32, error)
	Port() (uint32, error)
}

// finder looks elements up. Several may do so at once.
type finder interface {
	ruleset.Finder
	Close() error
}

// elemFinder also finds whole elements, and reports the number of elements of a set.
type elemFinder interface {
	finder
	FindElems(t nft.Table, set string, width int, keys []byte, found func(i int, e nft.Elem)) error
	Fill(t nft.Table, set string) (f nft.Fill, ok bool, err error)
}

// usualLimits are those outside tests.
var usualLimits = ruleset.Limits{Find: 50_000, Rewrite: 100_000}

// lookupsAhead is how many lookups are made ahead on each socket, so that none has to wait.
const lookupsAhead = 2

// tableReader reads the tables for one comparison. Each finder has a goroutine, until the reader is closed.
type tableReader struct {
	kernel  kernel
	jobs    chan lookupJob
	workers sync.WaitGroup
}

type lookupJob struct {
	lookup *ruleset.Lookup
	done   chan<- error
}

func newTableReader(k kernel, finders []finder) *tableReader {
	r := &tableReader{kernel: k, jobs: make(chan lookupJob, lookupsAhead*len(finders))}
	for _, f := range finders {
		r.workers.Go(func() {
			for job := range r.jobs {
				job.done <- job.lookup.Run(f)
			}
		})
	}
	return r
}

// close ends the goroutines. The sockets are free afterwards.
func (r *tableReader) close() {
	close(r.jobs)
	r.workers.Wait()
}

// Skeleton implements ruleset.Reader.
func (r *tableReader) Skeleton(t nft.Table) (*nft.Skeleton, error) {
	if exists, err := r.kernel.HasTable(t); !exists || err != nil {
		return nil, err
	}
	return r.kernel.ReadSkeleton(t)
}

// Elems implements ruleset.Reader. A set that has gone since the skeleton was read has none; the skeleton is compared again after the
// repair.
func (r *tableReader) Elems(t nft.Table, set string) ([]nft.Elem, error) {
	elems, err := r.kernel.Elems(t, set)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return elems, err
}

// LookUp implements ruleset.Reader.
func (r *tableReader) LookUp(l *ruleset.Lookup) (wait func() error) {
	done := make(chan error, 1)
	r.jobs <- lookupJob{l, done}
	return func() error { return <-done }
}
