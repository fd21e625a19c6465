package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// The nodes of a relay's benchmark are another process, a fleet: their work must not count as the relay's, and what the relay
// keeps must not be theirs. It takes orders as JSON on stdin and answers each on stdout.

// fleetOrder is one thing to do. Exactly one field is set.
type fleetOrder struct {
	// Start makes the nodes and, in a directory, the certificates of a relay that they believe. They do not connect yet.
	Start *fleetStart `json:",omitempty"`
	// Follow gives the addresses behind the name that all nodes follow. They connect when they get the first ones.
	Follow []string `json:",omitempty"`
	// Await is answered at once, and again when all nodes but the slow ones have a state with the change.
	Await *awaited `json:",omitempty"`
	// Slow makes so many nodes slow, from the first on, and all others fast. Nodes whose speed changes reconnect.
	Slow *int `json:",omitempty"`
	// Digests asks for the digest of the state of each node.
	Digests bool `json:",omitempty"`
	// Stats asks for a fleetStats.
	Stats bool `json:",omitempty"`
}

type fleetStart struct {
	Directory       string
	Nodes, Services int
}

// awaited is a change that nodes should come to have: bytes in the record of a service. The zero value is any state.
type awaited struct {
	Service int
	Bytes   []byte
}

// fleetAnswer answers an order.
type fleetAnswer struct {
	// Error is why there is no answer.
	Error string `json:",omitempty"`
	// Awaited marks the second answer to Await, which may come before or after the answers to orders given in
	// between.
	Awaited bool `json:",omitempty"`
	// Arrived is when each node that is not slow got what was awaited, as UnixNano.
	Arrived []int64 `json:",omitempty"`
	Digests []uint32
	Stats   fleetStats
}

// fleetStats is what has gone over the nodes' connections up to now.
type fleetStats struct {
	// Bytes were sent and received, of TLS.
	Bytes int64
	// Failures are attempts to follow a relay that ended, with the last one's error.
	Failures    int64
	LastFailure string
	// Connected is how many nodes have a connection to each address.
	Connected map[string]int
	// CPU is what the process has used.
	CPU time.Duration
}

// fleet is the process of the nodes, as the benchmark sees it.
type fleet struct {
	cmd *exec.Cmd
	out *json.Encoder
	in  *json.Decoder
	// arrived is the second answer to Await, if it came before another one that was read.
	arrived *fleetAnswer
}

// startFleet starts the process and makes nodes, and the certificates of relays in a directory.
func startFleet(cmd *exec.Cmd, start fleetStart) (*fleet, error) {
	stdin, stdout, err := startPiped(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the nodes: %w", err)
	}
	f := &fleet{cmd: cmd, out: json.NewEncoder(stdin), in: json.NewDecoder(stdout)}
	if _, err := f.order(fleetOrder{Start: &start}); err != nil {
		f.kill()
		return nil, err
	}
	return f, nil
}

func startPiped(cmd *exec.Cmd) (io.WriteCloser, io.Reader, error) {
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return stdin, stdout, cmd.Start()
}

func (f *fleet) order(o fleetOrder) (fleetAnswer, error) {
	if err := f.out.Encode(o); err != nil {
		return fleetAnswer{}, fmt.Errorf("the nodes have ended: %w", err)
	}
	return f.answer()
}

func (f *fleet) answer() (fleetAnswer, error) {
	a, err := f.read()
	if err == nil && a.Awaited {
		f.arrived = &a
		a, err = f.read()
	}
	return failed(a, err)
}

func (f *fleet) awaited() (fleetAnswer, error) {
	if a := f.arrived; a != nil {
		f.arrived = nil
		return failed(*a, nil)
	}
	return failed(f.read())
}

func (f *fleet) read() (a fleetAnswer, err error) {
	if err = f.in.Decode(&a); err != nil {
		err = fmt.Errorf("the nodes have ended: %w", err)
	}
	return a, err
}

func failed(a fleetAnswer, err error) (fleetAnswer, error) {
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// await begins to wait for a state, and makes the change that leads to it. It returns how long after the change each node that is
// not slow had it.
func (f *fleet) await(what awaited, change func() error) (took []time.Duration, err error) {
	if _, err := f.order(fleetOrder{Await: &what}); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := change(); err != nil {
		return nil, err
	}
	all, err := f.awaited()
	if err != nil {
		return nil, err
	}
	took = make([]time.Duration, len(all.Arrived))
	for i, at := range all.Arrived {
		took[i] = time.Unix(0, at).Sub(start)
	}
	return took, nil
}

func (f *fleet) stats() (fleetStats, error) {
	a, err := f.order(fleetOrder{Stats: true})
	return a.Stats, err
}

// settle waits until nothing more is on the wire.
func (f *fleet) settle(ctx context.Context) (fleetStats, error) {
	for last := int64(-1); ; {
		now, err := f.stats()
		if err != nil || now.Bytes == last {
			return now, err
		}
		last = now.Bytes
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// kill ends the process.
func (f *fleet) kill() { kill(f.cmd) }
