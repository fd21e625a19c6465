package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/model"
)

// TestOptInWhileItChanges changes every object in a namespace while it is listed. The lists are as old as permitted, or
// include events that watches bring later.
func TestOptInWhileItChanges(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.lag = rand.New(rand.NewPCG(seed, 4))
				a.put(service("a/changes", 1), service("a/goes", 2), service("a/returns", 3), slice("a/changes", "10.0.0.1"), service("b/x", 4))
				w := begin(a)
				a.put(disabled("a"))
				if seed%2 == 0 {
					w.rewatch() // so that the watches must be continued first
				}
				requests := listedIn("a")
				a.do(func() { a.held[requests[0]], a.held[requests[1]] = true, true })
				a.put(namespace("a"))
				settle(back)
				w.takeRequests()
				w.sink.updates = nil
				a.put(service("a/changes", 11), service("a/new", 12))
				a.remove(service("a/goes", 0), service("a/returns", 0))
				a.put(service("a/returns", 13), slice("a/changes", "10.0.0.2"), service("a/comes", 14))
				a.remove(service("a/comes", 0))
				w.updates()
				a.do(func() { delete(a.held, requests[0]) })
				settle(0)
				w.updates() // Services wait for EndpointSlices
				a.do(func() { clear(a.held) })
				w.holds("a/changes:11", "a/changes>10.0.0.2", "a/new:12", "a/returns:13", "b/x:4", hereNode)
				if n := len(w.sink.updates); n != 1 {
					t.Errorf("the namespace came in %d updates: %v", n, w.sink.updates)
				}
				w.sink.updates = nil
				a.put(service("a/new", 15))
				w.updates("a/new:15")
				a.remove(service("a/changes", 0))
				w.updates("-a/changes:11")
				w.noProblems()
			})
		})
	}
}

// TestOptInFails has an API server that cannot list a namespace for a while. Others do not wait for it.
func TestOptInFails(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		for i := range maxListing + 1 {
			a.put(service(fmt.Sprintf("bad%d/x", i), 80), disabled(fmt.Sprint("bad", i)))
		}
		a.put(service("good/x", 80), disabled("good"))
		w := begin(a)
		bad := func(i int) string { return fmt.Sprint("bad", i) }
		a.do(func() {
			for i := range maxListing + 1 {
				a.status[listedIn(bad(i))[0]] = http.StatusInternalServerError
			}
		})
		for i := range maxListing + 1 {
			a.put(namespace(bad(i)))
		}
		settle(time.Minute)
		a.put(namespace("good"))
		settle(spread + (maxListing+1)*pace + shortWatch)
		w.holds("good/x:80", hereNode)
		if p := w.source.Problems(); len(p) != maxListing+1 || !strings.HasPrefix(p[0].Error(), "cannot list and watch services in namespace bad0 since ") {
			t.Errorf("problems: %v", p)
		}
		// One is disabled again, the others can be listed.
		a.put(disabled("bad0"))
		a.do(func() { delete(a.status, listedIn("bad1")[0]) })
		settle(time.Minute)
		w.holds("good/x:80", "bad1/x:80", "bad0:disabled=true", hereNode)
		if p := w.source.Problems(); len(p) != maxListing-1 {
			t.Errorf("problems: %v", p)
		}
		a.do(func() { clear(a.status) })
		settle(time.Minute)
		w.noProblems()
		if n := len(w.sink.objects); n != maxListing+3 {
			t.Errorf("%d objects", n)
		}
	})
}

// TestOptInByWholeList loses history while a namespace waits: the list of all namespaces brings it.
func TestOptInByWholeList(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80), disabled("a"), service("b/x", 80))
		w := begin(a)
		requests := listedIn("a")
		a.do(func() { a.held[requests[0]] = true })
		a.put(namespace("a"))
		settle(back)
		a.put(service("a/x", 81), service("a/y", 80))
		a.compact()
		w.takeRequests()
		a.cut(false)
		settle(time.Minute)
		w.holds("a/x:81", "a/y:80", "b/x:80", hereNode)
		a.put(service("a/y", 81))
		a.remove(service("a/x", 0))
		w.holds("a/y:81", "b/x:80", hereNode)
		// The list that was under way comes too late.
		a.do(func() { clear(a.held) })
		settle(time.Minute)
		w.holds("a/y:81", "b/x:80", hereNode)
		w.noProblems()
	})
}

// TestOptInWaitsForWatches has watches that leave a namespace out, and continue late. An earlier list may lack events
// that they never deliver.
func TestOptInWaitsForWatches(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80), disabled("a"), service("b/x", 80))
		w := begin(a)
		w.rewatch()
		a.do(func() { a.held["watch services"] = true })
		a.put(namespace("a"))
		settle(2 * back)
		w.asked(rewatched...)
		a.put(service("a/x", 81), service("b/x", 81))
		a.do(func() { clear(a.held) })
		settle(0)
		w.holds("a/x:81", "b/x:81", hereNode)
		w.asked(listedIn("a")...)
	})
}

// TestOptInDuringWholeList removes the label after the request for a list of all namespaces that leaves the namespace
// out. The namespace is listed before that list arrives. The namespace stays, and its changes before the next watch are
// not lost.
func TestOptInDuringWholeList(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80), service("b/x", 80))
		w := begin(a)
		a.put(disabled("a"))
		settle(shortWatch)
		w.takeRequests()
		a.do(func() { a.status["watch services"], a.held["list services"] = http.StatusInternalServerError, true })
		a.cut(false)
		settle(5 * time.Second)
		w.asked("watch services", "list services", "watch endpointslices", "watch namespaces", "watch nodes", "watch servicecidrs")
		a.do(func() { clear(a.status) })
		a.put(namespace("a"))
		settle(20 * time.Second)
		w.holds("a/x:80", "b/x:80", hereNode)
		w.asked(append(listedIn("a"), "watch endpointslices")...)
		w.sink.updates = nil
		a.put(service("a/x", 82), service("b/x", 82))
		settle(20 * time.Second)
		w.updates()
		a.do(func() { clear(a.held) })
		settle(20 * time.Second)
		w.updates("b/x:82", "a/x:82")
		a.put(service("a/x", 83))
		w.updates("a/x:83")
		w.noProblems()
	})
}

// TestOptInWhileRenewed changes the way to the API server, to one with other versions, while a namespace waits, is listed, or has
// been.
func TestOptInWhileRenewed(t *testing.T) {
	for _, stage := range []string{"waiting", "listing", "listed"} {
		t.Run(stage, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				other := newAPIServer(t)
				other.version = 1
				a.put(service("a/x", 80), disabled("a"), service("b/x", 80))
				other.put(node("here"), service("a/x", 90), service("b/x", 90))
				other.do(func() { other.held["list services"] = true })
				var next atomic.Pointer[rest.Config]
				w := begin(a, func(o *Options) {
					o.Renew = func() (*rest.Config, error) { return next.Swap(nil), nil }
				})
				a.do(func() { a.held[listedIn("a")[0]] = stage != "listed" })
				settle(renewPeriod / 2)
				a.put(namespace("a"))
				if stage != "waiting" {
					settle(back)
				}
				next.Store(other.config())
				settle(renewPeriod)
				a.do(func() { clear(a.held) })
				settle(time.Minute)
				other.do(func() { clear(other.held) })
				settle(time.Minute)
				w.holds("a/x:90", "b/x:90", hereNode)
				other.put(service("a/x", 91))
				w.holds("a/x:91", "b/x:90", hereNode)
				w.noProblems()
			})
		})
	}
}

// TestNamespaceListIsNewer lists a namespace in a later version than all of them have come to.
func TestNamespaceListIsNewer(t *testing.T) {
	h := newHeld(model.KindService)
	none := func(func(*item) bool) {}
	x := &item{ref: service7, version: "9"}
	h.latest = "5"
	h.replaceNamespace("ns-7", func(yield func(*item) bool) { yield(x) }, "9")
	least := func(want string) {
		t.Helper()
		if got := h.least("ns-7"); got != want {
			t.Errorf("lists must not be older than %s, want %s", got, want)
		}
	}
	least("9")
	if _, gone := h.replace(none, "8", func(string) bool { return false }); len(gone) > 0 {
		t.Errorf("an older list of all namespaces lacks %v", gone)
	}
	for version, past := range map[string]bool{"8": true, "9": true, "nonsense": false} {
		if got := h.past(&item{ref: service7, version: version}); got != past {
			t.Errorf("an event in version %s is past: %v", version, got)
		}
	}
	if h.past(&item{ref: service7a, version: "8"}) {
		t.Error("an event of another namespace is past")
	}
	h.removeNamespace("ns-7")
	least("9") // also when it is listed again
	if h.past(&item{ref: service7a, version: "10"}) {
		t.Error("a later event is past")
	}
	least("5")
}

// TestOptInManyEvents checks that the queue of events of a namespace that is being listed is bounded.
func TestOptInManyEvents(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		source, err := New(Options{Config: a.config(), NodeName: "here"})
		if err != nil {
			t.Fatal(err)
		}
		d := newDelivery(source, nil)
		d.ctx = t.Context()
		services := &watcher{listReader: listReader{resource: d.resources[3]}}
		d.watchers[model.KindService] = services
		d.beginOptIn("ns-7")
		o := d.optIns["ns-7"]
		for n := range maxQueued + 2 {
			if n == 1 {
				o.least = map[model.Kind]string{} // it is covered
			}
			d.take(&event{from: services, what: put, items: []*item{{ref: service7, version: "5", object: &model.Service{}}}, version: "5"})
		}
		if n := len(o.queued); n != maxQueued {
			t.Errorf("%d events are queued", n)
		}
		if again := d.optIns["ns-7"]; again == o || len(again.queued) > 0 {
			t.Error("the namespace is not listed anew")
		}
		if set, deleted := d.pending.take(); len(set)+len(deleted) > 0 {
			t.Errorf("set %v, deleted %v", set, deleted)
		}
	})
}

// TestFlipBytes counts what an API server sends a node when a label changes, in a cluster of 10,000 Services in 100 namespaces.
func TestFlipBytes(t *testing.T) {
	const services, namespaces = 10_000, 100
	story(t, func(t *testing.T, a *apiServer) {
		for i := range services {
			a.put(clusterObjects(i)...)
		}
		a.history = nil
		w := begin(a)
		w.complete(true)
		all := a.takeBytes()
		whole := all["list services"] + all["list endpointslices"]
		holds := func(want int) {
			t.Helper()
			settle(2 * back)
			if n := len(w.sink.objects); n != want {
				t.Fatalf("%d objects, want %d", n, want)
			}
		}
		w.takeRequests()

		a.put(disabled("team-7"))
		holds(1 + 2*services - 2*services/namespaces + 1)
		w.asked()
		on := a.takeBytes()
		a.put(namespace("team-7"))
		holds(1 + 2*services)
		w.asked(listedIn("team-7")...)
		off := a.takeBytes()

		// The same with watches that leave the namespace out.
		a.put(disabled("team-7"))
		w.rewatch()
		a.put(namespace("team-7"))
		holds(1 + 2*services)
		w.asked(slices.Concat(rewatched, listedIn("team-7"))...)
		again := a.takeBytes()

		sum := func(bytes map[string]int) (listed, watched int) {
			for request, n := range bytes {
				if strings.HasPrefix(request, "list") {
					listed += n
				} else {
					watched += n
				}
			}
			return listed, watched
		}
		for title, c := range map[string]struct {
			bytes map[string]int
			most  int // that may be listed
		}{"on": {on, 0}, "off": {off, whole * 3 / 2 / namespaces}, "off, with watches that leave it out": {again, whole * 3 / 2 / namespaces}} {
			listed, watched := sum(c.bytes)
			t.Logf("label %s: %d bytes listed, %d watched; a list of all Services and EndpointSlices has %d", title, listed, watched, whole)
			if listed > c.most || watched > 1000 || whole < 1<<20 {
				t.Errorf("label %s: %v, want %d of lists at most", title, c.bytes, c.most)
			}
		}
	})
}

// TestOptInsAreSpread: a label that is taken off reaches all nodes at once, and they list the namespace spread over a while.
func TestOptInsAreSpread(t *testing.T) {
	const nodes, parts = 1000, 10
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		due := make(chan event)
		var running sync.WaitGroup
		for range nodes {
			o := &optIn{namespace: "team-7", spread: spread, events: due, stopped: ctx.Done()}
			running.Go(func() { o.run(ctx) })
		}
		var lists [parts]int
		for range nodes {
			<-due
			lists[min(int(time.Since(began)*parts/spread), parts-1)]++
		}
		for i, n := range lists {
			if n < nodes/parts/2 || n > nodes/parts*3/2 {
				t.Errorf("%d of %d nodes list in part %d of %d of the time", n, nodes, i+1, parts)
			}
		}
		if took := time.Since(began); took > spread {
			t.Errorf("the last node lists after %v, want %v at most", took, spread)
		}
		cancel()
		running.Wait()
	})
}
