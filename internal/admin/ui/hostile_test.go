package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// viewed counts how often the page looks at a Service: each look asks why the dataplane cannot program it.
func viewed(f *fake, during func()) (looks map[state.ServiceName]int, v *view.View) {
	looks = map[state.ServiceName]int{}
	return looks, &view.View{Store: f.store, Failed: func(name state.ServiceName) error {
		looks[name]++
		during()
		return nil
	}}
}

// keys are the keys of Services as a query has them.
func keys(names ...int) (list []string) {
	for _, n := range names {
		list = append(list, fmt.Sprintf("shop/web-%03d", n))
	}
	return list
}

// TestEqualKeys: a Service is looked at once, however often a query names it.
func TestEqualKeys(t *testing.T) {
	looks, v := viewed(newFake(t, 3), func() {})
	got, err := byKey(t.Context(), v, append(keys(1, 2), keys(make([]int, 90)...)...))
	if err != nil || len(got.(list).Items) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for name, n := range looks {
		if n != 1 {
			t.Errorf("%v was looked at %d times", name, n)
		}
	}
}

// TestSteps: a list is worked on for a bounded time, and the rest comes with the next parts.
func TestSteps(t *testing.T) {
	f := newFake(t, 10)
	synctest.Test(t, func(t *testing.T) {
		// Each look takes more than half of the time.
		_, v := viewed(f, func() { time.Sleep(stepTime/2 + time.Millisecond) })
		rest, rows := keys(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 0
		for parts := 1; ; parts++ {
			got, err := byKey(t.Context(), v, rest)
			if err != nil {
				t.Fatal(err)
			}
			part := got.(list)
			rows += len(part.Items)
			if part.Next == "" {
				if rows != 10 || parts != 5 {
					t.Errorf("%d rows came in %d parts", rows, parts)
				}
				break
			}
			if len(part.Items) != 2 || part.Next != rest[2] {
				t.Fatalf("a part has %d rows, and the next begins at %s", len(part.Items), part.Next)
			}
			rest = rest[2:]
		}
		// Nothing is done for a client that has gone.
		ctx, cancel := context.WithCancel(t.Context())
		looks, v := viewed(f, cancel)
		if _, err := byKey(ctx, v, keys(0, 1, 2)); err == nil || len(looks) != 1 {
			t.Errorf("%v after %d looks", err, len(looks))
		}
	})
}

// TestStepsAreSmall: rows that are large come in several parts.
func TestStepsAreSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which no time passes
		s := newStep(t.Context())
		large := &view.Service{Namespace: "shop", Name: "large", Problems: []string{strings.Repeat("x", stepBytes/2)}}
		for i := range 2 {
			if s.full() {
				t.Fatalf("it is full after %d rows", i)
			}
			if err := s.add(large); err != nil {
				t.Fatal(err)
			}
		}
		if !s.full() {
			t.Errorf("%d bytes are not enough", s.bytes)
		}
	})
}

// TestLargeAnswer: the answer to a question has a bounded size, whatever the Service has.
func TestLargeAnswer(t *testing.T) {
	f := newFake(t, 1)
	const endpoints = 20_000
	large := *sliceNo(0, "node-a")
	large.Endpoints = nil
	for i := range endpoints {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(i / 256), byte(i % 256)})
		large.Endpoints = append(large.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true, NodeName: strings.Repeat("n", 200)})
	}
	f.sink.Update([]model.Object{&large}, nil)
	w := get(Handler(t.Context(), f), "/api/explain?from=node&to=svc/shop/web-000")
	if n := w.Body.Len(); w.Code != 200 || n > 1<<20 {
		t.Errorf("code %d with %d bytes", w.Code, n)
	}
	if want := fmt.Sprintf("of %d endpoints, 500 are listed", endpoints); !strings.Contains(w.Body.String(), want) {
		t.Errorf("the answer does not say: %s", want)
	}
	var answer struct{ Answers []json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Answers) != 1 {
		t.Error(err)
	}
}

// TestPagesTakeTurns: who came first does not keep others out for good.
func TestPagesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s streams
		first, leave := s.enter(t.Context())
		for range maxStreams - 1 {
			s.enter(t.Context())
		}
		if ctx, _ := s.enter(t.Context()); ctx != nil {
			t.Error("there is a place although all others are new")
		}
		time.Sleep(shortest)
		ctx, _ := s.enter(t.Context())
		if ctx == nil || ctx.Err() != nil || first.Err() == nil {
			t.Error("the oldest page has not made room")
		}
		leave()
		if n := s.len(); n != maxStreams {
			t.Errorf("there are %d pages", n)
		}
	})
}
