//go:build linux

package ruleset

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

var update = flag.Bool("update", false, "write the golden files anew")

const (
	goldenSkeleton = "testdata/skeleton.nft"
	goldenRanges   = "testdata/ranges.nft"
	goldenResets   = "testdata/resets.nft"
	goldenDrains   = "testdata/drains.nft"
	goldenSuspects = "testdata/suspects.nft"
	goldenEdge     = "testdata/edge.nft"
)

// everyFeature is a shape that needs every kind of rule: counters, restricted clients, echo requests, affinity, NodePorts on loopback addresses, and in each view
// classes that are exact and one that is not. Larger classes have the same rules as that one.
func everyFeature() *shape {
	s := &shape{loopback: true, counted: true}
	for _, f := range families {
		for _, length := range []uint32{16, 32, uint32(8 * addrLen(f))} {
			s.needs(f, setID{kind: allowed, arg: length})
			s.needs(f, setID{kind: pingAllowed, arg: length})
		}
	}
	for _, sp := range []space{service, nodePort} {
		s.needs(state.IPv4, setID{space: sp, kind: stickyFor, arg: 10_800})
		for v := range view(clientViews) {
			s.needs(state.IPv4, setID{space: sp, view: v, kind: endpoints, arg: exactClass * 3 / 2})
			s.needs(state.IPv4, setID{space: sp, view: v, kind: shares, arg: shareClasses[0]})
			s.hash[sp][v] = allHashRules
		}
	}
	return s
}

// TestGoldenSkeleton compares what the nft tool lists of the skeleton with testdata/skeleton.nft, which is for people to read.
func TestGoldenSkeleton(t *testing.T) {
	s := testSettings(families...)
	s.Listeners, s.RelayMark = testListeners, 1<<12
	p := newPlan(s, NewMirror(), NewMirror())
	p.shape, p.node = *everyFeature(), testNode
	for _, f := range families {
		p.compareTable(&tableState{family: f}) // there is no table
	}
	checkGolden(t, goldenSkeleton, p.Write)
}

// withRanges is a shape with what ranges can need, and little else. Each length of blocks has the same rules. The lengths for all ports, for one
// port, and one in between are there.
func withRanges() *shape {
	s := &shape{counted: true}
	for _, length := range []uint32{0, 13, portBits} {
		s.needs(state.IPv4, setID{space: service, kind: blocks, arg: length})
	}
	for _, f := range families {
		s.needs(f, setID{kind: allowed, arg: 32})
	}
	s.needs(state.IPv4, setID{space: ranges, kind: stickyFor, arg: 10_800})
	s.needs(state.IPv4, setID{space: ranges, kind: endpoints, arg: 2})
	s.needs(state.IPv4, setID{space: ranges, view: outside, kind: shares, arg: shareClasses[0]})
	s.hash[ranges][common] = allHashRules
	return s
}

// TestGoldenRanges is TestGoldenSkeleton with ranges.
func TestGoldenRanges(t *testing.T) {
	p := newPlan(testSettings(families...), NewMirror(), NewMirror())
	p.shape, p.node = *withRanges(), testNode
	for _, f := range families {
		p.compareTable(&tableState{family: f})
	}
	checkGolden(t, goldenRanges, p.Write)
}

// withEdge is a shape with what the edge view can need, and little else.
func withEdge() *shape {
	s := &shape{counted: true, edge: true}
	for _, f := range families {
		s.needs(f, setID{kind: allowed, arg: 32})
	}
	for _, sp := range []space{service, nodePort} {
		s.needs(state.IPv4, setID{space: sp, kind: stickyFor, arg: 10_800}) // which is not for this view
		s.needs(state.IPv4, setID{space: sp, view: edge, kind: endpoints, arg: exactClass * 3 / 2})
		s.needs(state.IPv4, setID{space: sp, view: edge, kind: shares, arg: shareClasses[0]})
	}
	return s
}

// TestGoldenEdge is TestGoldenSkeleton with the edge, and with ranges, which have no edge view.
func TestGoldenEdge(t *testing.T) {
	s := withTestEdge(testSettings(families...))
	p := newPlan(s, NewMirror(), NewMirror())
	p.shape, p.node = *withEdge(), testNode
	p.shape.blocks = 1 << portBits
	for _, f := range families {
		p.compareTable(&tableState{family: f})
	}
	checkGolden(t, goldenEdge, p.Write)
}

// testListeners are the listeners of a relay.
var testListeners = []Listener{
	{Family: state.IPv4, Protocol: state.TCP, At: netip.MustParseAddrPort("169.254.115.119:61871")},
	{Family: state.IPv4, Protocol: state.TCP, Outside: true, At: netip.MustParseAddrPort("169.254.115.119:61872")},
	{Family: state.IPv4, Protocol: state.UDP, At: netip.MustParseAddrPort("169.254.115.119:61871")},
	{Family: state.IPv4, Protocol: state.UDP, Outside: true, At: netip.MustParseAddrPort("169.254.115.119:61872")},
	{Family: state.IPv6, Protocol: state.TCP, At: netip.MustParseAddrPort("[fd73:7769:7463:6879::1]:61871")},
	{Family: state.IPv6, Protocol: state.TCP, Outside: true, At: netip.MustParseAddrPort("[fd73:7769:7463:6879::1]:61872")},
	{Family: state.IPv6, Protocol: state.UDP, At: netip.MustParseAddrPort("[fd73:7769:7463:6879::1]:61871")},
	{Family: state.IPv6, Protocol: state.UDP, Outside: true, At: netip.MustParseAddrPort("[fd73:7769:7463:6879::1]:61872")},
}

// TestGoldenResets does so with the tables of resets, without what is in them: without deadlines, and with them.
func TestGoldenResets(t *testing.T) {
	for file, rules := range map[string]resetRules{goldenResets: {gone: true}, goldenDrains: {gone: true, drains: true}} {
		checkGolden(t, file, func(b *nft.Batch) {
			for _, f := range families {
				t := resetPlan(f, rules)
				t.write(b, 0)
			}
		})
	}
}

// TestGoldenSuspects does so with the tables of suspects.
func TestGoldenSuspects(t *testing.T) {
	checkGolden(t, goldenSuspects, func(b *nft.Batch) {
		for _, f := range families {
			AddSuspects(b, f, nil, 0)
		}
	})
}

// checkGolden compares what the nft tool lists after a commit with a file.
func checkGolden(t *testing.T, file string, fill func(*nft.Batch)) {
	t.Helper()
	ns := netnstest.New(t)
	version := "# listed by " + strings.Fields(netnstest.NFT(t, ns, "--version"))[1] + "\n"
	want, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if !*update && !strings.HasPrefix(string(want), version) {
		first, _, _ := strings.Cut(string(want), "\n")
		t.Skipf("%s is %s, which may list rules in another way than this one: %s", file, first, version)
	}
	var b nft.Batch
	fill(&b)
	if err := ns.Do(func() error {
		conn, err := nft.Dial()
		if err != nil {
			return err
		}
		return errors.Join(conn.Commit(&b), conn.Close())
	}); err != nil {
		t.Fatal(err)
	}
	got := version + netnstest.NFT(t, ns, "list", "ruleset")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(want), got); diff != "" && !*update {
		t.Errorf("the rules are not what they were, see it with -update (-want +got):\n%s", diff)
	}
}

// TestRulesShowTheirSyntax compares the comments in skeleton.go, edge.go, relay.go, hash.go, ranges.go, ping.go, resets.go and suspects.go that begin with "nft:" with the rules of family ip in the
// golden files: each shows a rule that is there, and each rule is shown by one.
func TestRulesShowTheirSyntax(t *testing.T) {
	for _, c := range []struct {
		code, golden    []string
		table           string
		rules, comments int // at least
	}{
		{[]string{"skeleton.go", "edge.go", "relay.go", "hash.go", "ranges.go", "ping.go"}, []string{goldenSkeleton, goldenRanges, goldenEdge}, TableName, 100, 40},
		{[]string{"resets.go"}, []string{goldenDrains}, ResetsName, 2, 5},
		{[]string{"suspects.go"}, []string{goldenSuspects}, SuspectsName, 4, 4},
	} {
		checkSyntax(t, c.code, c.golden, c.table, c.rules, c.comments)
	}
}

func checkSyntax(t *testing.T, files, goldens []string, name string, leastRules, leastComments int) {
	t.Helper()
	rules := map[string]bool{} // true if a comment shows all of it
	for _, golden := range goldens {
		listed, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		_, table, _ := strings.Cut(string(listed), "table ip "+name+" {\n")
		table, _, _ = strings.Cut(table, "\n}\n")
		_, chains, _ := strings.Cut(table, "\tchain ")
		for line := range strings.Lines(chains) {
			if text, ok := strings.CutPrefix(line, "\t\t"); ok && !strings.HasPrefix(text, "type ") {
				rules[strings.TrimSuffix(text, "\n")] = false
			}
		}
	}
	var code []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, text...)
	}
	file, golden := strings.Join(files, ", "), strings.Join(goldens, ", ")
	comments := regexp.MustCompile(`(?m)^\s*//\s+nft: (.*)$`).FindAllStringSubmatch(string(code), -1)
	for _, c := range comments {
		text, begins := strings.CutPrefix(c[1], "… ")
		text, ends := strings.CutSuffix(text, " …")
		pattern := strings.ReplaceAll(regexp.QuoteMeta(text), "…", ".*")
		if begins {
			pattern = "(.* )?" + pattern
		}
		if ends {
			pattern += "( .*)?"
		}
		shows, partial := regexp.MustCompile("^"+pattern+"$"), begins && ends
		found := false
		for r := range rules {
			if shows.MatchString(r) {
				found = true
				rules[r] = rules[r] || !partial
			}
		}
		if !found {
			t.Errorf("%s shows a rule that %s does not have: %s", file, golden, c[1])
		}
	}
	for r, shown := range rules {
		if !shown {
			t.Errorf("%s shows no rule like this: %s", file, r)
		}
	}
	if len(rules) < leastRules || len(comments) < leastComments {
		t.Errorf("%s: %d rules and %d comments", file, len(rules), len(comments))
	}
}
