package edge

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestProbesAreCounted: three probes without an answer make a node silent, and three answers end that. Nothing less does.
func TestProbesAreCounted(t *testing.T) {
	for _, c := range []struct{ what, answers, silent string }{
		{"a node that answers", "!!!!!!", "      "},
		{"a node that is dead", "......", "  ssss"},
		{"answers now and then", "..!..!..!.!", "           "},
		{"a node that comes back", "...!!!!", "  sss  "},
		{"a node that comes back and goes", "...!!.!!!.", "  ssssss  "},
		{"a node that is no longer probed", "...-!.", "  s   "},
		{"a node that cannot be probed", "..//..", "    ss"},
	} {
		p := probes{on: true, sent: true}
		silent := ""
		for _, answer := range c.answers {
			was := p.silent
			if changed := p.note(answer == '!', answer != '-'); changed != (p.silent != was) {
				t.Errorf("%s: a change is reported: %v", c.what, changed)
			}
			p.sent = answer != '-'
			if silent += " "; p.silent {
				silent = silent[:len(silent)-1] + "s"
			}
			if next := len(silent); next < len(c.answers) && c.answers[next] == '/' {
				p.sent = false
			}
		}
		if silent != c.silent {
			t.Errorf("%s, %s: silent is %q, want %q", c.what, c.answers, silent, c.silent)
		}
	}
}

// TestProbesAreSpread: the probes of many nodes leave in small bursts, and early enough for an answer before the next ones. Few are sent at once.
func TestProbesAreSpread(t *testing.T) {
	for _, n := range []int{0, 1, burst, burst + 1, 8192, 16384} {
		synctest.Test(t, func(t *testing.T) {
			at := map[time.Duration]int{}
			begin, sent := time.Now(), 0
			spread(make([]due, n), func(due) {
				at[time.Since(begin)]++
				sent++
			})
			for when, probes := range at {
				if probes > burst || when > probeEvery/2 {
					t.Errorf("%d nodes: %d probes after %v", n, probes, when)
				}
			}
			if sent != n || len(at) != (n+burst-1)/burst {
				t.Errorf("%d nodes: %d probes in %d bursts", n, sent, len(at))
			}
		})
	}
}
