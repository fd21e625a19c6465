package nftables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ejection"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// suspects is the kernel as an [ejector] uses it. Its socket owns the tables of suspects, because only the owner of a table can change it.
type suspects struct {
	inside *namespace.Namespace
	flags  nft.TableFlags
	commit func(func() error) error
	flows  *conntrack.Conn
	conn   *nft.Conn // nil until it is needed
	// made are the families whose tables are there, and looked is when they were compared last.
	made   [2]bool
	looked time.Time
	batch  nft.Batch
}

func (b *Backend) newWorld() ejectorWorld {
	return &suspects{inside: b.inside, flags: b.flags, commit: b.guard.commit, flows: b.flows}
}

// lookPeriod is the time between two comparisons of the tables of suspects.
const lookPeriod = 30 * time.Second

var suspectFamilies = [...]state.Family{state.IPv4, state.IPv6}

// Suspects implements [ejectorWorld].
func (s *suspects) Suspects(families [2]bool) (list []ruleset.Suspect, err error) {
	if s.conn == nil {
		if err := s.inside.Do(func() (err error) { s.conn, err = nft.Dial(); return err }); err != nil {
			return nil, err
		}
	}
	if families != s.made || time.Since(s.looked) > lookPeriod {
		if err := s.make(families); err != nil {
			return nil, err
		}
	}
	for i, t := range ruleset.SuspectTables() {
		if !families[i] {
			continue
		}
		elems, err := s.conn.Elems(t, ruleset.SuspectSet())
		if err != nil {
			s.made[i] = s.made[i] && !errors.Is(err, os.ErrNotExist) // something else has deleted it
			return nil, err
		}
		for _, e := range elems {
			if suspect, ok := ruleset.SuspectOf(suspectFamilies[i], e); ok {
				list = append(list, suspect)
			}
		}
	}
	return list, nil
}

// make makes the tables of some families as they should be, and removes the others.
func (s *suspects) make(families [2]bool) error {
	s.batch.Reset()
	for i, t := range ruleset.SuspectTables() {
		f := suspectFamilies[i]
		found, err := s.conn.ReadSkeleton(t)
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("reading table %v: %w", t, err)
		case err != nil:
			found = nil
		}
		switch {
		case families[i] && (found == nil || !ruleset.SuspectsAre(f, found, s.flags)):
			ruleset.AddSuspects(&s.batch, f, found, s.flags)
		case !families[i] && found != nil:
			ruleset.DeleteTable(&s.batch, t, found.Flags())
		}
	}
	if err := s.write(); err != nil {
		return fmt.Errorf("tables %s: %w", ruleset.SuspectsName, err)
	}
	s.made, s.looked = families, time.Now()
	return nil
}

// write commits the batch.
func (s *suspects) write() error {
	if s.batch.Len() == 0 {
		return nil
	}
	return s.commit(func() error { return s.conn.Commit(&s.batch) })
}

// forgotten is how many suspects one transaction deletes. It fails as a whole if one of them has gone by itself.
const forgotten = 64

// Forget implements [ejectorWorld].
func (s *suspects) Forget(endpoints []netip.AddrPort) error {
	var errs []error
	for i, f := range suspectFamilies {
		of := slices.DeleteFunc(slices.Clone(endpoints), func(e netip.AddrPort) bool { return state.FamilyOf(e.Addr()) != f })
		for some := range slices.Chunk(of, forgotten) {
			if s.made[i] {
				s.batch.Reset()
				ruleset.DeleteSuspects(&s.batch, f, some...)
				errs = append(errs, s.write())
			}
		}
	}
	return errors.Join(errs...)
}

// Probe implements [ejectorWorld]. The endpoint sees a connection that is reset at once. So nothing remains of it on either side.
func (s *suspects) Probe(ctx context.Context, endpoint netip.AddrPort) ejection.Outcome {
	conn, err := s.inside.DialTCP(ctx, endpoint)
	switch {
	case err == nil:
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // else it closes in the usual way
		}
		_ = conn.Close() // it has answered
		return ejection.Answered
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return ejection.Answered
	case ctx.Err() != nil:
		return ejection.Silent
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ETIMEDOUT):
		<-ctx.Done() // the endpoint may answer others until then
		return ejection.Silent
	}
	return ejection.Failed
}

// Free implements [ejectorWorld].
func (s *suspects) Free(endpoints []netip.AddrPort) error {
	_, err := conntrack.DeleteUnanswered(s.flows, endpoints...)
	return err
}

// Close implements [ejectorWorld].
func (s *suspects) Close(stays bool) error {
	if s.conn == nil {
		return nil
	}
	var err error
	if !stays {
		err = s.make([2]bool{})
	}
	err = errors.Join(err, s.conn.Close())
	s.conn = nil
	return err
}
