package ipvs

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

var update = flag.Bool("update", false, "write testdata/table.nft")

// TestGoldenTable: what nft shows of the tables is what operators read.
func TestGoldenTable(t *testing.T) {
	n := newNode(t, Options{LocalDetector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}})
	n.full(web("web", "10.96.0.10:80/TCP", "10.244.0.1:8080"))
	lines := withoutOwner(netnstest.NFT(t, n.ns, "list", "table", "ip", "switchyard-ipvs") + netnstest.NFT(t, n.ns, "list", "table", "ip6", "switchyard-ipvs"))
	path := filepath.Join("testdata", "table.nft")
	if *update {
		n.must(os.WriteFile(path, []byte(lines), 0o600))
	}
	want, err := os.ReadFile(path)
	n.must(err)
	if lines != string(want) {
		t.Errorf("nft shows\n%s\nwant what %s has; -update writes it", lines, path)
	}
}

// TestRulesChange: another detector changes rules, and no elements; drift of rules is repaired.
func TestRulesChange(t *testing.T) {
	n := newNode(t, Options{LocalDetector: state.LocalDetector{NodeCIDR: true}})
	service := web("web", "10.96.0.10:80/TCP", "10.244.0.1:8080")
	n.full(service)
	list := func() (s string) {
		n.must(n.ns.Do(func() error {
			conn, err := nft.Dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			sk, err := conn.ReadSkeleton(plan.TableOf(state.IPv4))
			if err != nil {
				return err
			}
			elems, err := conn.Elems(plan.TableOf(state.IPv4), "servers")
			s = fmt.Sprint(len(sk.Rules("mark-unless-pod")), " rules, ", len(elems), " servers")
			return err
		}))
		return s
	}
	if got, want := list(), "2 rules, 1 servers"; got != want {
		t.Errorf("with a detector %s, want %s", got, want)
	}
	n.rev++
	_, err := n.Apply(t.Context(), &state.Update{Revision: n.rev, Node: &state.Node{Name: "node", LocalDetector: &state.LocalDetector{}}})
	n.must(err)
	if got, want := list(), "1 rules, 1 servers"; got != want {
		t.Errorf("without a detector %s, want %s", got, want)
	}
	n.restart() // with the detector again, on a table that has other rules
	n.full(service)
	if got, want := list(), "2 rules, 1 servers"; got != want {
		t.Errorf("after a restart %s, want %s", got, want)
	}
	if r, err := n.Verify(t.Context()); err != nil || r.Written > 0 {
		t.Errorf("Verify has written %d, %v", r.Written, err)
	}
}

// TestPingTable: the sets and the rules for echo requests come with the first Service that asks, and go with no change of other rules. A Service without
// endpoints drops echo requests. A table that an earlier process has left with them is taken over.
func TestPingTable(t *testing.T) {
	n := newNode(t, Options{})
	plain, pinged := web("web", "10.96.0.10:80/TCP", "10.244.0.1:8080"), web("web", "10.96.0.10:80/TCP", "10.244.0.1:8080")
	pinged.Ports[0].Frontends[0].Ping = true
	lonely := web("web", "10.96.0.10:80/TCP", "")
	lonely.Ports[0].Frontends[0].Ping = true
	list := func() (s string) {
		n.must(n.ns.Do(func() error {
			conn, err := nft.Dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			sk, err := conn.ReadSkeleton(plan.TableOf(state.IPv4))
			if err != nil {
				return err
			}
			var answer, drop []nft.Elem
			if plan.AnswersPing(sk.Sets()) {
				if answer, err = conn.Elems(plan.TableOf(state.IPv4), "ping-ips"); err == nil {
					drop, err = conn.Elems(plan.TableOf(state.IPv4), "ping-drop-ips")
				}
			}
			s = fmt.Sprintf("%d and %d rules, %d and %d addresses, set: %v",
				len(sk.Rules("services")), len(sk.Rules("unserved")), len(answer), len(drop), plan.AnswersPing(sk.Sets()))
			return err
		}))
		return s
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { n.full(plain) }, "5 and 2 rules, 0 and 0 addresses, set: false"},
		{func() { n.update(pinged) }, "6 and 3 rules, 1 and 1 addresses, set: true"},
		{func() { n.update(plain) }, "6 and 3 rules, 0 and 0 addresses, set: true"},
		{func() { n.update(pinged) }, "6 and 3 rules, 1 and 1 addresses, set: true"},
		{func() { n.update(lonely) }, "6 and 3 rules, 0 and 1 addresses, set: true"},
		{func() { n.restart(); n.full(pinged) }, "6 and 3 rules, 1 and 1 addresses, set: true"},
		{func() { n.restart(); n.full(plain) }, "6 and 3 rules, 0 and 0 addresses, set: true"},
	} {
		step.do()
		if got := list(); got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
		if r, err := n.Verify(t.Context()); err != nil || r.Written > 0 {
			t.Errorf("%s: Verify has written %d, %v", step.want, r.Written, err)
		}
	}
}

// withoutOwner leaves out the flags and the process that only some kernels have.
func withoutOwner(list string) string {
	var kept []string
	for line := range strings.Lines(list) {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "flags ") {
			continue
		}
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " # progname")
		kept = append(kept, line+"\n")
	}
	return strings.Join(kept, "")
}
