package kube

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestRestore takes the API server back to an earlier state, from which it goes on in another way.
func TestRestore(t *testing.T) {
	for title, c := range map[string]struct {
		lost func(a *apiServer) // happens after the backup
		next func(a *apiServer) // happens after the restore, before the source is connected again
	}{
		"nothing since": {func(a *apiServer) { a.put(service("a/x", 81), service("b/new", 80)); a.remove(service("a/y", 80)) }, func(*apiServer) {}},
		"others since": {func(a *apiServer) { a.put(service("a/x", 81)); a.remove(service("a/y", 80)) }, func(a *apiServer) {
			for n := range 20 { // versions are beyond those of before
				a.put(serviceCIDR(fmt.Sprintf("10.%d.0.0/16", n)))
			}
		}},
		"the same object since": {func(a *apiServer) { a.remove(service("a/y", 80)); a.put(service("a/x", 81)) }, func(a *apiServer) {
			for n := range 20 {
				a.put(service("a/x", int32(90+n)))
			}
		}},
		"the same version since": {func(a *apiServer) { a.put(service("a/x", 81)) }, func(a *apiServer) { a.put(service("a/x", 82)) }},
		"the same deletion since": {func(a *apiServer) { a.remove(service("a/x", 80)); a.remove(service("a/y", 80)) }, func(a *apiServer) {
			a.put(serviceCIDR("10.0.0.0/16"))
			a.put(serviceCIDR("10.0.0.0/15"))
			a.remove(service("a/y", 80))
		}},
		"the node": {func(a *apiServer) { a.remove(node("here")) }, func(a *apiServer) { a.put(service("a/x", 83), service("a/x", 84)) }},
	} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(node("here"), service("a/x", 80), service("a/y", 80), slice("a/x", "10.0.0.1"))
				w := begin(a)
				w.complete(true)
				backup := a.version
				c.lost(a)
				w.holds(append(a.truth(), gone(a)...)...)
				a.restore(backup)
				c.next(a)
				a.up()
				settle(shortWatch * 60)
				w.holds(a.truth()...)
				if text := w.logs.String(); strings.Count(text, "the API server has gone back to an earlier state") != 1 {
					t.Errorf("the log is\n%s", text)
				}
				w.noProblems()
				a.put(service("a/later", 80))
				w.holds(a.truth()...)
			})
		})
	}
}

// gone is the Node, which stays if it is deleted.
func gone(a *apiServer) []string {
	if len(a.objects["nodes"]) > 0 {
		return nil
	}
	return []string{hereNode}
}

// TestSameHistory breaks connections of an API server that goes on: nothing is listed again for that.
func TestSameHistory(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(node("here"), service("a/x", 80), service("a/y", 80), slice("a/x", "10.0.0.1"))
		w := begin(a)
		w.complete(true)
		a.put(service("a/x", 81), disabled("off"))
		a.remove(slice("a/x", ""))
		settle(2 * shortWatch)
		w.takeRequests()
		for n := range 3 {
			a.cut(true)
			a.put(service("a/y", int32(82+n)))
			a.up()
			settle(shortWatch * 60)
		}
		w.holds(a.truth()...)
		for _, r := range w.takeRequests() {
			if r.verb == "list" {
				t.Errorf("%v", r)
			}
		}
		if a.checks == 0 {
			t.Error("the histories were not compared")
		}
	})
}

// TestRestoredHistories takes the API server back now and then while anything happens.
func TestRestoredHistories(t *testing.T) {
	reverted := 0
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				r := rand.New(rand.NewPCG(seed, 4))
				w := begin(a)
				for range 6 {
					for range r.IntN(30) {
						a.happen(r, 14)
					}
					backup := a.version
					for range r.IntN(10) {
						a.happen(r, 14)
					}
					a.restore(backup)
					a.epoch += 1000 // what happens now is something else
					for range r.IntN(10) {
						a.change(r, 10)
					}
					a.up()
				}
				a.calmDown()
				w.complete(true)
				w.noProblems()
				w.holds(a.truth()...)
				reverted += strings.Count(w.logs.String(), "gone back to an earlier state")
			})
		})
	}
	if reverted < 30 {
		t.Errorf("only %d restores were noticed", reverted)
	}
}
