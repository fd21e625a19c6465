package conntrack

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// attempts is how often a question is asked whose answer is incomplete.
const attempts = 5

// Conn is a connection to the table of one network namespace. It may be used by several goroutines at once.
type Conn struct {
	mu   sync.Mutex
	sock *socket // nil once closed
}

// Open connects to the table of the calling thread's network namespace. The methods of the Conn may be called from anywhere.
func Open() (*Conn, error) {
	sock, err := openSocket()
	if err != nil {
		return nil, fmt.Errorf("open the connection tracking table: %w", err)
	}
	return &Conn{sock: sock}, nil
}

// Close lets go of the socket. Every later call returns os.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return fmt.Errorf("close the connection tracking table: %w", os.ErrClosed)
	}
	sock := c.sock
	c.sock = nil
	return sock.close()
}

// Flows lists the flows that f admits. The kernel walks its whole table, but copies out little more than those flows if it
// knows CTA_FILTER (from Linux 5.8 on; CTA_STATUS_MASK, for Unconnected, is younger); a kernel that ignores or rejects the filter
// copies out all. Flows that begin or end
// meanwhile may or may not be in the list, and one may be there twice.
func (c *Conn) Flows(f Filter) ([]Flow, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return nil, fmt.Errorf("list connection tracking entries: %w", os.ErrClosed)
	}
	flows, err := c.flows(f, true)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		flows, err = c.flows(f, false)
	}
	if err != nil {
		return nil, fmt.Errorf("list connection tracking entries: %w", explain(err))
	}
	return flows, nil
}

func (c *Conn) flows(f Filter, useFilter bool) ([]Flow, error) {
	request := encodeDump(f, useFilter)
	var err error
	for range attempts {
		var flows []Flow
		var garbage error
		err = c.sock.dump(msgGet, request, func(payload []byte) {
			flow, err := decodeFlow(payload)
			if err != nil {
				garbage = err
			} else if f.Match(flow) {
				flows = append(flows, flow)
			}
		})
		if err == nil {
			err = garbage
		}
		if !errors.Is(err, errIncomplete) {
			return flows, err
		}
	}
	return nil, err
}

// Delete removes the entry with the flow's original tuple and zone. An entry that is gone already is not an error.
func (c *Conn) Delete(flow Flow) error {
	request, err := encodeDelete(flow)
	if err != nil {
		return fmt.Errorf("delete the connection tracking entry %v: %w", flow, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil {
		return fmt.Errorf("delete the connection tracking entry %v: %w", flow, os.ErrClosed)
	}
	for range attempts {
		err = c.sock.request(msgDelete, request)
		if !errors.Is(err, errIncomplete) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete the connection tracking entry %v: %w", flow, explain(err))
	}
	return nil
}

// explain adds the remedy to the one error that has one.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
	}
	return err
}
