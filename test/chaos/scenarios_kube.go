//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/topology"
)

// settings are changes of the configuration that must not be felt.
var settings = []struct{ field, value string }{
	{"nftables", "{masqueradeBit: 9}"},
	{"nodePortAddresses", `[192.0.2.0/24, "2001:db8:0:1::/64"]`},
	{"detectLocal", `{clusterCIDRs: [10.244.0.0/15, "fd00:10:244::/48"]}`},
	{"syncPeriod", "70s"},
	{"healthzBindAddress", `"127.0.0.1:10266"`},
	{"clientConnection", "{contentType: application/json, qps: 50}"},
	{"logging", "{verbosity: 4}"},
	{"nodePortAddresses", "[primary]"},
	{"nftables", "{masqueradeBit: 14}"},
	{"detectLocal", `{clusterCIDRs: [10.244.0.0/16, "fd00:10:244::/48"]}`},
	{"clientConnection", "{contentType: application/json}"},
	{"logging", "{verbosity: 0}"},
	{"healthzBindAddress", `"127.0.0.1:10256"`},
	{"syncPeriod", "30s"},
}

// reloadRounds is the number of rounds of configuration changes after which another process takes over. One process logs the same message
// only 30 times in a row (internal/loglimit).
var reloadRounds = max(30/len(settings), 1)

// reload changes one setting after the other.
func reload(ctx context.Context, s *stage) (string, error) {
	rounds, n, restarts := s.scaled(10), 0, 0
	for i := range rounds {
		if i > 0 && i%reloadRounds == 0 {
			restarts++
			if err := inTurn(s.subject.Stop, s.subject.Start, func() error { return s.change(ctx) }); err != nil {
				return "", err
			}
		}
		for _, set := range settings {
			n++
			s.kube().fields[set.field] = set.value
			if err := s.kube().writeConfig(); err != nil {
				return "", err
			}
			if err := s.awaitLogged(ctx, "the configuration has changed", n); err != nil {
				return "", fmt.Errorf("%s: %s: %w", set.field, set.value, err)
			}
			s.shuffle()
			if err := s.change(ctx); err != nil {
				return "", fmt.Errorf("%s: %s: %w", set.field, set.value, err)
			}
		}
	}
	return fmt.Sprintf("%d changes of the configuration, %d restarts", n, restarts), nil
}

// fullDisk has the configuration on a disk of its own.
func fullDisk(ctx context.Context, s *stage) (string, error) {
	dir := filepath.Dir(s.kube().configPath())
	if err := s.subject.Stop(); err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		return "", os.NewSyscallError("mount", err)
	}
	n, err := s.fillDisk(ctx, dir)
	err = errors.Join(err, os.NewSyscallError("umount", unix.Unmount(dir, unix.MNT_DETACH)))
	if err == nil {
		err = errors.Join(s.kube().writeConfig(), s.subject.Start())
	}
	return fmt.Sprintf("%d times an empty configuration", n), err
}

// fillDisk leaves no process running.
func (s *stage) fillDisk(ctx context.Context, dir string) (times int, err error) {
	n := s.scaled(10)
	for i := range n {
		if err := inTurn(s.kube().writeConfig, s.subject.Start, func() error { return s.change(ctx) }); err != nil {
			return 0, err
		}
		filler := filepath.Join(dir, "filler")
		if err := s.emptyConfig(filler); err != nil {
			return 0, err
		}
		if err := s.awaitLogged(ctx, "invalid configuration file; keeping last known good configuration", i+1); err != nil {
			return 0, err
		}
		s.shuffle()
		change := func() error { return s.change(ctx) }
		wait := func() error { return pause(ctx, time.Second) } // flows of datagrams are deleted during that time
		awaitEnd := func() error { return s.subject.(*switchyard).awaitEnd(ctx) }
		if err := inTurn(change, wait, s.subject.Kill, s.subject.Start, awaitEnd, wait); err != nil {
			return 0, err
		}
		if err := os.Remove(filler); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// emptyConfig writes the configuration to a disk that gets full after the file was truncated.
func (s *stage) emptyConfig(filler string) error {
	file, err := os.OpenFile(s.kube().configPath(), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	fill, err := os.Create(filler)
	if err != nil {
		return err
	}
	defer fill.Close()
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	if _, err := file.Write(s.kube().config()); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("write to a full disk: %w, want ENOSPC", err)
	}
	return nil
}

// away takes the API server away. While it is away the cluster changes, and the proxy is started again.
func away(ctx context.Context, s *stage) (string, error) {
	const times = 2
	long := max(time.Duration(float64(2*time.Minute)*s.Scale), 2*time.Second)
	half := func() error { return pause(ctx, long/2) }
	for i := range times {
		s.fading = true
		if err := inTurn(func() error { return s.change(ctx) }, func() error { return s.expectFading(ctx, topology.Answered) }, s.kube().leave, half); err != nil {
			return "", err
		}
		if i == 1 {
			if err := inTurn(s.subject.Kill, s.subject.Start); err != nil {
				return "", err
			}
		}
		if err := half(); err != nil {
			return "", err
		}
		s.shuffle()
		s.fading = false
		s.forget("services", fadingService.name)
		for _, f := range []state.Family{state.IPv4, state.IPv6} {
			s.forget("endpointslices", newSlice(fadingService.name, f, 0).Name)
		}
		// A real API server takes no changes while it is away; all that counts is that nobody hears of them.
		back := func() error { return s.settle(ctx) }
		if err := inTurn(s.sendState, s.kube().back, back, func() error { return s.expectFading(ctx, topology.TimedOut) }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d times, for %v each, in which one service was deleted", times, long), nil
}

// forget removes an object from the API server.
func (s *stage) forget(resource, name string) {
	s.kube().Remove(resource, name)
	for key := range s.sent {
		if strings.HasSuffix(key, " "+name) {
			delete(s.sent, key)
		}
	}
}

// expectFading waits until connections to the service that is deleted while the API server is away end as they should. Once the service is
// gone, they get no answer, like connections to any unused address.
func (s *stage) expectFading(ctx context.Context, want topology.Outcome) error {
	for _, vip := range fadingService.clusterIPs() {
		for began := time.Now(); ; {
			got := s.client.Probe(ctx, state.TCP, netip.AddrPortFrom(vip, tcpPort), topology.ProbeOptions{Timeout: 200 * time.Millisecond})
			if got.Outcome == want {
				break
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
			if time.Since(began) > changeTimeout {
				return fmt.Errorf("connections to %v of service %s: %v, want %v", vip, fadingService.name, got.Outcome, want)
			}
		}
	}
	return nil
}
