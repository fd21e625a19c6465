package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"
)

// A relay that is measured is a process of its own, which runs [AnswerRelay].

// relayOrder asks a relay's process for its relayStats.
type relayOrder struct {
	// Free has it give back to the system what memory it can, and count the most that it takes from now on.
	Free bool
}

// relayStats is what a relay's process has used.
type relayStats struct {
	// Resident is its memory in bytes, and Peak the most that it ever was.
	Resident, Peak uint64
	// Allocated counts all bytes that were ever allocated on the heap.
	Allocated uint64
	CPU       time.Duration
}

// AnswerRelay answers orders from stdin on stdout until that ends.
func AnswerRelay(stdin io.Reader, stdout io.Writer) error {
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	for {
		var o relayOrder
		if err := in.Decode(&o); err != nil {
			return nil // the process that asked is gone
		}
		var err error
		if o.Free {
			runtime.GC() // what pools hold is free after the second time
			debug.FreeOSMemory()
			err = forgetPeak()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s := relayStats{Allocated: m.TotalAlloc, CPU: processCPU()}
		if err != nil {
			return err
		}
		if s.Resident, s.Peak, err = residentMemory(); err == nil {
			err = out.Encode(s)
		}
		if err != nil {
			return err
		}
	}
}

// relayProcess is a relay's process, as the benchmark sees it.
type relayProcess struct {
	cmd     *exec.Cmd
	out     *json.Encoder
	in      *json.Decoder
	address string // of its nodes
}

// relayOptions report where a relay is and what is above it.
type relayOptions struct {
	// Relay makes the command that is a relay with flags of 'switchyard serve --nodes', and [AnswerRelay].
	Relay func(ctx context.Context, args ...string) *exec.Cmd
	// Directory has certificates.
	Directory string
	// Above is where the objects come from, over TLS unless it is the benchmark's own process.
	Above    string
	AboveTLS bool
	// Port is where it serves.
	Port int
}

// startRelay starts a relay. It returns as soon as the process runs.
func startRelay(ctx context.Context, o relayOptions) (*relayProcess, error) {
	file := func(name string) string { return filepath.Join(o.Directory, name) }
	address := addressOf(o.Port)
	args := []string{"--relay", o.Above, "--listen", "tcp://" + address, "--healthz-bind-address", fmt.Sprintf("127.0.0.1:%d", o.Port+1),
		"--tls-cert", file("relay.crt"), "--tls-key", file("relay.key"), "--client-ca", file("ca.crt")}
	if o.AboveTLS {
		args = append(args, "--relay-ca", file("ca.crt"), "--relay-cert", file("relay.crt"), "--relay-key", file("relay.key"), "--relay-server-name", fleetName)
	}
	cmd := o.Relay(ctx, args...)
	stdin, stdout, err := startPiped(cmd)
	if err != nil {
		return nil, fmt.Errorf("start a relay: %w", err)
	}
	return &relayProcess{cmd, json.NewEncoder(stdin), json.NewDecoder(stdout), address}, nil
}

// ready waits until the relay has everything.
func (p *relayProcess) ready(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, awaitTimeout, fmt.Errorf("a relay does not have all objects after %v", awaitTimeout))
	defer cancel()
	for {
		answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port+1))
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		if _, err := p.stats(false); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *relayProcess) stats(free bool) (s relayStats, err error) {
	if err = p.out.Encode(relayOrder{free}); err == nil {
		err = p.in.Decode(&s)
	}
	if err != nil {
		err = fmt.Errorf("the relay has ended: %w", err)
	}
	return s, err
}

// kill ends the process as a lost machine would.
func (p *relayProcess) kill() { kill(p.cmd) }

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended by itself
	_ = cmd.Wait()         // it ends because it was killed
}

// addressOf is where a relay serves at a port.
func addressOf(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// freePorts finds n pairs of ports that nobody listens on, outside the range of client connections. A relay that
// restarts must find its port free.
func freePorts(n int) (ports []int, err error) {
	for port := 20_000; len(ports) < n; port += 2 {
		if port > 30_000 {
			return nil, fmt.Errorf("find ports for %d relays: none from 20000 to 30000 is free", n)
		}
		if listenable(port) && listenable(port+1) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

func listenable(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
