//go:build linux

package iptables

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// BenchmarkForeignCommits has other programs commit in random bursts, while the dataplane commits, too, and at least one of each burst takes rules of ours away. It
// reports how long it takes from the end of the last such program until all are back: the median, the 99th percentile and the longest. VARIANT limits it to
// one variant. Use -benchtime=200x, on an idle machine.
func BenchmarkForeignCommits(b *testing.B) {
	for _, v := range []Variant{Legacy, NFT} {
		if only := os.Getenv("VARIANT"); only != "" && only != string(v) {
			continue
		}
		for _, services := range []int{1, 2500} {
			b.Run(fmt.Sprintf("%s, %d services", v, services), func(b *testing.B) { benchmarkForeignCommits(b, v, services) })
		}
	}
}

func benchmarkForeignCommits(b *testing.B, v Variant, services int) {
	ns := netnstest.New(b)
	dataplane := newBackend(b, ns, Options{Variant: v})
	clusterIP := func(n, endpoint int) *state.Service {
		return recordtest.Service(fmt.Sprintf("s%d", n), recordtest.ClusterIPPort(state.IPv4, state.TCP, n, recordtest.Endpoints(state.IPv4, endpoint, 5)))
	}
	var feed backendtest.Feed
	all := make([]*state.Service, services)
	for i := range all {
		all[i] = clusterIP(i+1, i+1)
	}
	feed.Publish(all)
	applied := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(b.Context())
	var done sync.WaitGroup
	done.Go(func() {
		err := backend.Run(ctx, &feed, dataplane, backend.RunOptions{OnAttempt: func(a backend.Attempt) {
			if a.Update != nil && a.Err == nil {
				select {
				case applied <- struct{}{}:
				default:
				}
			}
		}})
		if err != nil {
			b.Error(err)
		}
	})
	defer done.Wait()
	defer stop()
	<-applied
	j := newJudge(b, ns, v)
	rng := rand.New(rand.NewPCG(1, uint64(services)))
	foreign := &others{b, ns, v, rng}
	var took []time.Duration
	for b.Loop() {
		commits := 1 + rng.IntN(12)
		last := rng.IntN(commits) // that takes rules away
		var gone time.Time
		back := make(chan time.Time, 1)
		for i := range commits {
			if rng.IntN(3) == 0 {
				feed.Publish([]*state.Service{clusterIP(1, 1+5*rng.IntN(50))})
				if rng.IntN(2) == 0 {
					select { // so that what follows comes right after a commit of ours
					case <-applied:
					case <-time.After(time.Second): // the endpoints are the same
					}
				}
			}
			if i == last || i < last && rng.IntN(4) == 0 {
				foreign.destroy()
				gone = time.Now()
				if i == last {
					done.Go(func() { back <- j.whole() })
				}
			} else {
				foreign.add()
			}
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond)))
		}
		took = append(took, (<-back).Sub(gone))
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
	slices.Sort(took)
	for _, p := range []struct {
		name string
		of   float64
	}{{"p50-ms", 0.5}, {"p99-ms", 0.99}, {"max-ms", 1}} {
		b.ReportMetric(float64(took[int(p.of*float64(len(took)-1))].Milliseconds()), p.name)
	}
	b.ReportMetric(0, "ns/op") // of the bursts, too
}

// others are other programs that change the tables.
type others struct {
	b   *testing.B
	ns  *netns.NS
	v   Variant
	rng *rand.Rand
}

func (o *others) restore(flags, input string) {
	err := o.ns.Do(func() error {
		cmd := exec.Command(fmt.Sprintf("iptables-%s-restore", o.v), strings.Fields(flags+" --wait")...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	if err != nil {
		o.b.Error(err)
	}
}

// add changes rules that are not ours.
func (o *others) add() {
	table := []string{"nat", "filter", "mangle"}[o.rng.IntN(3)]
	o.restore("--noflush", fmt.Sprintf("*%s\n:FOREIGN - [0:0]\n-A FOREIGN -s 198.51.100.%d -j RETURN\nCOMMIT\n", table, o.rng.IntN(200)))
}

// destroy takes rules of ours away.
func (o *others) destroy() {
	program := "iptables-" + string(o.v)
	switch o.rng.IntN(6) {
	case 0:
		run(o.b, o.ns, program, "-t", "nat", "-F")
	case 1:
		run(o.b, o.ns, program, "-F")
	case 2:
		o.restore("", "*nat\n:FOREIGN - [0:0]\nCOMMIT\n*filter\n:FOREIGN - [0:0]\nCOMMIT\n") // all else goes
	case 3:
		o.restore("--noflush", "*nat\n:SWY-SERVICES - [0:0]\nCOMMIT\n")
	case 4:
		o.restore("--noflush", "*filter\n:SWY-FILTER - [0:0]\nCOMMIT\n")
	case 5:
		if o.v == NFT {
			run(o.b, o.ns, "nft", "flush", "ruleset")
		} else {
			run(o.b, o.ns, program, "-t", "nat", "-F", "PREROUTING")
		}
	}
}

// judge says when the tables are as they were when it was made.
type judge struct {
	b      *testing.B
	kernel kernel
	want   map[state.Family]map[rules.ChainID]int
}

func newJudge(b *testing.B, ns *netns.NS, v Variant) *judge {
	j := &judge{b: b, want: map[state.Family]map[rules.ChainID]int{}}
	netnstest.Do(b, ns, func() (err error) {
		if v == NFT {
			j.kernel, err = openGeneration()
		} else {
			j.kernel, err = openSizes()
		}
		return err
	})
	b.Cleanup(func() { j.kernel.close() })
	for _, f := range families {
		j.want[f] = j.uses(f)
		if len(j.want[f]) == 0 {
			b.Fatalf("there are no chains of %v", f)
		}
	}
	return j
}

func (j *judge) uses(f state.Family) map[rules.ChainID]int {
	uses, err := j.kernel.uses(f, []rules.Table{rules.NAT, rules.Filter})
	if err != nil {
		j.b.Error(err)
	}
	return uses
}

// whole waits until all rules are there, and returns since when.
func (j *judge) whole() time.Time {
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
		now := time.Now()
		if !slices.ContainsFunc(families, func(f state.Family) bool { return !maps.Equal(j.want[f], j.uses(f)) }) {
			return now
		}
	}
	j.b.Error("rules are missing after a minute")
	return time.Now()
}
