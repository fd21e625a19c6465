package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

const (
	// attempts is how often a question is asked whose answer is incomplete.
	attempts = 5
	// batchSize is how many flows a caller of Flows gets at once.
	batchSize = 64
)

// Conn is a connection to the table of one network namespace. It may be used by several goroutines at once.
type Conn struct {
	lists, changes guarded
}

// guarded is a socket that one goroutine uses at a time.
type guarded struct {
	mu   sync.Mutex
	sock *socket // nil once closed
}

// Open connects to the table of the calling thread's network namespace. The methods of the Conn may be called from anywhere.
func Open() (*Conn, error) {
	lists, err := openSocket()
	if err != nil {
		return nil, fmt.Errorf("open the connection tracking table: %w", err)
	}
	changes, err := openSocket()
	if err != nil {
		return nil, fmt.Errorf("open the connection tracking table: %w", errors.Join(err, lists.close()))
	}
	return &Conn{guarded{sock: lists}, guarded{sock: changes}}, nil
}

// Close closes the sockets. Every later call returns os.ErrClosed.
func (c *Conn) Close() error {
	if err := errors.Join(c.lists.close(), c.changes.close()); err != nil {
		return fmt.Errorf("close the connection tracking table: %w", err)
	}
	return nil
}

func (g *guarded) close() error {
	return g.do(func(s *socket) error {
		g.sock = nil
		return s.close()
	})
}

// do calls fn, again if the kernel's answer is incomplete.
func (g *guarded) do(fn func(*socket) error) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range attempts {
		if g.sock == nil {
			return os.ErrClosed
		}
		if err = fn(g.sock); !errors.Is(err, errIncomplete) {
			break
		}
	}
	return err
}

// Flows lists the flows that f admits. It calls each with some of them at a time, which are valid only during the call. The memory that it
// takes does not depend on their number. Flows that begin or end during the listing may be missing, and a flow may come twice. An error of
// each ends the listing, and is returned. each must not call Flows.
//
// The kernel walks its whole table. With CTA_FILTER (from Linux 5.8 on; CTA_STATUS_MASK, for Unconnected, is younger), it copies out little
// more than those flows. A kernel that ignores or rejects the filter copies out all flows. Flows uses no filter if the table has more than
// 32,768 entries. While the kernel walks with a filter that admits little, its CPU handles no packets.
func (c *Conn) Flows(f Filter, each func([]Flow) error) error {
	crowded, err := c.tooCrowded()
	if err == nil {
		err = c.flows(f, !crowded, each)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = c.flows(f, false, each)
	}
	if err != nil {
		return fmt.Errorf("list connection tracking entries: %w", explain(err))
	}
	return nil
}

// Len returns how many flows the table of the namespace has. It costs about as much as a system call.
func (c *Conn) Len() (n int, err error) {
	err = c.changes.do(func(s *socket) (err error) {
		n, err = s.entries()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count connection tracking entries: %w", explain(err))
	}
	return n, nil
}

// crowd is how many entries are walked through with a filter.
const crowd = 32768

// tooCrowded reports whether a listing should rather copy out all flows. While the kernel walks, its CPU does nothing else and handles no
// packets until it has filled a buffer. With a filter that admits little, the walk lasts to the end of the table. It takes 12 ms in an
// empty table of 262,144 buckets, 20 ms with 32,768 entries, and 80 ms with 262,144. Other programs lose packets in that time. Without a
// filter, the kernel copies for a second, but yields to other work many times.
func (c *Conn) tooCrowded() (bool, error) {
	n, err := c.Len()
	return n > crowd, err
}

func (c *Conn) flows(f Filter, useFilter bool, each func([]Flow) error) error {
	request := encodeDump(f, useFilter)
	var garbage, stop error
	batch := make([]Flow, 0, batchSize)
	err := c.lists.do(func(s *socket) error {
		return s.dump(msgGet, request, func(payload []byte) {
			if stop != nil {
				return
			}
			flow, err := decodeFlow(payload)
			if err != nil {
				garbage = err
			} else if f.Match(flow) {
				batch = append(batch, flow)
			}
			if len(batch) == batchSize {
				stop, batch = each(batch), batch[:0]
			}
		})
	})
	if stop == nil && len(batch) > 0 {
		stop = each(batch)
	}
	return cmp.Or(stop, err, garbage)
}

// Find returns the flow whose answers are reply, in zone 0: the flow of a packet that has arrived from reply.Dst at
// reply.Src. If there is none, the error wraps os.ErrNotExist. It costs about as much as a system call, however many
// flows there are.
func (c *Conn) Find(protocol state.Protocol, reply Tuple) (flow Flow, err error) {
	var garbage error
	request, err := encodeFind(protocol, reply)
	if err == nil {
		err = c.changes.do(func(s *socket) error {
			return s.request(msgGet, request, func(payload []byte) { flow, garbage = decodeFlow(payload) })
		})
	}
	if err = cmp.Or(err, garbage); err != nil {
		return Flow{}, fmt.Errorf("find the connection tracking entry that is answered %v: %w", reply, explain(err))
	}
	return flow, nil
}

// Delete removes the entries with the flows' original tuples and zones, with a system call or two for each 64. An
// entry that is gone already is not an error. deleted is how many were there. Flows after one that cannot be deleted
// are deleted nonetheless; the error is about the first such one.
func (c *Conn) Delete(flows ...Flow) (deleted int, err error) {
	for batch := range slices.Chunk(flows, batchSize) {
		n, failed := c.deleteBatch(batch)
		deleted, err = deleted+n, cmp.Or(err, failed)
	}
	return deleted, err
}

func (c *Conn) deleteBatch(flows []Flow) (deleted int, err error) {
	fail := func(flow Flow, cause error) {
		if err == nil {
			err = fmt.Errorf("delete the connection tracking entry %v: %w", flow, explain(cause))
		}
	}
	var payloads [][]byte
	var named []Flow // of payloads
	for _, flow := range flows {
		if payload, bad := encodeDelete(flow); bad == nil {
			payloads, named = append(payloads, payload), append(named, flow)
		} else {
			fail(flow, bad)
		}
	}
	if len(named) == 0 {
		return 0, err
	}
	refused := 0
	if failed := c.changes.do(func(s *socket) error {
		refused = 0
		return s.requestAll(msgDelete, payloads, func(i int, errno error) {
			refused++
			if errno != unix.ENOENT {
				fail(named[i], errno)
			}
		})
	}); failed != nil {
		fail(named[0], failed)
		return 0, err
	}
	return len(named) - refused, err
}

// DeleteAll removes all entries that f admits, in one walk of the kernel through its table that lets packets and other work in
// between. f must name the address and the port of a frontend of UDP over IPv4, and may name From. Or it must name From, TCP over IPv4 and
// Unanswered, and nothing else. The error wraps errors.ErrUnsupported for any other filter, and for a kernel that cannot do it, those before
// Linux 6.12; then nothing was deleted. The kernel does not report how many it has deleted: deleted is by how many the table is smaller than before.
func (c *Conn) DeleteAll(f Filter) (deleted int, err error) {
	request, err := encodeDeleteAll(f)
	if err == nil {
		err = c.changes.do(func(s *socket) error {
			before, err := s.entries()
			if err != nil {
				return err
			}
			if err := s.request(msgDelete, request, nil); err != nil {
				return err
			}
			after, err := s.entries()
			deleted += max(before-after, 0)
			return err
		})
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w by this kernel (%w)", errors.ErrUnsupported, err)
	}
	if err != nil {
		end := netip.AddrPortFrom(f.Dst, f.DstPort)
		if f.Unanswered {
			end = f.From
		}
		return deleted, fmt.Errorf("delete connection tracking entries to %v: %w", end, explain(err))
	}
	return deleted, nil
}

// entries asks how many entries the table has.
func (s *socket) entries() (n int, err error) {
	answered := false
	err = s.request(msgStats, appendGenmsg(nil, 0), func(payload []byte) { n, answered = decodeEntries(payload) })
	if err == nil && !answered {
		err = errors.New("the kernel does not report how many entries the table has")
	}
	return n, err
}

// explain adds the remedy to the one error that has one.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
	}
	return err
}
