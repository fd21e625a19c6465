//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/ipvs"
)

// kernelModes are the modes of this kernel in which it carries connections, beginning with one of them.
func (s *stage) kernelModes(first string) ([]string, error) {
	modes := []string{"nftables", "ebpf", "iptables"}
	err := s.lab.Node().Do(func() error {
		conn, err := ipvs.Dial()
		switch {
		case err == nil:
			modes = append(modes, "ipvs")
			conn.Close()
		case !errors.Is(err, ipvs.ErrNoIPVS):
			return err
		}
		return nil
	})
	if i := slices.Index(modes, first); i > 0 {
		modes[0], modes[i] = modes[i], modes[0]
	}
	return modes, err
}

// tour goes from each mode to each other one, once, and ends where it begins.
func tour(modes []string) []string {
	var way []string
	for i := range modes {
		for _, next := range modes[i+1:] {
			way = append(way, modes[i], next)
		}
	}
	return append(way, modes[0])
}

// thereAndBack goes from each mode to another one, and from that to each.
func thereAndBack(modes []string, other string) []string {
	var way []string
	for _, mode := range modes {
		way = append(way, mode, other)
	}
	return append(way, modes[0])
}

// switchModes changes the mode on three tours. The last tour ends with the relay, after which the process carries
// connections that stay open.
func switchModes(ctx context.Context, s *stage) (string, error) {
	d := s.subject.(*switchyard).dataplane
	modes, err := s.kernelModes(d.mode)
	if err != nil {
		return "", err
	}
	killed := func(longest time.Duration) error {
		return inTurn(func() error { return pause(ctx, time.Duration(s.rng.Int64N(int64(longest)))) }, s.subject.Kill, s.subject.Start)
	}
	ended := func(longest time.Duration) error {
		return inTurn(func() error { return pause(ctx, time.Duration(s.rng.Int64N(int64(longest)))) }, s.subject.Stop, s.subject.Start)
	}
	n, switches, kills, ends := s.scaled(5), 0, 0, 0
	var slowest time.Duration
	if d.mode != "userspace" {
		for range n {
			for _, mode := range tour(modes)[1:] {
				took, err := s.switchTo(ctx, mode, nil)
				if err != nil {
					return "", err
				}
				switches++
				slowest = max(slowest, took)
			}
		}
		for range n {
			for _, mode := range tour(modes)[1:] {
				kills++
				if _, err := s.switchTo(ctx, mode, func() error { return killed(slowest) }); err != nil {
					return "", err
				}
			}
		}
	}
	copied := *d.kind
	d.kind, copied.relays = &copied, true
	way := thereAndBack(modes, "userspace")
	if d.mode == "userspace" {
		way = way[:len(way)-1]
	} else {
		way = way[1:]
	}
	for range n {
		for i, mode := range way {
			var meanwhile func() error
			if i%3 == 1 {
				ends++
				meanwhile = func() error { return ended(max(slowest, time.Second)) }
			}
			took, err := s.switchTo(ctx, mode, meanwhile)
			if err != nil {
				return "", err
			}
			switches++
			if meanwhile == nil {
				slowest = max(slowest, took)
			}
		}
	}
	return fmt.Sprintf("%d switches among %v and userspace; %d more killed in the middle; in the middle of %d there was a restart. The slowest took %v",
		switches, modes, kills, ends, slowest.Round(time.Millisecond)), nil
}

// switchTo changes the mode, and the cluster at the same time. It returns how long that took.
func (s *stage) switchTo(ctx context.Context, mode string, meanwhile func() error) (time.Duration, error) {
	fmt.Fprintf(s.Log, "  %v: to mode %s\n", time.Now().Format(time.TimeOnly), mode)
	before, err := s.countLogged("another dataplane is in use")
	if err != nil {
		return 0, err
	}
	// Each mode remembers clients for itself.
	remembers := s.ledger.ForgetClients()
	defer remembers(0)
	began := time.Now()
	s.kube().fields["mode"] = mode
	if err := s.kube().writeConfig(); err != nil {
		return 0, err
	}
	s.shuffle()
	if err := s.sendState(); err != nil {
		return 0, err
	}
	if meanwhile != nil {
		err = meanwhile()
	} else {
		err = s.awaitLogged(ctx, "another dataplane is in use", before+1)
	}
	if err != nil {
		return 0, fmt.Errorf("switch to mode %s: %w", mode, err)
	}
	took := time.Since(began)
	if err := s.settle(ctx); err != nil {
		return 0, fmt.Errorf("switch to mode %s: %w", mode, err)
	}
	s.shuffle()
	return took, s.change(ctx)
}
