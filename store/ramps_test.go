package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// slow is a service with a slow start of 8 seconds, which has steps of one second.
func slow(name string) *model.Service {
	return &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:       []model.ServicePort{{Protocol: state.TCP, Port: 80}},
		Annotations: []model.Annotation{{Name: model.SlowStartAnnotation, Value: "8s"}},
	}
}

// ready is a slice of a service with ready endpoints 10.1.0.N, which are on node nN.
func ready(service string, numbers ...int) *model.EndpointSlice {
	s := &model.EndpointSlice{Namespace: "ns", Name: service + "-1", Service: service, Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for _, n := range numbers {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), Ready: true, Serving: true, NodeName: fmt.Sprint("n", n)})
	}
	return s
}

// weightsOf shows the weights of a service's endpoints, such as "10 1".
func weightsOf(record *state.Service) string {
	if record == nil {
		return "none"
	}
	return strings.Trim(fmt.Sprint(record.Ports[0].Internal.Inside.Weights()), "[]")
}

// slowStore is a store whose initial list has service web with endpoints 1 and 2.
func slowStore(t *testing.T) (*Store, model.Sink) {
	s, sink := newStore(t)
	sink.Update([]model.Object{slow("web"), ready("web", 1, 2)}, nil)
	sink.Complete()
	return s, sink
}

func webWeights(s *Store) string { return weightsOf(s.Snapshot().Get(slow("web").Name)) }

// pass lets time pass, and the store do what is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestSlowStart: the first list has no new endpoints. One that comes gets a tenth of the others' weight, and an eighth more with each second.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := slowStore(t)
		expect := func(want string) {
			t.Helper()
			if got := webWeights(s); got != want {
				t.Errorf("after %v the weights are %s, want %s", time.Since(s.ramps.begun), got, want)
			}
		}
		expect("1 1")
		sink.Update([]model.Object{ready("web", 1, 2, 3)}, nil)
		for _, want := range []string{"10 10 1", "8 8 1", "4 4 1", "8 8 3", "2 2 1", "8 8 5", "4 4 3", "8 8 7", "1 1 1", "1 1 1"} {
			expect(want)
			pass(time.Second)
		}
		revision := s.Snapshot().Revision()
		if pass(time.Hour); s.Snapshot().Revision() != revision || len(s.ramps.queue) > 0 {
			t.Error("it goes on although nobody is new")
		}
	})
}

// TestStepsAreShared: endpoints that come at any time change together, and have their weight after the slow start and at most an eighth more.
func TestStepsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := slowStore(t)
		numbers := []int{1, 2}
		pass(5 * time.Millisecond)
		for n := 3; n < 103; n++ { // 100 endpoints in a second, between two steps
			pass(10 * time.Millisecond)
			numbers = append(numbers, n)
			sink.Update([]model.Object{ready("web", numbers...)}, nil)
		}
		start, even := s.Snapshot().Revision(), strings.TrimSpace(strings.Repeat("1 ", 102))
		if pass(8*time.Second - time.Millisecond); webWeights(s) == even {
			t.Error("all weights are full before 8 seconds")
		}
		if pass(time.Second); webWeights(s) != even {
			t.Errorf("after 9 seconds the weights are %s", webWeights(s))
		}
		if n := s.Snapshot().Revision() - start; n > 9 {
			t.Errorf("%d states for 100 endpoints in 9 seconds, want one for each second", n)
		}
	})
}

// TestNewAgain: an endpoint that is not ready for a moment is new again. So is one that leaves and returns.
func TestNewAgain(t *testing.T) {
	for name, without := range map[string]func(s *model.EndpointSlice){
		"unready": func(s *model.EndpointSlice) { s.Endpoints[1].Ready, s.Endpoints[1].Serving = false, false },
		"absent":  func(s *model.EndpointSlice) { s.Endpoints = s.Endpoints[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, sink := slowStore(t)
				slice := ready("web", 1, 2)
				without(slice)
				sink.Update([]model.Object{slice}, nil)
				sink.Update([]model.Object{ready("web", 1, 2)}, nil)
				if got := webWeights(s); got != "10 1" {
					t.Errorf("the weights are %s", got)
				}
				pass(4 * time.Second)
				sink.Update([]model.Object{ready("web", 1, 2)}, nil) // no change
				if got := webWeights(s); got != "2 1" {
					t.Errorf("after a half, the weights are %s", got)
				}
				slice = ready("web", 1, 2)
				without(slice)
				sink.Update([]model.Object{slice}, nil)
				pass(time.Hour)
				if len(s.ramps.queue) > 0 {
					t.Error("it is stepped for an endpoint that is not ready")
				}
				sink.Update([]model.Object{ready("web", 1, 2)}, nil)
				if got := webWeights(s); got != "10 1" {
					t.Errorf("once again, the weights are %s", got)
				}
			})
		})
	}
}

// TestOldEndpoints: endpoints that are ready before their Service asks for a slow start, or when a new Service comes, are not new.
func TestOldEndpoints(t *testing.T) {
	plain, other, bad := slow("web"), slow("web"), slow("web")
	plain.Annotations, other.Created, bad.Annotations[0].Value = nil, time.Unix(5, 0), "8"
	for name, between := range map[string]func(sink model.Sink){
		"a Service that returns": func(sink model.Sink) { sink.Update(nil, []model.Ref{slow("web").Ref()}) },
		"no annotation":          func(sink model.Sink) { sink.Update([]model.Object{plain}, nil) },
		"another Service":        func(sink model.Sink) { sink.Update([]model.Object{other}, nil) },
		"a bad value":            func(sink model.Sink) { sink.Update([]model.Object{bad}, nil) },
		"a namespace that opts out": func(sink model.Sink) {
			sink.Update([]model.Object{&model.Namespace{Name: "ns", ProxyDisabled: true}}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, sink := slowStore(t)
				sink.Update([]model.Object{ready("web", 1, 2, 3)}, nil)
				if got := webWeights(s); got != "10 10 1" {
					t.Fatalf("the weights are %s", got)
				}
				between(sink)
				sink.Update([]model.Object{slow("web"), &model.Namespace{Name: "ns"}}, nil)
				if got := webWeights(s); got != "1 1 1" {
					t.Errorf("the weights are %s", got)
				}
				sink.Update([]model.Object{ready("web", 1, 2, 3, 4)}, nil)
				if got := webWeights(s); got != "10 10 10 1" {
					t.Errorf("with one more, the weights are %s", got)
				}
			})
		})
	}
}

// TestAllAreNew: the endpoints of a new Service come after it, all at once. They share evenly, and the next one starts slowly among them.
func TestAllAreNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := newStore(t)
		sink.Complete()
		sink.Update([]model.Object{slow("web")}, nil)
		sink.Update([]model.Object{ready("web", 1, 2)}, nil)
		if got := webWeights(s); got != "1 1" {
			t.Errorf("the weights are %s", got)
		}
		pass(4 * time.Second)
		sink.Update([]model.Object{ready("web", 1, 2, 3)}, nil)
		if got := webWeights(s); got != "5 5 1" {
			t.Errorf("with one more, the weights are %s", got)
		}
	})
}

// TestLongerSlowStart: another length counts for endpoints that are new, from the time at which they became ready. An endpoint with its full weight keeps it.
func TestLongerSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := slowStore(t)
		sink.Update([]model.Object{ready("web", 1, 2, 3)}, nil)
		pass(8 * time.Second)
		sink.Update([]model.Object{ready("web", 1, 2, 3, 4)}, nil)
		pass(4 * time.Second)
		longer := slow("web")
		longer.Annotations[0].Value = "16s"
		sink.Update([]model.Object{longer}, nil)
		if got := webWeights(s); got != "4 4 4 1" {
			t.Errorf("the weights are %s", got)
		}
		shorter := slow("web")
		shorter.Annotations[0].Value = "4s"
		sink.Update([]model.Object{shorter}, nil)
		if got := webWeights(s); got != "1 1 1 1" {
			t.Errorf("with a shorter slow start, the weights are %s", got)
		}
	})
}

// TestBadSlowStart: the problem names the value and the remedy.
func TestBadSlowStart(t *testing.T) {
	s, sink := slowStore(t)
	bad := slow("web")
	bad.Annotations = []model.Annotation{{Name: model.SlowStartAnnotation, Value: "2h"}, {Name: model.ZoneWeightsAnnotation, Value: "same=0,other=0"}}
	sink.Update([]model.Object{bad}, nil)
	problems := s.problems.ofService(bad.Name)
	if len(problems) != 2 || s.Limited()[AnnotationIgnored] != 1 {
		t.Fatalf("problems %v", problems)
	}
	for i, want := range []string{`"2h" is not a duration in whole seconds from 1s to 1h`, `"same=0,other=0" is not two weights`} {
		if !strings.HasPrefix(problems[i].Note, want) || problems[i].Remedy == "" {
			t.Errorf("problem %+v, want %s", problems[i], want)
		}
	}
}

// TestStepsAreBounded: many services with many endpoints become older at the same time. The store computes them in parts, with pauses for other changes.
func TestStepsAreBounded(t *testing.T) {
	const services, endpoints = 20, 1000
	synctest.Test(t, func(t *testing.T) {
		s, sink := newStore(t)
		sink.Complete()
		var objects, slices []model.Object
		numbers := make([]int, endpoints)
		for n := range numbers {
			numbers[n] = n
		}
		for i := range services {
			svc := slow(fmt.Sprint("s", i))
			svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}
			objects, slices = append(objects, svc, ready(svc.Name.Name, endpoints+i)), append(slices, ready(svc.Name.Name, append([]int{endpoints + i}, numbers...)...))
		}
		sink.Update(objects, nil)
		sink.Update(slices, nil)
		changed := func(after state.Revision) int {
			if s.Snapshot().Revision() == after {
				return 0
			}
			u, err := s.Next(t.Context(), after)
			if err != nil {
				t.Fatal(err)
			}
			return len(u.Changed)
		}
		start := s.Snapshot().Revision()
		pass(time.Second)
		const each = stepAddresses/(endpoints+1) + 1
		for _, want := range []int{each, 2 * each, services} {
			if got := changed(start); got != want {
				t.Errorf("%d of %d services have changed, want %d", got, services, want)
			}
			pass(stepPause)
		}
		if got := changed(start); got != services {
			t.Errorf("%d of %d services have changed in the end", got, services)
		}
	})
}

// TestRoomForSlowStarts: a namespace has half of the room. A service without room has even shares, and room returns with other services.
func TestRoomForSlowStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := newStore(t)
		sink.Complete()
		service := func(namespace, name string, addrs int) []model.Object {
			svc, slice := slow(name), ready(name)
			svc.Name.Namespace, slice.Namespace = namespace, namespace
			svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, namespace[0], name[0]})}
			for n := range addrs {
				slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), Ready: true})
			}
			return []model.Object{svc, slice}
		}
		full := service("a", "full", mostFollowed/2)
		sink.Update(full, nil)
		small := slow("small")
		small.Name.Namespace = "a"
		lacks := func() bool {
			return slices.ContainsFunc(s.problems.ofService(small.Name), func(p Problem) bool {
				return p.Reason == AnnotationIgnored && strings.Contains(p.Note, "65536 of a namespace")
			})
		}
		sink.Update(service("a", "small", 1), nil)
		if !lacks() {
			t.Errorf("problems of the service without room: %v", s.problems.ofService(small.Name))
		}
		sink.Update(service("a", "small", 2), nil)
		if got := weightsOf(s.Snapshot().Get(small.Name)); got != "1 1" {
			t.Errorf("without room the weights are %s", got)
		}
		sink.Update(service("b", "small", 1), nil)
		sink.Update(service("b", "small", 2), nil)
		if got := weightsOf(s.Snapshot().Get(state.ServiceName{Namespace: "b", Name: "small"})); got != "10 1" {
			t.Errorf("in another namespace the weights are %s", got)
		}
		sink.Update(nil, []model.Ref{full[0].Ref(), full[1].Ref()})
		sink.Update(service("a", "small", 1), nil)
		sink.Update(service("a", "small", 2), nil)
		if got := weightsOf(s.Snapshot().Get(small.Name)); got != "10 1" || lacks() {
			t.Errorf("with room the weights are %s, problems %v", got, s.problems.ofService(small.Name))
		}
		if s.ramps.followed != 4 || len(s.ramps.byNamespace) != 2 {
			t.Errorf("%d addresses are counted: %v", s.ramps.followed, s.ramps.byNamespace)
		}
	})
}

// TestClusterSteps: the states of a Cluster have the weights of a Store. With policy Local, only the node of the endpoint hears of a step.
func TestClusterSteps(t *testing.T) {
	for _, local := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, c := New(Options{Brain: brain.Config{NodeName: "n1"}}), NewCluster(ClusterOptions{})
			defer s.Close()
			defer c.Close()
			svc := slow("web")
			svc.InternalLocal = local
			sinks := []model.Sink{s.Source("test"), c.Source("test")}
			update := func(objects ...model.Object) {
				for _, sink := range sinks {
					sink.Update(objects, nil)
				}
			}
			onNode := func(numbers ...int) *model.EndpointSlice { // endpoints 1 and 3 are on one node
				slice := ready("web", numbers...)
				for i := range slice.Endpoints {
					if slice.Endpoints[i].NodeName == "n3" {
						slice.Endpoints[i].NodeName = "n1"
					}
				}
				return slice
			}
			update(svc, onNode(1, 2), &model.Node{Name: "n1"}, &model.Node{Name: "n2"}, &model.Node{Name: "n9"})
			for _, sink := range sinks {
				sink.Complete()
			}
			watchers := []*watcher{{node: "n1"}, {node: "n2"}, {node: "n9"}}
			for _, w := range watchers {
				w.poll(t, c)
			}
			update(onNode(1, 2, 3))
			for second := range 10 {
				for _, w := range watchers {
					u, needless := w.poll(t, c)
					if needless || local && w.node == "n2" && second > 0 && u != nil {
						t.Errorf("local %t: %s hears of second %d", local, w.node, second)
					}
				}
				if want, got := weightsOf(s.Snapshot().Get(svc.Name)), weightsOf(watchers[0].held.services[svc.Name]); want != got {
					t.Errorf("local %t: in second %d the cluster has weights %s, the store %s", local, second, got, want)
				}
				pass(time.Second)
			}
			if got := weightsOf(watchers[0].held.services[svc.Name]); got != map[bool]string{false: "1 1 1", true: "1 1"}[local] {
				t.Errorf("local %t: in the end the weights are %s", local, got)
			}
		})
	}
}

// TestExplainSteps: an explanation has the ages of the state.
func TestExplainSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := slowStore(t)
		sink.Update([]model.Object{ready("web", 1, 2, 3)}, nil)
		pass(2500 * time.Millisecond)
		e := s.Explain(slow("web").Name)
		if r := e.Ports[0].Endpoints[2]; r.SlowStart != 0.25 || r.Weight != 1 || !e.Record.Equal(e.Published) {
			t.Errorf("reasons %+v, record %+v, published %+v", r, e.Record, e.Published)
		}
	})
}

// TestStepsEnd: a closed store publishes nothing, and computes nothing.
func TestStepsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := slowStore(t)
		sink.Update([]model.Object{ready("web", 1, 2, 3)}, nil)
		s.Close()
		if pass(time.Hour); webWeights(s) != "10 10 1" {
			t.Error("it is stepped after its end")
		}
		if _, err := s.Next(t.Context(), 0); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// BenchmarkStep measures the largest step: services with 8,192 endpoints in all, half of which are new.
func BenchmarkStep(b *testing.B) {
	const services, endpoints = 8, 1024
	s, sink := newStore(b)
	sink.Complete()
	for _, n := range []int{endpoints / 2, endpoints} {
		for i := range services {
			svc := slow(fmt.Sprint("s", i))
			svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}
			svc.Annotations[0].Value = "1h"
			numbers := make([]int, n)
			for k := range numbers {
				numbers[k] = k
			}
			sink.Update([]model.Object{svc, ready(svc.Name.Name, numbers...)}, nil)
		}
	}
	longest := time.Hour / brain.SlowStartSteps
	for b.Loop() {
		for _, p := range s.ramps.queue { // as if they had just come
			for i := range p.ready[endpoints/2:] {
				p.ready[endpoints/2+i].since = time.Since(s.ramps.begun).Truncate(longest)
			}
		}
		s.ramps.begun = s.ramps.begun.Add(-longest)
		s.step()
	}
	if len(s.ramps.queue) != services {
		b.Errorf("%d services have new endpoints", len(s.ramps.queue))
	}
}
