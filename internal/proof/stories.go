//go:build linux

package proof

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// stories are all of them, in the order in which they run.
var stories = []story{
	{
		name: "peace", about: "Nothing happens but the load, and a change now and then.",
		feed: fromFiles, foreign: true, run: peace,
	},
	{
		name: "kill", about: "SIGKILL at random moments, while it starts, while it waits and while it commits changes; started again at once.",
		feed: fromFiles, foreign: true, background: 300, run: kill,
	},
	{
		name: "restart", about: "SIGTERM and a new start, with changes in between.",
		feed: fromFiles, foreign: true, background: 300, run: restart,
	},
	{
		name: "rolling update", about: "Every pod of the services is replaced, one after the other: the new one gets ready, the old one " +
			"terminates, its endpoint goes, it takes leave of its connections.",
		feed: fromFiles, foreign: true, run: rollingUpdate,
	},
	{
		name: "flush", about: "Somebody runs `nft flush ruleset`.",
		feed: fromFiles, foreign: true, allowed: repairGap, run: flush,
	},
	{
		name: "upgrade", uses: []*variant{next}, about: "A version with another skeleton of rules takes over, and later the first one again, with changes in between.",
		feed: fromFiles, background: 300, run: upgrade,
	},
	{
		name: "reload", about: "The configuration file changes, again and again: the mark's bit, addresses, time-outs, the way to the API server.",
		feed: fromAPIServer, run: reload,
	},
	{
		name: "full disk", about: "The disk is full when the configuration file is written: what is left of it is empty. The process goes on; " +
			"started again it does not come up until there is a file.",
		feed: fromAPIServer, run: fullDisk,
	},
	{
		name: "API server away", about: "The API server is gone, and with it the process once; it comes back with changes, and has forgotten what " +
			"changed meanwhile.",
		feed: fromAPIServer, run: away,
	},
	{
		name: "slow source", about: "The process is started again, and the cluster's objects come one by one, over seconds, before the source is complete.",
		feed: fromStore, background: 300, run: slowSource,
	},
	{
		name: "10000 changes a second", about: "Endpoints of other services change, 10,000 times a second, and those of the services under load meanwhile.",
		feed: fromStore, background: 300, run: churn,
	},
	{
		name: "netlink errors", about: "The kernel refuses one commit in five, with ENOBUFS, ENOMEM, EINTR, EEXIST or EPERM, and the answer to one in five " +
			"of the others is lost.",
		feed: fromFiles, variant: faulty, background: 300, run: netlinkErrors,
	},
	{
		name: "clock jumps", about: "The wall clock jumps twice a second, by up to a year back and forth, through changes and restarts.",
		feed: fromFiles, variant: jumpy, background: 300, run: clockJumps,
	},
}

// peace: changes alone.
func peace(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(20)
	for range n {
		s.shuffle()
		if err := s.change(ctx); err != nil {
			return "", err
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d changes", n), nil
}

// startTime measures how long it takes from a start until a change shows.
func startTime(ctx context.Context, s *stage) (time.Duration, error) {
	if err := s.subject.Stop(); err != nil {
		return 0, err
	}
	began := time.Now()
	s.shuffle()
	if err := s.tell(); err != nil {
		return 0, err
	}
	if err := s.subject.Start(); err != nil {
		return 0, err
	}
	err := s.settle(ctx)
	return time.Since(began), err
}

// kill: half of the kills hit a process that starts, half one that has a change to make.
func kill(ctx context.Context, s *stage) (string, error) {
	start, err := startTime(ctx, s)
	if err != nil {
		return "", err
	}
	n := s.scaled(1000)
	for i := range n {
		s.shuffle()
		if err := s.tell(); err != nil {
			return "", err
		}
		// Files are read after they have been left alone for 50 ms.
		longest := 120 * time.Millisecond
		if i%2 == 0 {
			longest = start + start/2
		}
		if err := pause(ctx, time.Duration(s.rng.Int64N(int64(longest)))); err != nil {
			return "", err
		}
		if err := s.subject.Kill(); err != nil {
			return "", err
		}
		if err := s.subject.Start(); err != nil {
			return "", err
		}
		if i%2 == 0 {
			if err := s.settle(ctx); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%d kills, %d changes", n, n), nil
}

// restart: what changes while there is no process is found by the new one.
func restart(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(50)
	for range n {
		if _, err := startTime(ctx, s); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d restarts", n), nil
}

// rollingUpdate replaces pods.
func rollingUpdate(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(3) * len(s.members)
	for range n {
		old := s.members[0].pod
		if err := s.addMember(old.node == s.lab.OtherNode().Name); err != nil {
			return "", err
		}
		if err := s.change(ctx); err != nil {
			return "", err
		}
		s.members[0].terminating = true
		if err := s.change(ctx); err != nil {
			return "", err
		}
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return "", err
		}
		s.members = s.members[1:]
		if err := s.change(ctx); err != nil {
			return "", err
		}
		// Flows of datagrams are cut soon after the change. What serves until then breaks none, and one that is not cut is noticed.
		if err := pause(ctx, 2500*time.Millisecond); err != nil {
			return "", err
		}
		if err := s.remove(old); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d pods replaced", n), nil
}

// flush: while there are no rules, new connections cannot succeed. What they are given is the time for a repair.
func flush(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(20)
	for range n {
		s.ledger.Interrupt(repairGap)
		err := s.lab.Node().Do(func() error {
			if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
				return fmt.Errorf("nft flush ruleset: %w: %s", err, out)
			}
			return nil
		})
		s.ledger.Interrupt(repairGap) // it took the program some time
		if err != nil {
			return "", err
		}
		if err := pause(ctx, 2*time.Second); err != nil {
			return "", err
		}
		s.shuffle()
		if err := s.change(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d flushes", n), nil
}

// upgrade: the tables of one version are not what the other one wants.
func upgrade(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(20)
	for i := range 2 * n {
		v := next
		if i%2 == 1 {
			v = nil
		}
		if err := s.use(v); err != nil {
			return "", err
		}
		if _, err := startTime(ctx, s); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d upgrades, %d downgrades", n, n), nil
}
