package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// seeds is the number of histories of a test, a quarter of most with -short.
func seeds(most uint64) uint64 {
	if testing.Short() {
		return most / 4
	}
	return most
}

// TestHistories changes objects, namespaces and the connection in any order, and compares the sink's final objects with
// the existing ones.
func TestHistories(t *testing.T) {
	for seed := range seeds(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				r := rand.New(rand.NewPCG(seed, 0))
				a.lag = rand.New(rand.NewPCG(seed, 1))
				w := begin(a)
				for range 120 {
					a.happen(r, 14)
				}
				a.calmDown()
				w.complete(true)
				w.noProblems()
				w.holds(a.truth()...)
				w.onlyForward()
			})
		})
	}
}

// TestFlappingHistories is the same test with almost only labels that change, on unbroken watches. The sink must be
// correct without whole lists.
func TestFlappingHistories(t *testing.T) {
	for seed := range seeds(100) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				r := rand.New(rand.NewPCG(seed, 2))
				a.lag = rand.New(rand.NewPCG(seed, 3))
				for range 30 {
					a.change(r, 10)
				}
				w := begin(a)
				w.takeRequests()
				for range 200 {
					a.happen(r, 10)
				}
				a.calmDown()
				w.noProblems()
				w.holds(a.truth()...)
				w.onlyForward()
				for _, request := range w.takeRequests() {
					if s := request.String(); s == "list services" || s == "list endpointslices" {
						t.Errorf("%s of all namespaces", s)
					}
				}
			})
		})
	}
}

// calmDown lets everything come to rest.
func (a *apiServer) calmDown() {
	a.do(func() { clear(a.status) })
	a.up()
	settle(20 * time.Minute)
}

// onlyForward checks that the sink never gets an object that is older than one that it already got, or than its
// deletion. Objects of a disabled namespace may return unchanged.
func (w *world) onlyForward() {
	w.t.Helper()
	newest := make(map[string]int) // by object
	dead := make(map[string]bool)
	for _, update := range w.sink.updates {
		for word := range strings.FieldsSeq(update) {
			object, version, ok := numbered(strings.TrimPrefix(word, "-"))
			if !ok {
				continue
			}
			namespace, _, _ := strings.Cut(object, "/")
			if strings.HasPrefix(word, "-") {
				wasDisabled := strings.Contains(" "+update, " "+namespace+":disabled=true") || strings.Contains(update, "-?Namespace "+namespace)
				dead[object] = !wasDisabled
				continue
			}
			if last := newest[object]; version < last || version == last && dead[object] {
				w.t.Errorf("%s after %d; it was deleted: %v; updates:\n%s", word, last, dead[object], strings.Join(w.sink.updates, "\n"))
			}
			newest[object] = max(newest[object], version)
			dead[object] = false
		}
	}
}

// numbered takes what render returns of a Service or EndpointSlice apart.
func numbered(text string) (object string, version int, ok bool) {
	if object, port, ok := strings.Cut(text, ":"); ok {
		version, err := strconv.Atoi(port)
		return object, version, err == nil
	}
	object, addr, ok := strings.Cut(text, ">")
	if ip, err := netip.ParseAddr(addr); ok && err == nil {
		b := ip.As4()
		return object + ">", int(b[2])<<8 | int(b[3]), true
	}
	return "", 0, false
}

// happen makes one of some things happen, and lets some time pass.
func (a *apiServer) happen(r *rand.Rand, things int) {
	a.change(r, things)
	settle([]time.Duration{0, 0, spread / 24, spread / 2, 20 * time.Second}[r.IntN(5)])
}

// change makes one of some things happen. Versions of an object count upwards.
func (a *apiServer) change(r *rand.Rand, things int) {
	ns := fmt.Sprint("n", r.IntN(4))
	full := ns + "/" + fmt.Sprint("x", r.IntN(4))
	var labels []string
	if r.IntN(5) == 0 {
		labels = append(labels, proxyNameLabel+"=other")
	}
	there := func(o object) bool { return a.objects[a.plural(o)][name(o)] != nil }
	remove := func(o object) {
		if there(o) {
			a.remove(o)
		}
	}
	switch r.IntN(things) {
	case 0, 1, 2:
		a.put(service(full, int32(a.epoch+a.version), labels...))
	case 3, 4:
		a.put(slice(full, fmt.Sprintf("10.0.%d.%d", (a.epoch+a.version)>>8, (a.epoch+a.version)&255), labels...))
	case 5:
		remove(service(full, 0))
	case 6:
		remove(slice(full, ""))
	case 7:
		a.put(disabled(ns))
	case 8:
		a.put(namespace(ns))
	case 9:
		remove(namespace(ns))
	case 10:
		a.cut(r.IntN(2) == 0)
	case 11:
		a.compact()
	case 12:
		plural := []string{"services", "endpointslices", "namespaces", "servicecidrs"}[r.IntN(4)]
		a.do(func() {
			a.status[plural] = []int{0, http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError}[r.IntN(4)]
		})
	case 13:
		a.up()
	}
}

// truth is the expected content of a sink.
func (a *apiServer) truth() []string {
	off := make(map[string]bool)
	for _, o := range a.objects["namespaces"] {
		off[o.GetName()] = o.GetLabels()[optOutLabel] == "disabled"
	}
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(a.objects)) {
		for _, o := range a.objects[resource] {
			_, opted := o.GetLabels()[proxyNameLabel]
			if opted && resource == "services" || off[o.GetNamespace()] || resource == "namespaces" && !off[o.GetName()] {
				continue
			}
			m, _, err := kubeconv.Object(o)
			if err != nil {
				a.t.Fatal(err)
			}
			all = append(all, render(m))
		}
	}
	return all
}

// TestHeldAgainstList compares the difference that held makes with one made from scratch.
func TestHeldAgainstList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h := newHeld(model.KindService)
	sink := map[model.Ref]string{}
	for range 2000 {
		list := map[model.Ref]item{}
		for range r.IntN(12) {
			ref := model.Ref{Kind: model.KindService, Namespace: fmt.Sprint(r.IntN(3)), Name: fmt.Sprint(r.IntN(5))}
			list[ref] = item{ref: ref, version: fmt.Sprint(1 + r.IntN(3))}
		}
		items := slices.Collect(maps.Values(list))
		news, gone := h.replace(func(yield func(*item) bool) {
			for n := range items {
				if !yield(&items[n]) {
					return
				}
			}
		}, "1", func(string) bool { return false })
		for _, ref := range gone {
			if _, ok := sink[ref]; !ok {
				t.Fatalf("%v is gone and was not there", ref)
			}
			delete(sink, ref)
		}
		for _, i := range news {
			if sink[i.ref] == i.version {
				t.Fatalf("%v is no news", i.ref)
			}
			sink[i.ref] = i.version
		}
		want := map[model.Ref]string{}
		for ref, i := range list {
			want[ref] = i.version
		}
		if diff := gocmp.Diff(want, sink); diff != "" {
			t.Fatalf("want (-), got (+):\n%s", diff)
		}
		if h.len() != len(want) {
			t.Fatalf("len is %d of %d", h.len(), len(want))
		}
	}
}
