package kube

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRestore takes the API server back to an earlier state, from which it goes on in another way.
func TestRestore(t *testing.T) {
	for title, c := range map[string]struct {
		lost func(a *apiServer) // happens after the backup
		next func(a *apiServer) // happens after the restore, before the source is connected again
	}{
		"nothing since": {func(a *apiServer) { a.put(service("a/x", 81), service("b/new", 80)); a.remove(service("a/y", 80)) }, func(*apiServer) {}},
		"others since": {func(a *apiServer) { a.put(service("a/x", 81)); a.remove(service("a/y", 80)) }, func(a *apiServer) {
			for n := range 20 { // versions are greater than the previous ones
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
				w.holds(a.truth()...)
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
		w.noLists()
		if a.checks == 0 {
			t.Error("the histories were not compared")
		}
	})
}

// TestSameHistoryForgotten has etcd forget versions that the API server still watches from: nothing is listed again for that.
func TestSameHistoryForgotten(t *testing.T) {
	for title, between := range map[string]func(a *apiServer){
		"at each end of a quiet watch": func(a *apiServer) { settle(20 * time.Minute) },
		"while it cannot be reached": func(a *apiServer) {
			a.cut(true)
			a.put(service("a/y", 90))
			a.compactEtcd()
			settle(time.Minute)
			a.up()
		},
		"right after a deletion": func(a *apiServer) { a.remove(service("a/y", 80)); a.compactEtcd(); settle(20 * time.Minute) },
	} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(node("here"), service("a/x", 80), service("a/y", 80), slice("a/x", "10.0.0.1"))
				w := begin(a)
				w.complete(true)
				a.put(service("a/x", 81))
				settle(2 * shortWatch)
				w.takeRequests()
				a.put(serviceCIDR("10.0.0.0/16"))
				a.compactEtcd()
				between(a)
				settle(time.Minute)
				w.holds(a.truth()...)
				w.noLists()
				if a.checks == 0 {
					t.Error("the histories were not compared")
				}
			})
		})
	}
}

// TestForgottenAndChanged: etcd forgets a version, and the last known change is no longer the last one. The history may
// be another one, which cannot be determined. One list follows, and the watches after it are resumed.
func TestForgottenAndChanged(t *testing.T) {
	for title, restore := range map[string]bool{"restored": true, "the same history": false} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(node("here"), service("a/x", 80), service("a/y", 80), slice("a/x", "10.0.0.1"))
				w := begin(a)
				backup := a.version
				a.put(service("a/y", 81), service("a/x", 81))
				settle(2 * shortWatch)
				w.takeRequests()
				a.cut(true)
				if restore {
					a.restore(backup)
				}
				for n := range 20 {
					a.put(service("a/x", int32(90+n)))
				}
				a.compactEtcd()
				a.up()
				settle(time.Minute)
				w.holds(a.truth()...)
				lists := 0
				for _, r := range w.takeRequests() {
					if r.String() == "list services" {
						lists++
					}
				}
				if lists != 1 {
					t.Errorf("%d lists", lists)
				}
				a.put(serviceCIDR("10.0.0.0/16"))
				a.compactEtcd()
				settle(20 * time.Minute)
				w.noLists()
			})
		})
	}
}

// noLists checks that nothing has been listed since requests were last taken, but by resume.
func (w *world) noLists() {
	w.t.Helper()
	for _, r := range w.takeRequests() {
		if r.verb == "list" {
			w.t.Errorf("%v", r)
		}
	}
}

// unanswered keeps the API server from comparing histories of Services in the namespace a, for a while after it can be reached again.
var unanswered = map[string]struct {
	status  int // 0: no answer, -1: connections end without one
	lasts   time.Duration
	delayed bool // the watch does not go on at once
}{
	"refused for a moment":    {http.StatusServiceUnavailable, 7 * time.Second, true},
	"too many for a moment":   {http.StatusTooManyRequests, 7 * time.Second, true},
	"refused for long":        {http.StatusInternalServerError, 2 * time.Minute, true},
	"forbidden for long":      {http.StatusForbidden, 2 * time.Minute, false},
	"broken connections":      {-1, 20 * time.Second, true},
	"not answered for a time": {0, 2 * time.Minute, false},
}

// keepFromComparing gives a status to what compares histories of Services in the namespace a.
func (a *apiServer) keepFromComparing(status int) {
	const compared = "list services in a"
	a.do(func() { a.status[compared], a.held[compared], a.slam = max(status, 0), status == 0, status < 0 })
}

// answerAll ends a failure that a test has set up.
func (a *apiServer) answerAll() { a.do(func() { clear(a.status); clear(a.held); a.slam = false }) }

// TestRestoreInDoubt takes the API server back to an earlier state while it does not answer the checks before watches.
// The watch may continue, and the answer to the next check counts.
func TestRestoreInDoubt(t *testing.T) {
	for title, c := range unanswered {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(node("here"), service("a/x", 80), service("a/y", 80), slice("a/x", "10.0.0.1"))
				w := begin(a)
				w.complete(true)
				backup := a.version
				a.put(service("a/x", 81))
				a.remove(service("a/y", 80))
				w.holds(a.truth()...)
				a.restore(backup)
				for range 5 {
					a.put(serviceCIDR("10.0.0.0/16"))
				}
				a.keepFromComparing(c.status)
				a.up()
				settle(c.lasts)
				a.put(service("a/z", 80)) // the new history's last change
				a.answerAll()
				settle(5 * time.Minute)
				w.holds(a.truth()...)
				w.noProblems()
			})
		})
	}
}

// TestSameHistoryInDoubt is the same without a restore: nothing is listed, and objects are followed without an answer if there is none for long.
func TestSameHistoryInDoubt(t *testing.T) {
	for title, c := range unanswered {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(node("here"), service("a/x", 80), service("a/y", 80), slice("a/x", "10.0.0.1"))
				w := begin(a)
				a.put(service("a/x", 81))
				settle(2 * shortWatch)
				w.takeRequests()
				a.keepFromComparing(c.status)
				a.cut(false)
				settle(5 * time.Second)
				requests := w.takeRequests()
				if on := slices.ContainsFunc(requests, func(r request) bool { return r.String() == "watch services" }); on == c.delayed {
					t.Errorf("the watch goes on: %v", on)
				}
				settle(c.lasts - 5*time.Second)
				a.put(service("a/x", 82))
				if c.lasts > time.Minute {
					w.holds(a.truth()...) // without an answer
				}
				a.remove(service("a/y", 80))
				a.answerAll()
				settle(20 * time.Minute)
				w.holds(a.truth()...)
				w.noProblems()
				w.noLists()
			})
		})
	}
}

// TestRestoreAfterDoubt takes the API server back to a state that a watch came to after the version that could not be compared.
func TestRestoreAfterDoubt(t *testing.T) {
	for title, c := range unanswered {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(node("here"), service("a/x", 80), slice("a/x", "10.0.0.1"))
				w := begin(a)
				a.put(service("a/x", 81))
				settle(2 * shortWatch)
				a.keepFromComparing(c.status)
				a.cut(false)
				settle(c.lasts)
				backup := a.version
				a.put(service("a/x", 82))
				settle(0)
				a.restore(backup)
				a.put(serviceCIDR("10.0.0.0/16"), serviceCIDR("10.0.0.0/15"))
				a.answerAll()
				a.up()
				settle(time.Minute)
				w.holds(a.truth()...)
				w.noProblems()
			})
		})
	}
}

// TestCompareUnlimited has used up the client's limit: histories are compared nonetheless.
func TestCompareUnlimited(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		c := a.config()
		c.QPS, c.Burst = 1e-6, len(resources("here", "", false))
		w := begin(a, func(o *Options) { o.Config = c })
		w.complete(true)
		settle(2 * shortWatch)
		a.cut(false)
		settle(shortWatch)
		if a.checks != c.Burst {
			t.Errorf("%d histories of %d were compared", a.checks, c.Burst)
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
