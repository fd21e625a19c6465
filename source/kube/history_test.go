package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/internal/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// TestHistories lets anything happen to objects, namespaces and the connection in any order, and compares what the sink has
// in the end with what is simply there.
func TestHistories(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				r := rand.New(rand.NewPCG(seed, 0))
				w := begin(a)
				for range 120 {
					a.happen(r)
				}
				a.do(func() { clear(a.status) })
				a.up()
				settle(20 * time.Minute)
				w.complete(true)
				w.noProblems()
				w.holds(a.truth()...)
			})
		})
	}
}

// happen makes one thing happen.
func (a *apiServer) happen(r *rand.Rand) {
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
	switch r.IntN(14) {
	case 0, 1, 2:
		a.put(service(full, 1+r.Int32N(60000), labels...))
	case 3, 4:
		a.put(slice(full, fmt.Sprint("10.0.0.", r.IntN(200)), labels...))
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
	settle([]time.Duration{0, 0, quiet / 3, time.Second, 20 * time.Second}[r.IntN(5)])
}

// truth is what a sink should have.
func (a *apiServer) truth() []string {
	off := make(map[string]bool)
	for _, o := range a.objects["namespaces"] {
		off[o.GetName()] = o.GetLabels()[optOutLabel] == "disabled"
	}
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(a.objects)) {
		for _, o := range a.objects[resource] {
			_, opted := o.GetLabels()[proxyNameLabel]
			if opted || off[o.GetNamespace()] || resource == "namespaces" && !off[o.GetName()] {
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
		})
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
