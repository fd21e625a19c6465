//go:build linux

package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/conformance"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/topology"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

func naiveDataplane(fault string) conformance.Dataplane {
	return conformance.Dataplane{
		Name: "naive",
		New:  func(conformance.Settings) (backend.Backend, error) { return newNaive(fault) },
		CheckHost: func(t testing.TB) {
			if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil {
				t.Errorf("nft list ruleset: %v\n%s", err, out)
			}
		},
		Seeds: 6,
	}
}

// TestNaive shows that the suite can be passed.
func TestNaive(t *testing.T) {
	needNft(t)
	conformance.Run(t, naiveDataplane(""))
}

// TestFaultsAreNoticed gives the naive dataplane one fault after the other: the stories that are about it must fail.
func TestFaultsAreNoticed(t *testing.T) {
	needNft(t)
	for fault, stories := range map[string][]string{
		"uneven":                    {"cluster_ip", "distribution", "node_port"},
		"weights do not count":      {"weights", "refused_share", "zone_weights", "slow_start"},
		"hashes do not count":       {"hash"},
		"pings do not count":        {"ping"},
		"deadlines do not count":    {"drain_deadline"},
		"silence does not count":    {"ejection"},
		"no masquerade":             {"node_port", "masquerade_detector", "masquerade_all"},
		"no hairpin":                {"hairpin"},
		"no affinity":               {"affinity", "affinity_timeout", "affinity_local"},
		"affinity by address":       {"affinity", "affinity_timeout", "affinity_local"},
		"affinity does not end":     {"affinity_timeout"},
		"affinity is not prolonged": {"affinity_timeout"},
		"resets are ICMP":           {"refused"},
		"rejects are drops":         {"refused", "external_local"},
		"drops are rejects":         {"internal_local", "external_local"},
		"the node is outside":       {"external_local", "external_local_no_detector"},
		"source ranges do not count": {
			"source_ranges", "source_ranges_node",
		},
		"stray ports pass":         {"stray"},
		"UDP flows stay":           {"udp_endpoint_replaced", "udp_endpoints_lost", "udp_early_client", "udp_terminating"},
		"UDP flows are cut":        {"udp_terminating", "under_load"},
		"connections are cut":      {"established"},
		"node ports do not follow": {"node_ports_cidr", "node_ports_all"},
		"node ports everywhere":    {"node_ports_primary", "node_ports_cidr"},
		"gaps between changes":     {"under_load"},
		"restarts wipe":            {"under_load"},
		"old rules stay":           {"restart", "service_changes"},
		"foreign tables go":        {"foreign_tables"},
		"only IPv4":                {"cluster_ip", "one_family"},
		"the mark stays":           {"tunnel"},
		"no loopback guard":        {"loopback", "loopback_node_ports"},
		"the detector stays":       {"detector_changes"},
		"service CIDRs stay":       {"service_cidrs"},
		"clients of previous endpoints stay": {
			"affinity",
		},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			params := conformance.StoryParams(t, naiveDataplane(fault))
			for _, story := range stories {
				one := params
				one.Files = []string{filepath.Join(params.Dir, story+".txtar")}
				one.Dir = ""
				// Which endpoints are drawn may hide a fault: with affinity by address, all draws of affinity_local agree once in some
				// hundred runs.
				var result record
				for range 3 {
					result = record{}
					if testscript.RunT(&result, one); result.failed {
						break
					}
				}
				if !result.failed {
					t.Errorf("story %s passes three times with the fault %q\n%s", story, fault, result.log.String())
				}
			}
		})
	}
}

// TestLimits claims limits that show, or do not, and does not claim one that shows.
func TestLimits(t *testing.T) {
	needNft(t)
	for _, c := range []struct {
		name, fault, story string
		limits             []conformance.Limit
		want               string // in the log of what fails; empty if nothing does
	}{
		{"shows and is claimed", "masquerades all", "cluster_ip", []conformance.Limit{conformance.ClientSourceLost}, ""},
		{"shows and is not claimed", "masquerades all", "cluster_ip", nil, "want source=kept"},
		{"is claimed and does not show", "", "cluster_ip", []conformance.Limit{conformance.ClientSourceLost}, "want source=kept"},
		{
			"of refusals does not show", "", "same_port_number", []conformance.Limit{conformance.EndpointRefusalLost},
			"claims the limit EndpointRefusalLost",
		},
		{
			"of hairpins does not show", "", "hairpin", []conformance.Limit{conformance.HairpinSourceKept}, "claims the limit HairpinSourceKept",
		},
		{"of TCP shows and is claimed", "TCP only", "node_port", []conformance.Limit{conformance.TCPOnly}, ""},
		{"of TCP shows in flows", "TCP only", "udp_terminating", []conformance.Limit{conformance.TCPOnly}, ""},
		{"of TCP shows and is not claimed", "TCP only", "node_port", nil, "only TCP is served"},
		{"of TCP is not reported", "TCP only, silently", "node_port", []conformance.Limit{conformance.TCPOnly}, "does not report it as failed"},
		{"of TCP does not show", "", "node_port", []conformance.Limit{conformance.TCPOnly}, "does not report it as failed"},
		{"has no chance to show", "", "hairpin", []conformance.Limit{conformance.EndpointRefusalLost}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := naiveDataplane(c.fault)
			d.Limits = c.limits
			d, unshown := conformance.Tracked(d)
			params := conformance.StoryParams(t, d)
			params.Files, params.Dir = []string{filepath.Join(params.Dir, c.story+".txtar")}, ""
			var result record
			testscript.RunT(&result, params)
			log := result.log.String() + unshown()
			if failed := result.failed || unshown() != ""; failed != (c.want != "") || !strings.Contains(log, c.want) {
				t.Errorf("failed: %v, want %q in\n%s", failed, c.want, log)
			}
		})
	}
}

// TestMissingSCTPIsNamed: a run names it if the kernel has no SCTP, unless the dataplane claims to serve TCP only.
func TestMissingSCTPIsNamed(t *testing.T) {
	for _, limits := range [][]conformance.Limit{nil, {conformance.ClientSourceLost}, {conformance.TCPOnly}} {
		note := conformance.NoSCTP(conformance.Dataplane{Name: "naive", Limits: limits})
		if named := strings.HasPrefix(note, "NOT CHECKED: "); named != (!topology.HasSCTP() && !slices.Contains(limits, conformance.TCPOnly)) {
			t.Errorf("with the limits %v, on a kernel with SCTP: %v, the note is %q", limits, topology.HasSCTP(), note)
		}
	}
}

// record is a testscript.T that notes whether a story failed, instead of failing itself.
type record struct {
	mu     sync.Mutex
	failed bool
	log    strings.Builder
}

func (r *record) Parallel()     {}
func (r *record) Verbose() bool { return false }

func (r *record) Log(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.log, args...)
}

func (r *record) Skip(args ...any) {
	r.Log(args...)
	runtime.Goexit()
}

func (r *record) Fatal(args ...any) {
	r.Log(args...)
	r.FailNow()
}

func (r *record) FailNow() {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *record) Run(_ string, f func(testscript.T)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
}

func TestEvenness(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n, total int, bias float64) []int {
		counts := make([]int, n)
		for range total {
			if rng.Float64() < bias {
				counts[0]++
				continue
			}
			counts[rng.IntN(n)]++
		}
		return counts
	}
	for _, n := range []int{2, 3, 5, 16, 17, 40, 100} {
		low := 0
		for range 1000 {
			if p := conformance.Evenness(draw(n, 40*n, 0)); p < 1e-4 {
				low++
			}
		}
		if low > 3 {
			t.Errorf("%d endpoints: %d of 1000 even spreads have a probability below 1 in 10,000", n, low)
		}
		if p := conformance.Evenness(draw(n, 40*n, 0.5)); p > 1e-3 {
			t.Errorf("%d endpoints: a spread with half of it on one has probability %g", n, p)
		}
	}
	if p := conformance.Evenness([]int{7}); p != 1 {
		t.Errorf("one endpoint: %g", p)
	}
	// From tables of the chi-squared distribution.
	for _, c := range []struct {
		counts []int
		want   float64
	}{{[]int{60, 40}, 0.0455}, {[]int{50, 30, 40}, 0.0821}, {[]int{20, 20, 20}, 1}} {
		if p := conformance.Evenness(c.counts); p < c.want*0.9-0.01 || p > c.want*1.1+0.01 {
			t.Errorf("%v has probability %g, want %g", c.counts, p, c.want)
		}
	}
}

func TestEnoughToSee(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 2, 3, 5, 100} {
		for range 1000 {
			var seen []int
			for range conformance.EnoughToSee(n) {
				if i := rng.IntN(n); !slices.Contains(seen, i) {
					seen = append(seen, i)
				}
			}
			if len(seen) != n {
				t.Fatalf("%d connections met %d of %d endpoints", conformance.EnoughToSee(n), len(seen), n)
			}
		}
	}
}

// needNft skips the test where the nft program is missing: it is only needed to check the suite itself.
func needNft(t *testing.T) {
	t.Helper()
	netnstest.Need(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("the naive dataplane needs the program nft (package nftables)")
	}
}
