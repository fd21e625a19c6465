package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// never checks that no object of a namespace has been sent since the last check, and that no request could have
// returned one.
func (w *world) never(namespace string) {
	w.t.Helper()
	for _, s := range w.takeSent() {
		if strings.Contains(s, " "+namespace+"/") {
			w.t.Errorf("the API server has sent %s", s)
		}
	}
	for _, r := range w.takeRequests() {
		if (r.resource == "services" || r.resource == "endpointslices") && (r.namespace == "" || r.namespace == namespace) &&
			!slices.Contains(strings.Split(r.fields, ","), "metadata.namespace!="+namespace) {
			w.t.Errorf("%v asks for fields %q, which include namespace %s", r, r.fields, namespace)
		}
	}
}

const (
	// back is the time within which a namespace is back that is no longer disabled, and is the only one.
	back = spread + shortWatch
	// renewed is the time within which all watches have been opened again.
	renewed = 11 * time.Minute
)

// rewatch ends all watches, as happens from time to time. Afterwards objects of disabled namespaces are not requested.
func (w *world) rewatch() {
	settle(shortWatch)
	w.cut(false)
	settle(time.Second)
	w.takeRequests()
	w.takeSent()
	w.takeBytes()
}

// rewatched and listedIn are the requests for Services and EndpointSlices that continue watches, and list a namespace.
var rewatched = []string{"watch services", "watch endpointslices"}

func listedIn(namespaces ...string) (requests []string) {
	for _, n := range namespaces {
		requests = append(requests, "list services in "+n, "list endpointslices in "+n)
	}
	return requests
}

// TestOptOut puts the label on namespaces with services and takes it off again.
func TestOptOut(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(disabled("mesh"), service("mesh/x", 80), slice("mesh/x", "10.0.0.9"), namespace("b"),
			service("a/x", 80), slice("a/x", "10.0.0.1"), service("b/x", 80), slice("b/x", "10.0.0.2"))
		w := begin(a)
		w.complete(true)
		w.holds("a/x:80", "a/x>10.0.0.1", "b/x:80", "b/x>10.0.0.2", "mesh:disabled=true", hereNode)
		w.never("mesh")
		w.sink.updates = nil

		// Another one: its objects go in the same update, without a request, and nothing else happens to the others.
		a.put(disabled("b"))
		w.updates("-b/x:80 -b/x>10.0.0.2 b:disabled=true")
		settle(time.Minute)
		w.asked()
		a.put(service("b/x", 81), slice("b/z", "10.0.0.3"), service("mesh/x", 81), service("a/x", 81))
		w.updates("a/x:81")

		// The connection is back, and all events of that time arrive at once. The watches have delivered them already.
		a.put(namespace("b"))
		w.updates("-b:disabled=true")
		settle(back)
		w.updates("b/x:81 b/x>10.0.0.2 b/z>10.0.0.3")
		w.asked(listedIn("b")...)

		// Watches that begin later leave the namespace out. When it is back, they continue with it, and are not begun with a list.
		a.put(disabled("b"))
		w.rewatch()
		w.sink.updates = nil
		a.put(service("b/x", 82), service("a/x", 82))
		w.updates("a/x:82")
		w.never("b")
		a.put(namespace("b"))
		settle(2 * back)
		w.updates("-b:disabled=true", "b/x:82 b/x>10.0.0.2 b/z>10.0.0.3")
		w.asked(slices.Concat(rewatched, listedIn("b"))...)
		a.put(service("b/x", 83))
		w.updates("b/x:83")
		a.put(disabled("b"))
		settle(renewed)
		w.takeSent()
		a.put(service("b/x", 84), service("mesh/x", 82))
		settle(renewed)
		if sent := w.takeSent(); len(sent) > 0 {
			t.Errorf("the API server has sent %v", sent)
		}
		w.never("mesh")
		w.noProblems()
		w.logged()
	})
}

// TestOptOutAtOnce checks that a disabled namespace stays gone although the watches from before still bring its objects.
func TestOptOutAtOnce(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80))
		w := begin(a)
		a.put(disabled("a"))
		w.holds("a:disabled=true", hereNode)
		w.takeSent()
		a.put(service("a/x", 81), service("a/y", 80))
		w.holds("a:disabled=true", hereNode)
		if len(w.takeSent()) != 2 {
			t.Fatal("the watch of before has ended already: nothing was tested")
		}
		a.remove(service("a/x", 0))
		settle(renewed)
		w.holds("a:disabled=true", hereNode)
	})
}

// TestOptOutFlips flips labels faster than namespaces are listed, and many at once.
func TestOptOutFlips(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80), service("b/x", 80))
		w := begin(a)
		w.takeRequests()
		w.sink.updates = nil
		// All is as before, but the objects were forgotten in between.
		a.put(disabled("a"))
		settle(0)
		a.put(namespace("a"))
		settle(back)
		w.updates("-a/x:80 a:disabled=true", "-a:disabled=true", "a/x:80")
		w.asked(listedIn("a")...)

		// However often it flips, a list twice a minute is the most, and the last label counts.
		for range 1000 {
			a.put(disabled("a"))
			settle(60 * time.Millisecond)
			a.put(namespace("a"))
			settle(6 * time.Second)
		}
		if n, most := len(w.takeRequests()), 2*2*1000*6/60; n < 10 || n > most {
			t.Errorf("%d requests in 100 minutes of flipping, want at most %d", n, most)
		}
		settle(2 * maxSpreads * spread)
		w.holds("a/x:80", "b/x:80", hereNode)
		w.noProblems()
	})
}

// TestOptInMany removes the label from many namespaces at once. Each is listed once, not all at the same time, and the
// watches are continued for all of them together.
func TestOptInMany(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprint("n", i))
			a.put(service(names[i]+"/x", 80), disabled(names[i]))
		}
		w := begin(a)
		w.rewatch()
		for _, n := range names {
			a.put(namespace(n))
		}
		settle(spread)
		early := w.takeRequests()
		if n := len(early); n > 100 {
			t.Errorf("%d requests within the time for one namespace", n)
		}
		settle(100*pace + shortWatch)
		if n := len(w.sink.objects); n != 101 {
			t.Errorf("%d objects", n)
		}
		want, got := slices.Concat(rewatched, listedIn(names...)), []string(nil)
		for _, r := range append(early, w.takeRequests()...) {
			got = append(got, r.String())
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("the API server should have been asked for (-), was (+):\n%s", diff)
		}
		w.noProblems()
	})
}

// TestOptOutWhileDisconnected changes labels while nobody can see it.
func TestOptOutWhileDisconnected(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint("compacted=", compacted), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(disabled("a"), service("a/x", 80), service("b/x", 80), service("c/x", 80), disabled("d"), service("d/x", 80))
				w := begin(a)
				w.holds("a:disabled=true", "d:disabled=true", "b/x:80", "c/x:80", hereNode)
				a.cut(true)
				settle(0)
				a.put(namespace("a"), disabled("b"))
				// To delete a namespace and create it again has the same effect as removing the label, with other
				// objects in the end.
				a.remove(service("d/x", 0), namespace("d"))
				a.put(namespace("d"), service("d/y", 80))
				if compacted {
					a.compact()
				}
				settle(time.Minute)
				w.holds("a:disabled=true", "d:disabled=true", "b/x:80", "c/x:80", hereNode)
				w.takeSent()
				a.up()
				settle(2 * time.Minute)
				w.holds("b:disabled=true", "a/x:80", "c/x:80", "d/y:80", hereNode)
			})
		})
	}
}

// TestOptOutNamespaceDeleted deletes a disabled namespace with all that is in it, and makes it again without and with the
// label.
func TestOptOutNamespaceDeleted(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(disabled("a"), service("a/x", 80))
		w := begin(a)
		a.remove(service("a/x", 0), namespace("a"))
		settle(back)
		w.holds(hereNode)
		a.put(namespace("a"), service("a/x", 81))
		w.holds("a/x:81", hereNode)
		a.remove(service("a/x", 0), namespace("a"))
		w.holds(hereNode)
		a.put(disabled("a"), service("a/x", 82))
		settle(back)
		w.holds("a:disabled=true", hereNode)
		settle(renewed)
		w.takeSent()
		w.takeRequests()
		a.put(service("a/x", 83))
		settle(15 * time.Minute)
		w.never("a")
	})
}

// TestManyNamespaces disables more namespaces than fit into a request, for us or for a proxy on the way.
func TestManyNamespaces(t *testing.T) {
	for title, c := range map[string]struct{ namespaces, longest int }{
		"ours":   {2000, 0},
		"theirs": {300, 8192},
	} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.longest = c.longest
				a.put(service("a/x", 80), service("ns-7/x", 80))
				for i := range c.namespaces {
					a.put(disabled(fmt.Sprint("ns-", i)))
				}
				w := begin(a)
				settle(back)
				w.complete(true)
				w.logged("too many namespaces are disabled to leave them out of requests")
				if w.sink.objects[service7] != "" || w.sink.objects[service7a] == "" {
					t.Error("ns-7/x should be ignored, and a/x be there")
				}
				// A change says it no second time, and works.
				a.put(namespace("ns-7"), service("ns-8/x", 80))
				settle(back)
				if w.sink.objects[service7] == "" || len(w.sink.objects) != c.namespaces+2 {
					t.Errorf("ns-7/x should be there, and it alone; there are %d objects", len(w.sink.objects))
				}
				w.logged()
				// With fewer of them they are left out again.
				for i := range c.namespaces {
					if i > 50 && i%50 != 0 {
						a.remove(namespace(fmt.Sprint("ns-", i)))
					}
				}
				settle(back)
				w.takeRequests()
				w.takeSent()
				a.cut(false)
				settle(time.Minute)
				w.never("ns-8")
				w.noProblems()
			})
		})
	}
}

// TestNamespacesForbidden has no permission to see namespaces, and is given it later. Until then there is one line and no problem, although the source
// asks again and again, and the API server is away for a while.
func TestNamespacesForbidden(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.status["namespaces"] = http.StatusForbidden
		a.put(disabled("a"), service("a/x", 80))
		w := begin(a)
		w.complete(true)
		w.holds("a/x:80", hereNode)
		w.logged(`INFO msg="optional resource may not be watched" resource=namespaces ` +
			`effect="namespaces labelled networking.k8s.io/kube-proxy=disabled are served like all others" error="namespaces: Forbidden" ` +
			`remedy="add the rule {apiGroups: [\"\"], resources: [\"namespaces\"], verbs: [\"list\", \"watch\"]} to a ClusterRole of this user"`)
		w.noProblems()
		w.takeRequests()
		settle(time.Hour)
		w.logged()
		n := 0
		for _, r := range w.takeRequests() {
			if r.resource == "namespaces" {
				n++
			}
		}
		if n < 7 || n > 13 {
			t.Errorf("asked for namespaces %d times in an hour", n)
		}
		a.cut(true) // all resources fail, and are refused or permitted afterwards as before
		settle(20 * time.Minute)
		a.up()
		settle(20 * time.Minute)
		w.logged("API server cannot be reached", "API server can be reached again")
		w.noProblems()
		a.do(func() { delete(a.status, "namespaces") })
		settle(10 * time.Minute)
		w.holds("a:disabled=true", hereNode)
		w.noProblems()
		w.logged("resource can be watched now")
		settle(renewed)
		w.takeSent()
		w.takeRequests()
		a.put(service("a/x", 81))
		settle(15 * time.Minute)
		w.never("a")
	})
}
