package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/model"
)

// TestCompleteWaits holds back each resource in turn.
func TestCompleteWaits(t *testing.T) {
	for _, r := range resources("here", "", false) {
		t.Run(r.plural, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.held[r.plural] = true
				w := begin(a)
				settle(time.Minute)
				w.complete(false)
				a.do(func() { delete(a.held, r.plural) })
				w.complete(true)
			})
		})
	}
}

// TestCompleteFollowsDelivery checks that the source is not complete while the sink still takes in the last list.
func TestCompleteFollowsDelivery(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80))
		a.held["services"] = true
		w := begin(a)
		release := w.sink.keepBusy()
		a.do(func() { delete(a.held, "services") })
		w.complete(false)
		if len(w.takeSent()) == 0 {
			t.Fatal("the last list is not on its way: nothing was tested")
		}
		release()
		w.complete(true)
		w.holds("a/x:80", hereNode)
	})
}

// TestSelections checks which objects are asked for.
func TestSelections(t *testing.T) {
	for name, c := range map[string]struct{ service, other, slices string }{
		"":     {"plain", "mine", "mine plain theirs"}, // a slice's own label does not count
		"mine": {"mine", "plain", "mine"},
	} {
		holding := func(service string) []string {
			want := []string{"a/" + service + ":80"}
			for s := range strings.FieldsSeq(c.slices) {
				want = append(want, "a/"+s+">10.0.0.1")
			}
			slices.Sort(want)
			return append(want, hereNode)
		}
		t.Run("proxy name "+name, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				for _, labels := range []string{"plain", "mine", "theirs"} {
					l := []string{proxyNameLabel + "=" + labels}
					if labels == "plain" {
						l = nil
					}
					a.put(service("a/"+labels, 80, l...), slice("a/"+labels, "10.0.0.1", l...), slice("a/headless-"+labels, "10.0.0.1", append(l, corev1.IsHeadlessService)...))
				}
				stray := slice("a/stray", "10.0.0.1")
				stray.Labels = nil
				a.put(stray, node("other"))
				w := begin(a, func(o *Options) { o.ServiceProxyName = name })
				w.complete(true)
				w.holds(holding(c.service)...)
				for _, s := range w.takeSent() {
					slice, ok := strings.CutPrefix(s, "endpointslices a/")
					if s != "services a/"+c.service && !(ok && slices.Contains(strings.Fields(c.slices), slice)) {
						t.Errorf("the API server has sent %s", s)
					}
				}
				for _, r := range w.takeRequests() {
					if r.resource == "nodes" && r.fields != "metadata.name=here" {
						t.Errorf("%v with fields %q", r, r.fields)
					}
				}
				// A label takes a Service away, and brings it.
				a.put(service("a/plain", 80, proxyNameLabel+"=mine"), service("a/mine", 80))
				w.holds(holding(c.other)...)
			})
		})
	}
}

// TestServerLost changes everything while the API server cannot be reached.
func TestServerLost(t *testing.T) {
	for title, compacted := range map[string]bool{"resumed": false, "listed again": true} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(service("a/x", 80), slice("a/x", "10.0.0.1"), service("a/y", 80), slice("a/y", "10.0.0.2"), serviceCIDR("10.96.0.0/16"))
				w := begin(a)
				w.complete(true)
				w.sink.updates = nil
				w.logged()

				a.cut(true)
				settle(time.Hour)
				w.updates()
				w.logged("API server cannot be reached; keeping the last known objects")
				if p := w.source.Problems(); len(p) != 5 || !strings.Contains(p[0].Error(), "since 2000-01-01T00:00:0") ||
					!strings.HasSuffix(p[4].Error(), "Z: dial tcp: connect: connection refused") {
					t.Errorf("problems: %v", p)
				}
				a.remove(service("a/x", 0), slice("a/x", ""))
				a.put(service("a/z", 80), slice("a/y", "10.0.0.3"))
				a.remove(serviceCIDR(""))
				a.put(service("a/gone", 80))
				a.remove(service("a/gone", 0))
				if compacted {
					a.compact()
				}
				a.up()
				settle(5 * time.Minute)
				w.holds("a/y:80", "a/y>10.0.0.3", "a/z:80", hereNode)
				if all := strings.Join(w.sink.updates, " "); strings.Contains(all, "a/y:80") || strings.Contains(all, hereNode) {
					t.Errorf("objects that nothing happened to were sent: %v", all)
				}
				w.noProblems()
				w.logged("API server can be reached again")
				w.complete(true)
			})
		})
	}
}

// TestServerSlams has an API server that ends each connection without an answer, for which client-go has no error.
func TestServerSlams(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		w := begin(a)
		a.do(func() { a.slam = true })
		a.cut(false)
		settle(10 * time.Minute)
		if len(w.source.Problems()) != 5 {
			t.Errorf("problems: %v", w.source.Problems())
		}
		a.do(func() { a.slam = false })
		settle(5 * time.Minute)
		w.noProblems()
		w.logged("cannot be reached", "can be reached again")
	})
}

// TestStoppedWatcher has a watcher say something that is still under way when another one takes its place.
func TestStoppedWatcher(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		source, err := New(Options{Config: a.config(), NodeName: "here"})
		if err != nil {
			t.Fatal(err)
		}
		d := newDelivery(source, nil)
		services := d.resources[3]
		reader := listReader{resource: services}
		before, now := &watcher{listReader: reader}, &watcher{listReader: reader}
		x := &item{ref: service7, version: "5", object: &model.Service{}}
		d.watchers[model.KindService] = now
		d.take(&event{from: now, what: list, items: []*item{x}, version: "5", selection: &selection{}})
		d.pending.take()
		d.take(&event{from: before, what: list, version: "4", selection: &selection{}})
		d.take(&event{from: before, what: deleted, items: []*item{x}, version: "4"})
		if set, deleted := d.pending.take(); len(set)+len(deleted) > 0 || d.held[model.KindService].latest != "5" {
			t.Errorf("set %v, deleted %v", set, deleted)
		}
	})
}

// TestPending checks that the last of several changes counts.
func TestPending(t *testing.T) {
	p := pending{}
	one, two := &model.Service{}, &model.Service{}
	other := service7
	other.Name = "y"
	p.add(service7, one)
	p.add(service7, nil)
	p.add(other, nil)
	p.add(other, one)
	p.add(service7a, one)
	p.add(service7a, two)
	set, deleted := p.take()
	if len(set) != 2 || set[0] != one || set[1] != two || len(deleted) != 1 || deleted[0] != service7 {
		t.Errorf("set %v, deleted %v", set, deleted)
	}
	if set, deleted := p.take(); len(set)+len(deleted) > 0 {
		t.Errorf("set %v, deleted %v a second time", set, deleted)
	}

	// A list that comes first, and after something else.
	p.beginList(2)
	p.add(service7, one)
	p.add(other, one)
	p.endList()
	p.add(service7, two)
	p.add(service7a, nil)
	p.beginList(1)
	p.add(other, nil)
	p.endList()
	set, deleted = p.take()
	if len(set) != 1 || set[0] != two || len(deleted) != 2 || deleted[0] != other || deleted[1] != service7a {
		t.Errorf("set %v, deleted %v around lists", set, deleted)
	}
}

// TestWatchesLast checks how long watches are to last.
func TestWatchesLast(t *testing.T) {
	for period, least := range map[time.Duration]int{0: 300, time.Second: 300, 15 * time.Minute: 900} {
		story(t, func(t *testing.T, a *apiServer) {
			w := begin(a, func(o *Options) { o.ResyncPeriod = period })
			for _, r := range w.takeRequests() {
				if r.verb != "watch" {
					continue
				}
				if seconds, err := strconv.Atoi(r.url.Get("timeoutSeconds")); err != nil || seconds < least || seconds > 2*least {
					t.Errorf("%v is to last %q seconds with a period of %v", r, r.url.Get("timeoutSeconds"), period)
				}
			}
		})
	}
}

// TestServerAbsentAtFirst starts before the API server does.
func TestServerAbsentAtFirst(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.down = true
		a.put(service("a/x", 80))
		w := begin(a)
		settle(time.Hour)
		w.complete(false)
		if len(w.source.Problems()) != 3 {
			t.Errorf("problems: %v", w.source.Problems())
		}
		a.up()
		settle(2 * time.Minute)
		w.complete(true)
		w.holds("a/x:80", hereNode)
		w.noProblems()
		w.logged("cannot be reached", "can be reached again")
	})
}

// TestStop checks that Run ends with its context, in whatever state, and that the sink is left alone then.
func TestStop(t *testing.T) {
	for title, down := range map[string]bool{"connected": false, "disconnected": true} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				ctx, stop := context.WithCancel(t.Context())
				source, err := New(Options{Config: a.config(), NodeName: "here"})
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- source.Run(ctx, &recorder{objects: make(map[model.Ref]string)}) }()
				a.do(func() { a.down = down })
				settle(time.Hour)
				stop()
				settle(0)
				select {
				case err := <-ended:
					if err != nil {
						t.Error(err)
					}
				default:
					t.Error("Run goes on")
				}
			})
		})
	}
}

// TestAnswers lets the API server answer with errors for a while.
func TestAnswers(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusForbidden: `cannot list and watch endpointslices.discovery.k8s.io since 2000-01-01T00:00:00Z: endpointslices: Forbidden; ` +
			`add the rule {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]} to a ClusterRole of this user`,
		http.StatusNotFound:            `cannot list and watch endpointslices.discovery.k8s.io since 2000-01-01T00:00:00Z: endpointslices: Not Found`,
		http.StatusUnauthorized:        `cannot list and watch endpointslices.discovery.k8s.io since 2000-01-01T00:00:00Z: endpointslices: Unauthorized; check the token or client certificate`,
		http.StatusTooManyRequests:     `cannot list and watch endpointslices.discovery.k8s.io since 2000-01-01T00:00:10Z: endpointslices: Too Many Requests`,
		http.StatusInternalServerError: `cannot list and watch endpointslices.discovery.k8s.io since 2000-01-01T00:00:00Z: endpointslices: Internal Server Error`,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(slice("a/x", "10.0.0.1"))
				a.status["endpointslices"] = status
				w := begin(a)
				settle(time.Hour)
				w.complete(false)
				w.problems(want)
				w.logged("endpointslices")
				a.do(func() { delete(a.status, "endpointslices") })
				settle(2 * time.Minute)
				w.complete(true)
				w.holds("a/x>10.0.0.1", hereNode)
				w.noProblems()
				w.logged("resource can be watched again")
				// The same in the middle: known objects stay.
				a.do(func() { a.status["endpointslices"] = status })
				a.remove(slice("a/x", ""))
				a.put(slice("a/y", "10.0.0.1"))
				a.compact()
				a.cut(false)
				settle(time.Hour)
				if len(w.source.Problems()) != 1 {
					t.Errorf("problems: %v", w.source.Problems())
				}
				a.do(func() { delete(a.status, "endpointslices") })
				settle(2 * time.Minute)
				w.holds("a/y>10.0.0.1", hereNode)
				w.noProblems()
			})
		})
	}
}

// TestOldServer has no ServiceCIDRs, and is upgraded.
func TestOldServer(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.status["servicecidrs"] = http.StatusNotFound
		a.put(serviceCIDR("10.96.0.0/16"))
		w := begin(a)
		w.complete(true)
		w.holds(hereNode)
		settle(time.Hour)
		w.noProblems()
		w.logged()
		n := 0
		for _, r := range w.takeRequests() {
			if r.resource == "servicecidrs" {
				n++
			}
		}
		if n < 7 || n > 13 {
			t.Errorf("asked for what is not there %d times in an hour", n)
		}
		a.do(func() { delete(a.status, "servicecidrs") })
		settle(10 * time.Minute)
		w.holds("[10.96.0.0/16]", hereNode)
	})
}

// TestNotBackInTime has an API server whose memory lags, and watches that are renewed: an ordinary list must not
// restore deleted objects.
func TestNotBackInTime(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80), service("b/x", 80))
		w := begin(a)
		a.do(func() { a.stale = a.version })
		a.remove(service("a/x", 0))
		a.put(service("b/x", 81))
		w.holds("b/x:81", hereNode)
		w.sink.updates = nil
		a.put(disabled("c"))
		settle(back)
		w.updates("c:disabled=true")
		w.holds("b/x:81", "c:disabled=true", hereNode)
		for _, r := range w.takeRequests() {
			// A limit would make it a list of exactly this version, from etcd.
			if r.verb == "list" && r.url.Get("resourceVersion") != "0" &&
				(r.url.Get("resourceVersionMatch") != "NotOlderThan" || r.url.Has("limit")) {
				t.Errorf("unexpected list with %v", r.url)
			}
		}
	})
}

// TestBatches keeps the sink busy and checks that all events of that time arrive at once.
func TestBatches(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		w := begin(a)
		w.sink.updates = nil
		release := w.sink.keepBusy()
		a.put(service("a/first", 80))
		settle(0)
		for i := range 300 {
			a.put(service(fmt.Sprint("a/x", i), 80))
		}
		a.remove(service("a/x7", 0))
		a.put(service("a/x8", 81))
		settle(0)
		release()
		settle(0)
		if n := len(w.sink.updates); n != 2 {
			t.Errorf("%d updates", n)
		}
		if n := len(w.sink.objects); n != 301 {
			t.Errorf("%d objects", n)
		}
	})
}

// TestNode follows what happens to this Node.
func TestNode(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		eligible := func(want bool, w *world) {
			t.Helper()
			settle(0)
			if got := w.source.NodeEligible(); got != want {
				t.Fatalf("eligible is %v", got)
			}
		}
		a.remove(node("here"))
		w := begin(a)
		w.complete(true) // a Node that is not there yet is no reason to wait
		eligible(false, w)
		n := node("here")
		n.Labels[corev1.LabelTopologyZone] = "west"
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
		n.Spec.PodCIDRs = []string{"10.1.0.0/24"}
		a.put(n)
		eligible(true, w)
		w.holds("node:west[192.0.2.1][10.1.0.0/24]")
		n = n.DeepCopy()
		n.Spec.PodCIDRs = []string{"10.2.0.0/24"}
		n.Spec.Taints = []corev1.Taint{{Key: autoscalerTaint}}
		a.put(n)
		eligible(false, w)
		w.holds("node:west[192.0.2.1][10.2.0.0/24]")
		n = n.DeepCopy()
		n.Spec.Taints = []corev1.Taint{{Key: "other"}}
		a.put(n)
		eligible(true, w)
		n = n.DeepCopy()
		n.DeletionTimestamp = new(metav1.Now())
		a.put(n)
		eligible(false, w)
		a.remove(n)
		eligible(false, w)
		w.holds()
		a.put(node("here"), node("other"))
		eligible(true, w)
		w.holds(hereNode)
		a.remove(node("here"))
		eligible(false, w)
		a.put(node("here"))
		eligible(true, w)
		// Deleted while nobody could see it.
		a.cut(true)
		a.remove(node("here"))
		a.compact()
		settle(0)
		eligible(true, w)
		a.up()
		settle(2 * time.Minute)
		eligible(false, w)
		w.holds()
	})
}

// TestFaultyObject has objects that no API server should store.
func TestFaultyObject(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 70000), service("a/y", 80))
		w := begin(a)
		w.complete(true)
		w.holds("a/y:80", hereNode)
		w.logged(`object="Service a/x" error="spec.ports[0].port: must be a number from 1 to 65535, got 70000"`)
		a.put(service("a/x", 1))
		w.holds("a/x:1", "a/y:80", hereNode)
		a.put(service("a/x", -1))
		w.holds("a/x:1", "a/y:80", hereNode)
		w.logged("got -1")
		a.compact()
		a.cut(false)
		settle(2 * time.Minute)
		w.logged()
		w.holds("a/x:1", "a/y:80", hereNode)
		a.remove(service("a/x", 0))
		w.holds("a/y:80", hereNode)
		w.noProblems()
	})
}
