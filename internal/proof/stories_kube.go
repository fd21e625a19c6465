//go:build linux

package proof

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
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

// reload changes one setting after the other.
func reload(ctx context.Context, s *stage) (string, error) {
	rounds, n := s.scaled(10), 0
	for range rounds {
		for _, set := range settings {
			n++
			s.kube().fields[set.field] = set.value
			if err := s.kube().writeConfig(); err != nil {
				return "", err
			}
			if err := s.awaitSaid(ctx, "the configuration has changed", n); err != nil {
				return "", fmt.Errorf("%s: %s: %w", set.field, set.value, err)
			}
			s.shuffle()
			if err := s.change(ctx); err != nil {
				return "", fmt.Errorf("%s: %s: %w", set.field, set.value, err)
			}
		}
	}
	return fmt.Sprintf("%d changes of the configuration", n), nil
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
		if err := errors.Join(s.kube().writeConfig(), s.subject.Start(), s.change(ctx)); err != nil {
			return 0, err
		}
		filler := filepath.Join(dir, "filler")
		if err := s.emptyConfig(filler); err != nil {
			return 0, err
		}
		if err := s.awaitSaid(ctx, "the configuration file is broken", i+1); err != nil {
			return 0, err
		}
		s.shuffle()
		if err := errors.Join(s.change(ctx), s.subject.Kill(), s.subject.Start(), pause(ctx, time.Second)); err != nil {
			return 0, err
		}
		// It has ended, or has not: there must be nothing to say against either, as long as the kernel routes.
		_ = s.subject.Kill()
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

// away takes the API server away. Meanwhile the cluster changes, and the proxy is started again.
func away(ctx context.Context, s *stage) (string, error) {
	api, ok := s.subject.(Absence)
	if !ok {
		return "", fmt.Errorf("the API server of %T cannot be taken away", s.subject)
	}
	const times = 2
	long := max(time.Duration(float64(2*time.Minute)*s.Scale), 3*time.Second) / times
	for i := range times {
		if err := api.Leave(); err != nil {
			return "", err
		}
		if err := pause(ctx, long/2); err != nil {
			return "", err
		}
		if i == 1 {
			if err := errors.Join(s.subject.Kill(), s.subject.Start()); err != nil {
				return "", err
			}
		}
		if err := pause(ctx, long/2); err != nil {
			return "", err
		}
		s.shuffle()
		// A real API server takes no changes while it is away; all that counts is that nobody hears of them.
		if err := errors.Join(api.Return(), s.change(ctx)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d times, for %v each", times, long), nil
}
