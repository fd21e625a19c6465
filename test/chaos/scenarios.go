//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// scenarios are all of them, in the order in which they run.
var scenarios = []scenario{
	{
		name: "peace", about: "Only the load, and a few changes.",
		feed: fromFiles, foreign: true, run: peace,
	},
	{
		name: "kill", about: "SIGKILL at random moments: at the start, while idle and during commits, followed by a new start. A third of the kills come 0 to 4 ms after the start of a commit. Every ninth process runs for 2 s, and must delete the UDP flows that the killed ones left.",
		feed: fromFiles, uses: []role{isDoomed}, foreign: true, background: 300, run: kill,
	},
	{
		name: "restart", about: "SIGTERM and a new start, with changes in between. Every fifth start comes more than a second late. If a relay carries connections, the last start comes after the previous process stopped waiting for it. Open connections end with that process, and new ones must succeed.",
		feed: fromFiles, foreign: true, background: 300, run: restart,
	},
	{
		name: "switch", about: "The configuration file changes between all pairs of modes at run time, while the cluster changes. If the kernel carries connections in both modes, the switch is repeated with a SIGKILL at a random moment. If a relay may carry them, it is repeated with a SIGTERM.",
		feed: fromAPIServer, switches: true, background: 100, run: switchModes,
	},
	{
		name: "balance", about: "Weights of EndpointSlices change, also to 0. Services go from hashes to random draws, to hashes of connections, to least connections and back. Endpoints come and go. Half of the connections to another Service must be refused. Large changes are applied in parts, so a change counts 500 ms after its mark.",
		feed: fromStore, slack: 500 * time.Millisecond, run: shares,
	},
	{
		name: "rolling update", about: "Every pod of the services is replaced in turn. The new pod becomes ready. The old one terminates, leaves the endpoints, and closes its connections.",
		feed: fromFiles, foreign: true, run: rollingUpdate,
	},
	{
		name: "flush", about: "Another program runs `nft flush ruleset`. Since Linux 6.9, this does not affect Switchyard's tables. Tables of iptables have no owner: they are flushed and restored.",
		feed: fromStore, foreign: true, background: 1000, run: flush,
	},
	{
		name: "flush on an older kernel", about: "The same on a kernel without table owners: the rules are flushed and restored.",
		feed: fromStore, role: isShared, background: 1000, run: flushRules,
	},
	{
		name: "upgrade", uses: []role{isNext}, about: "A version with another layout of rules takes over, and later the first one again, with changes in between.",
		feed: fromFiles, background: 300, run: upgrade,
	},
	{
		name: "release", release: true, about: "The program of a release is replaced by this version on the same node, and this version by the release, with changes in between.",
		feed: fromFiles, background: 300, run: release,
	},
	{
		name: "mixed versions", release: true, about: "A relay, a server of the node-local API and a dataplane are three processes. One after the other goes from a release to this version, or back. Every combination of the two versions serves a change.",
		feed: fromServers, modes: []string{"nftables"}, background: 300, slowest: 30 * time.Second, run: mixedVersions,
	},
	{
		name: "reload", about: "The configuration file changes repeatedly: the mark bit, addresses, timeouts, the connection to the API server. Sometimes another process takes over.",
		feed: fromAPIServer, run: reload,
	},
	{
		name: "full disk", about: "The disk is full when the configuration file is written, so the file is empty. The running process continues. A new one does not start until there is a file.",
		feed: fromAPIServer, run: fullDisk,
	},
	{
		name: "API server away", about: "The API server is gone, and the process restarts once. The API server returns with changes, without one service and without the history of changes. Clients retry within 60 s (client-go). UDP flows may be deleted 5 s late. Services and EndpointSlices arrive one by one, and each takes a look at 50,000 flows.",
		feed: fromAPIServer, slowest: 90 * time.Second, cutTimeout: lateCut, run: away,
	},
	{
		name: "slow source", about: "A new source is empty at first. The cluster's objects arrive one by one over seconds. Every second time, the process also restarts.",
		feed: fromStore, background: 300, run: slowSource,
	},
	{
		name: "10000 changes a second", about: "Endpoints of other services change 10,000 times a second. Endpoints of the services under load also change.",
		feed: fromStore, background: 300, run: churn,
	},
	{
		name: "tenants", about: "Tenants attack at the same time. The first has a Service with 190 ports and 1,000 source ranges, the maximum, and changes one range ten times a second. The second sends 2,000 datagrams a second with forged sources to a Service with affinity, whose endpoint leaves and returns. Another program commits its own rules. The process is killed once. Other clients must not notice.",
		feed: fromStore, modes: []string{"nftables", "ebpf"}, background: 300, run: tenants,
	},
	{
		name: "netlink errors", about: "The kernel refuses 20% of the commits, with ENOBUFS, ENOMEM, EINTR, EEXIST or EPERM. The answer to 20% of the others is lost. Refused commits are retried service by service, so a change counts 500 ms after its mark.",
		feed: fromFiles, role: isFaulty, background: 300, slack: 500 * time.Millisecond, run: netlinkErrors,
	},
	{
		name: "clock jumps", about: "The wall clock jumps twice a second, by up to a year in both directions, during changes and restarts.",
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

// startTime measures how long it takes from a start, some time after the stop, until a change shows.
func startTime(ctx context.Context, s *stage, late time.Duration) (time.Duration, error) {
	if err := inTurn(s.subject.Stop, func() error { return pause(ctx, late) }); err != nil {
		return 0, err
	}
	began := time.Now()
	s.shuffle()
	err := inTurn(s.sendState, s.subject.Start, func() error { return s.settle(ctx) })
	return time.Since(began), err
}

// inTurn calls functions up to the first that fails.
func inTurn(list ...func() error) error {
	for _, fn := range list {
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

// aWhile is long enough for a process to delete flows, and for the load to notice if it does not.
const aWhile = 2 * time.Second

// kill kills a process that starts, a process that has a change to make, or a process that commits, in equal shares.
func kill(ctx context.Context, s *stage) (string, error) {
	start, err := startTime(ctx, s, 0)
	if err != nil {
		return "", err
	}
	ours, _ := s.subject.(*switchyard)
	n := s.scaled(1000)
	for i := range n {
		s.shuffle()
		if err := s.sendState(); err != nil {
			return "", err
		}
		if i%3 == 2 && ours != nil {
			if err := s.doom(ctx, ours); err != nil {
				return "", err
			}
			if i%9 == 8 {
				if err := pause(ctx, aWhile); err != nil {
					return "", err
				}
			}
			continue
		}
		// Files are read after they have been left alone for 50 ms.
		longest := 120 * time.Millisecond
		if i%3 == 0 {
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
		if i%3 == 0 {
			if err := s.settle(ctx); err != nil {
				return "", err
			}
		}
		if i%3 == 1 && s.kind.relays { // a process must have something to hand over to the next
			again := time.Duration(s.rng.Int64N(int64(start)))
			if err := inTurn(func() error { return pause(ctx, again) }, s.subject.Kill, s.subject.Start, func() error { return s.settle(ctx) }); err != nil {
				return "", err
			}
		}
	}
	happened := fmt.Sprintf("%d kills, %d changes", n, n)
	if ours == nil {
		return happened, nil
	}
	began, err := s.countLogged(commitBegins)
	if err != nil {
		return "", err
	}
	ended, err := s.countLogged(commitEnds)
	if err == nil && n >= 30 && began == ended {
		err = errors.New("no kill came in the middle of a commit")
	}
	return fmt.Sprintf("%s; %d right after the beginning of a commit, %d of them before its end", happened, began, began-ended), err
}

// doom starts a process that kills itself when it commits, and then the usual process. A doomed process that carries connections kills
// itself while it takes them over. The previous process still has the connections, and hands them over to the usual process.
func (s *stage) doom(ctx context.Context, ours *switchyard) error {
	if err := s.use(isDoomed); err != nil {
		return err
	}
	end := ours.Kill
	if s.kind.relays {
		end = ours.Stop
	}
	if err := inTurn(end, ours.Start, func() error { return ours.awaitEnd(ctx) }); err != nil {
		return err
	}
	if err := s.use(""); err != nil {
		return err
	}
	return inTurn(ours.Start, func() error { return s.settle(ctx) })
}

// restart: what changes while there is no process is found by the new one.
func restart(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(50)
	for i := range n {
		if i == n-1 && s.kind.relays {
			if err := s.outlast(ctx); err != nil {
				return "", err
			}
			continue
		}
		var late time.Duration
		if i%5 == 0 { // a container takes its time, longer than a connection may take: nothing may wait for the next process
			late = 1500 * time.Millisecond
		}
		if _, err := startTime(ctx, s, late); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d restarts", n), nil
}

// outlast is a restart for which the previous process, which carries connections, waits without success. It must have
// left everything new to rules that need no process.
func (s *stage) outlast(ctx context.Context) error {
	ended, moved := s.ledger.EndOpen(), s.ledger.ForgetFlows()
	s.outlasted++
	if err := inTurn(s.subject.Stop, s.subject.(*switchyard).left); err != nil {
		return err
	}
	ended(aWhile) // requests may be under way that it has taken with it
	if err := pause(ctx, aWhile); err != nil {
		return err
	}
	s.shuffle()
	if err := inTurn(s.sendState, s.subject.Start, func() error { return s.settle(ctx) }); err != nil {
		return err
	}
	moved(0)
	return nil
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
		// Flows of datagrams are deleted soon after the change. A server that serves until then breaks no flow, and a
		// flow that is not deleted is noticed.
		if err := pause(ctx, s.cutShows); err != nil {
			return "", err
		}
		if err := s.remove(old); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d pods replaced", n), nil
}

const noOwner = "the tables have no owner, though this kernel can keep others from them"

// flush: where the kernel can keep others from tables, Switchyard's are its own.
func flush(ctx context.Context, s *stage) (string, error) {
	if _, ours := s.subject.(*switchyard); ours && s.kind.mode != "iptables" {
		persistent, rules := false, []byte(nil)
		err := s.lab.Node().Do(func() error {
			conn, err := nft.Dial()
			if err != nil {
				return err
			}
			persistent, err = conn.Has(nft.PersistentTables)
			return errors.Join(err, conn.Close())
		})
		if err == nil {
			rules, err = onNode(s.lab, "", "nft", "list", "ruleset")
		}
		if err != nil {
			return "", err
		}
		if persistent && !ownedTables.Match(rules) {
			s.wrong = append(s.wrong, noOwner)
		}
	}
	return flushRules(ctx, s)
}

// flushRules deletes the rules. Rules that belong to their process stay. New connections cannot succeed without rules, so their limit is
// the time for a repair. The rules remember clients with affinity, so these are forgotten as well.
func flushRules(ctx context.Context, s *stage) (string, error) {
	rules, err := onNode(s.lab, "", "nft", "list", "ruleset")
	if err != nil {
		return "", err
	}
	owned := ownedTables.Match(rules)
	if !owned {
		s.allowed, s.mayFail = s.kind.repair, true
	}
	n := s.scaled(20)
	for range n {
		var repaired []func(time.Duration)
		if !owned {
			repaired = append(repaired, s.ledger.Interrupt(), s.ledger.ForgetClients())
		}
		err := s.kind.flush(s.lab)
		for _, done := range repaired {
			done(s.kind.repair)
		}
		if err != nil {
			return "", err
		}
		if err := pause(ctx, s.kind.repair+1800*time.Millisecond); err != nil {
			return "", err
		}
		s.shuffle()
		if err := s.change(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d flushes; rules belonged to their process: %v", n, owned), nil
}

// ownedTables is in a listing if both of Switchyard's tables are there and nobody else can change them.
var ownedTables = regexp.MustCompile(`(?s)\ntable ip switchyard \{[^\n]*\n\tflags owner.*\ntable ip6 switchyard \{[^\n]*\n\tflags owner`)

// upgrade: the tables of one version are not what the other one wants.
func upgrade(ctx context.Context, s *stage) (string, error) {
	n := s.scaled(20)
	for i := range 2 * n {
		v := isNext
		if i%2 == 1 {
			v = ""
		}
		if err := s.use(v); err != nil {
			return "", err
		}
		if _, err := startTime(ctx, s, 0); err != nil {
			return "", err
		}
		if err := s.expectSkeleton(v == isNext); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d upgrades, %d downgrades", n, n), nil
}

// expectSkeleton looks whose skeleton of rules is in the kernel.
func (s *stage) expectSkeleton(wantNext bool) error {
	out, err := s.kind.chains(s.lab)
	if err != nil {
		return err
	}
	if has := strings.Contains(out, s.kind.skeleton); has != wantNext {
		return fmt.Errorf("a chain %s in the kernel: %v, want %v:\n%s", s.kind.skeleton, has, wantNext, out)
	}
	return nil
}
