//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/loadcheck"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Subject is a proxy under test, with the way on which it learns of the cluster. It is used by one goroutine.
type Subject interface {
	// Put adds objects to the cluster or replaces them, in this order. It does not wait until the proxy has noticed.
	Put(changed []Object) error
	// Start starts the proxy's process on the lab's node. Kill ends it by SIGKILL, Stop by SIGTERM, and both wait for the end.
	Start() error
	Kill() error
	Stop() error
	// Failure returns why the process has ended although nobody asked it to, nil if it has not.
	Failure() error
	// PID is the number of the process.
	PID() int
	// Close ends everything.
	Close() error
}

// feed is the way on which a switchyard process learns of the cluster.
type feed interface {
	put(changed []Object) error
	// args are the arguments of the process.
	args() []string
	close() error
}

// switchyard is a real process of Switchyard.
type switchyard struct {
	feed
	dataplane *dataplane
	lab       *topology.Lab
	program   string
	log       string
	running   *process // nil if it is not meant to run
	// leaving is a process that was asked to end while it carries connections, and does so when a next one has taken them over. It may be nil.
	leaving *process
	// ledger learns of times in which no process carries connections, or deletes flows. It may be nil.
	ledger *loadcheck.Ledger
	// killed is when a process was, zero if the one that runs is known to serve.
	killed time.Time
	// served are to be called when it is.
	served []func(time.Duration)
}

func newSwitchyard(l *topology.Lab, dir, program string, f feed, d *dataplane) *switchyard {
	return &switchyard{feed: f, dataplane: d, lab: l, program: program, log: filepath.Join(dir, "switchyard.log")}
}

// Put implements [Subject].
func (s *switchyard) Put(changed []Object) error { return s.put(changed) }

// Start implements [Subject].
func (s *switchyard) Start() (err error) {
	s.running, err = startProcess(s.lab.Node(), s.dataplane.carries, s.log, s.program, s.args()...)
	return err
}

// Kill implements [Subject].
func (s *switchyard) Kill() error {
	if s.killed.IsZero() && s.ledger != nil {
		s.killed = time.Now()
		s.served = append(s.served, s.ledger.LeaveFlows())
		if s.dataplane.relays {
			s.served = append(s.served, s.ledger.Interrupt(), s.ledger.ForgetClients(), s.ledger.ForgetFlows())
		}
	}
	return errors.Join(s.end(syscall.SIGKILL), s.left())
}

// Stop implements [Subject]. A process that carries connections ends when the next one has taken them over.
func (s *switchyard) Stop() error {
	if !s.dataplane.relays || s.running == nil {
		return s.end(syscall.SIGTERM)
	}
	err := s.left()
	if s.ledger != nil {
		s.served = append(s.served, s.ledger.ForgetClients()) // clients that come while there is no relay are not handed over
	}
	s.leaving, s.running = s.running, nil
	return errors.Join(err, s.leaving.Cmd.Process.Signal(syscall.SIGTERM))
}

// left waits until the process has ended that was asked to.
func (s *switchyard) left() error {
	if s.leaving == nil {
		return nil
	}
	p := s.leaving
	s.leaving = nil
	if err := p.await("it was asked to, and another one has started"); err != nil {
		return errors.Join(err, tail(s.log))
	}
	return nil
}

// relayPatience is how long a relay may take to serve after the dataplane below it shows the state. In the middle of a switch there may be none.
const relayPatience = 2 * time.Second

// awaitRelay waits until connections go to the relay again, if there was none for a time: the dataplane below it serves alone until then.
func (s *switchyard) awaitRelay(ctx context.Context) error {
	if !s.dataplane.relays || len(s.served) == 0 {
		return nil
	}
	return s.lab.Node().Do(func() error {
		conn, err := nft.Dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		for began := time.Now(); time.Since(began) < relayPatience; {
			chains, err := conn.BaseChains()
			if err != nil {
				return err
			}
			if slices.ContainsFunc(chains, func(c nft.BaseChain) bool {
				return strings.HasPrefix(c.Table, "switchyard-relay-") && c.Name == "prerouting"
			}) {
				return nil
			}
			if err := pause(ctx, 2*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
}

// serves is called when the process is known to serve. It returns how long there was none that carried connections.
func (s *switchyard) serves() (without time.Duration, err error) {
	if s.dataplane.relays && !s.killed.IsZero() {
		without = time.Since(s.killed)
	}
	for _, done := range s.served {
		done(0)
	}
	s.killed, s.served = time.Time{}, nil
	return without, s.left()
}

func (s *switchyard) end(signal syscall.Signal) error {
	if s.running == nil {
		return nil
	}
	p := s.running
	s.running = nil
	if err := p.end(signal); err != nil {
		return errors.Join(err, tail(s.log))
	}
	return nil
}

// awaitEnd waits until the process has ended by itself, as it was meant to.
func (s *switchyard) awaitEnd(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.running.Done():
		s.running = nil
		return nil
	case <-time.After(changeTimeout):
		return errors.Join(fmt.Errorf("switchyard has not ended by itself after %v", changeTimeout), tail(s.log))
	}
}

// Failure implements [Subject].
func (s *switchyard) Failure() error {
	if s.running == nil {
		return nil
	}
	select {
	case <-s.running.Done():
		return errors.Join(fmt.Errorf("switchyard has ended: %w", s.running.Err()), tail(s.log))
	default:
		return nil
	}
}

// PID implements [Subject].
func (s *switchyard) PID() int { return s.running.PID() }

// Close implements [Subject].
func (s *switchyard) Close() error { return errors.Join(s.Kill(), s.close(), s.dataplane.close()) }

// ClusterCIDRs are how a proxy recognizes pods.
func ClusterCIDRs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
}

// podArgs are the arguments of a switchyard process.
func podArgs() []string {
	var texts []string
	for _, p := range ClusterCIDRs() {
		texts = append(texts, p.String())
	}
	return []string{"--cluster-cidr", strings.Join(texts, ",")}
}
