//go:build linux

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// TestKernelReportsNewEndpoints changes set elements and rules in a namespace. The first transaction that brings an address counts, whatever
// object has it. Addresses of the first endpoints do not count, nor addresses that only leave.
func TestKernelReportsNewEndpoints(t *testing.T) {
	ns := netnstest.New(t)
	inMap, inRule, leaving, first := nth(newCIDR, 1), nth(newCIDR, 2), nth(newCIDR, 3), nth(firstCIDR, 4)
	table := nft.Table{Family: nft.IPv4, Name: "t"}
	elem := func(data netip.Addr) nft.Elem {
		return nft.Elem{Key: []byte{192, 0, 2, data.As4()[3]}, Data: data.AsSlice()}
	}
	commit := func(fill func(*nft.Batch)) (began time.Time) {
		netnstest.Do(t, ns, func() error {
			c, err := nft.Dial()
			if err != nil {
				return err
			}
			defer c.Close()
			var b nft.Batch
			fill(&b)
			began = time.Now()
			return c.Commit(&b)
		})
		time.Sleep(20 * time.Millisecond) // the times of two transactions differ
		return began
	}
	commit(func(b *nft.Batch) {
		b.AddTable(table)
		b.AddSet(table, &nft.Set{Name: "m", Key: []nft.Type{nft.TypeIPv4}, Data: []nft.Type{nft.TypeIPv4}})
		b.AddChain(table, &nft.Chain{Name: "c"})
		b.AddElem(table, "m", elem(leaving))
	})
	a, err := watchKernel(ns)
	if err != nil {
		t.Fatal(err)
	}
	mapped := commit(func(b *nft.Batch) {
		b.DeleteElem(table, "m", elem(leaving))
		b.AddElem(table, "m", elem(inMap))
		b.AddElem(table, "m", elem(first))
	})
	ruled := commit(func(b *nft.Batch) {
		b.AddRule(table, "c", []nft.Expr{nft.Immediate(nft.Reg0, inMap.AsSlice())})
		b.AddRule(table, "c", []nft.Expr{nft.Immediate(nft.Reg0, inRule.AsSlice())})
	})
	u := &update{triggers: map[netip.Addr]time.Time{inMap: mapped, inRule: ruled}}
	await.Until(t, "both endpoints", func() bool { _, missing := a.latencies(u); return missing == 0 })
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if len(a.at) != 2 || a.at[inMap].Before(mapped) || a.at[inMap].After(ruled) || a.at[inRule].Before(ruled) {
		t.Errorf("transactions began at %v and %v; the kernel reported %v", mapped, ruled, a.at)
	}
	u.triggers[leaving] = mapped
	if took, missing := a.latencies(u); len(took) != 2 || missing != 1 {
		t.Errorf("%d latencies and %d missing, want 2 and 1", len(took), missing)
	}
}

// TestQuantiles compares with the sorted observations: a quantile is in the bucket of the observation with its rank.
func TestQuantiles(t *testing.T) {
	bounds := []float64{0.001, 0.002, 0.004, 0.008, math.Inf(1)}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var page strings.Builder
		var seen []float64
		fmt.Fprintf(&page, "# HELP m %s\nm_count 1\nm_bucket_other{le=\"0.001\"} 99\n", "text")
		for range 1 + rng.IntN(50) {
			seen = append(seen, rng.Float64()*0.01)
		}
		slices.Sort(seen)
		for _, b := range bounds {
			n, _ := slices.BinarySearch(seen, b)
			le := strings.TrimPrefix(fmt.Sprint(b), "+")
			if math.IsInf(b, 1) {
				le = "+Inf"
			}
			fmt.Fprintf(&page, "m_bucket{ip_family=\"IPv4\",le=%q} %d\nm_bucket{ip_family=\"IPv6\",le=%q} 1000\n", le, n, le)
		}
		before, both := histogram{}, histogram{}
		both.add(parseMetrics(page.String()), "m", oneFamily)
		before.add(parseMetrics(page.String()), "m", oneFamily)
		both.add(parseMetrics(page.String()), "m", oneFamily)
		h := both.since(before)
		if h.count() != float64(len(seen)) {
			t.Fatalf("%v observations, want %d", h.count(), len(seen))
		}
		for _, q := range []float64{0.01, 0.5, 0.99} {
			rank := int(math.Ceil(q * float64(len(seen))))
			i, _ := slices.BinarySearch(bounds, seen[rank-1])
			lower, upper := 0.0, bounds[min(i, len(bounds)-2)]
			if i > 0 {
				lower = bounds[i-1]
			}
			if got := h.quantile(q) / 1000; got < lower || got > upper {
				t.Errorf("quantile %v of %v is %v, want %v to %v", q, seen, got, lower, upper)
			}
		}
	}
	if got := (histogram{}).quantile(0.5); got != 0 {
		t.Errorf("a quantile of nothing is %v, want 0", got)
	}
}

func TestFlags(t *testing.T) {
	for _, test := range []struct {
		args string
		want string // of the error, or of the options
	}{
		{"", "[10] [1 20] 500"},
		{"-full", "[10 100] [1 20 100] 5000"},
		{"-full -simulated 40 -proxies 7,3", "[3 7] [1 20 100] 40"},
		{"-proxies 3,x", `-proxies: "x" is no positive number`},
		{"-rates 0", `-rates: "0" is no positive number`},
		{"-services 1", "-services: 1 is not between 8 and 60000"},
		{"-simulated 100000", "-proxies, -simulated: want 1 to 60000 nodes"},
	} {
		o, err := parse(strings.Fields(test.args))
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(o.proxies, " ", o.rates, " ", o.simulated)
		}
		if got != test.want {
			t.Errorf("%q: %s, want %s", test.args, got, test.want)
		}
	}
}

// TestSmallRun measures every program on few nodes, and all changes must arrive: in the kernels, in the metrics, and at simulated nodes.
func TestSmallRun(t *testing.T) {
	netnstest.Need(t)
	if _, err := controlplane.Binary(); err != nil {
		t.Skip(err)
	}
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "switchyard")
	build := exec.Command("go", "build", "-o", program, "./cmd/switchyard")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o, err := parse(strings.Fields("-services 40 -proxies 2 -rates 5 -length 3s -simulated 5 -simulated-rate 5 -reserve 100 -out " + dir + " -switchyard " + program))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := scale(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 4 {
		t.Fatalf("%d rows, want one of each program:\n%+v", len(rows), rows)
	}
	for _, r := range rows {
		if r.Changes < 5 || r.Missing > 0 || r.Sampled != 2 || r.Kernel.P50 <= 0 || r.Kernel.P99 < r.Kernel.P50 {
			t.Errorf("%s: not all changes came into the kernels: %+v", r.Program, r)
		}
		if r.Observations != 2*r.Changes || r.Metric.P99 <= 0 {
			t.Errorf("%s: %d observations of %d changes on 2 nodes: %+v", r.Program, r.Observations, r.Changes, r)
		}
		if r.Arrivals != r.Simulated*r.Changes {
			t.Errorf("%s: %d arrivals of %d changes at %d simulated nodes", r.Program, r.Arrivals, r.Changes, r.Simulated)
		}
		if r.Resident <= 0 || r.Server <= 0 || r.Watches == 0 {
			t.Errorf("%s: use of the machine is missing: %+v", r.Program, r)
		}
	}
	if rows[3].Simulated != 5 {
		t.Errorf("%d simulated nodes, want 5", rows[3].Simulated)
	}
	page, err := os.ReadFile(filepath.Join(dir, "scale.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| kube-proxy v", "| Switchyard | 2 |", "| Switchyard, one relay | 2 of 7 |", "| ... simulated nodes, until decoded | 5 |"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}
