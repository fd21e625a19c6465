package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/await"
)

// world is a source, the API server that it watches, and the sink that it delivers to.
type world struct {
	*apiServer
	source *Source
	sink   *recorder
	stop   context.CancelFunc
	logs   *logs
}

// begin runs a source on the API server, for the Node "here".
func begin(a *apiServer, change ...func(*Options)) *world {
	w := &world{apiServer: a, sink: &recorder{objects: make(map[model.Ref]string)}, logs: new(logs)}
	o := Options{Config: a.config(), NodeName: "here", Logger: slog.New(slog.NewTextHandler(w.logs, nil))}
	for _, c := range change {
		c(&o)
	}
	var err error
	if w.source, err = New(o); err != nil {
		a.t.Fatal(err)
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := w.source.Run(ctx, w.sink); err != nil {
			a.t.Error(err)
		}
	})
	a.t.Cleanup(func() { w.stop(); done.Wait() })
	synctest.Wait()
	return w
}

// TestMain disables a delay of client-go's error messages. client-go remembers the time of the last message by the
// clock outside the bubbles that tests run in, and waits for that time to come.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// story runs a test in a bubble where time passes only while all wait, with an API server that has the Node "here".
func story(t *testing.T, tell func(t *testing.T, a *apiServer)) {
	synctest.Test(t, func(t *testing.T) {
		// client-go sleeps through the end of its context while it backs off. The bubble must see it wake.
		t.Cleanup(func() { settle(2 * time.Minute) })
		a := newAPIServer(t)
		a.put(node("here"))
		tell(t, a)
	})
}

// settle lets everything happen that is due within a time.
func settle(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}

// holds checks the objects of the sink: services as "a/x:80" with their ports, slices as "a/x>10.0.0.1", others by
// their refs.
func (w *world) holds(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	got := slices.Sorted(maps.Values(w.sink.objects))
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" {
		w.t.Fatalf("the sink should have (-), has (+):\n%s\nproblems: %v\nlog:\n%s", diff, w.source.Problems(), w.logs)
	}
}

// updates checks the sink's updates since the last call: the set objects, and the deleted ones with a minus. The order
// within an update does not count.
func (w *world) updates(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	if diff := gocmp.Diff(want, w.sink.updates); diff != "" {
		w.t.Fatalf("there should have been the updates (-), were (+):\n%s\nproblems: %v\nlog:\n%s", diff, w.source.Problems(), w.logs)
	}
	w.sink.updates = nil
}

// complete checks whether the source has said that it is.
func (w *world) complete(want bool) {
	w.t.Helper()
	synctest.Wait()
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	if got := w.sink.completed == 1; got != want || w.sink.completed > 1 {
		w.t.Fatalf("want complete %v; it was called %d times; problems: %v", want, w.sink.completed, w.source.Problems())
	}
}

// asked counts the requests since it was last called, without those that reflect only how long a watch lasts.
func (w *world) asked(want ...string) {
	w.t.Helper()
	var got []string
	for _, r := range w.takeRequests() {
		got = append(got, r.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" {
		w.t.Fatalf("the API server should have been asked for (-), was (+):\n%s", diff)
	}
}

// noProblems checks that all is well.
func (w *world) noProblems() {
	w.t.Helper()
	synctest.Wait()
	if p := w.source.Problems(); len(p) > 0 {
		w.t.Fatalf("problems: %v", p)
	}
}

// logged checks the messages of level warning and above since it was last called.
func (w *world) logged(want ...string) {
	w.t.Helper()
	synctest.Wait()
	got := w.logs.take()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		w.t.Fatalf("messages should be about\n\t%s\nare\n\t%s", strings.Join(want, "\n\t"), strings.Join(got, "\n\t"))
	}
}

// recorder is a sink. It can be stopped to see what piles up.
type recorder struct {
	mu        sync.Mutex
	busy      chan struct{} // if not nil, updates wait until it is closed
	objects   map[model.Ref]string
	updates   []string
	completed int
}

func (r *recorder) Update(set []model.Object, deleted []model.Ref) {
	r.mu.Lock()
	if busy := r.busy; busy != nil {
		r.mu.Unlock()
		<-busy
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	var said []string
	for _, ref := range deleted {
		if text, ok := r.objects[ref]; ok {
			said = append(said, "-"+text)
		} else {
			said = append(said, "-?"+ref.String())
		}
		delete(r.objects, ref)
	}
	for _, o := range set {
		r.objects[o.Ref()] = render(o)
		said = append(said, render(o))
	}
	slices.Sort(said)
	r.updates = append(r.updates, strings.Join(said, " "))
}

// keepBusy makes the sink take no update until release is called.
func (r *recorder) keepBusy() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := make(chan struct{})
	r.busy = busy
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.busy = nil
		close(busy)
	}
}

func (r *recorder) Complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.completed++
}

func render(o model.Object) string {
	switch o := o.(type) {
	case *model.Service:
		if len(o.Ports) == 0 {
			return fmt.Sprintf("%+v", *o)
		}
		return fmt.Sprintf("%s:%d", o.Name, o.Ports[0].Port)
	case *model.EndpointSlice:
		if len(o.Endpoints) == 0 {
			return fmt.Sprintf("%+v", *o)
		}
		return fmt.Sprintf("%s/%s>%s", o.Namespace, o.Name, o.Endpoints[0].Addr)
	case *model.Node:
		return fmt.Sprintf("node:%s%v%v%s%s", o.Zone, o.Addresses, o.PodCIDRs, healthText(o.Health), edgeText(o))
	case *model.Namespace:
		return fmt.Sprintf("%s:disabled=%v", o.Name, o.ProxyDisabled)
	case *model.ServiceCIDR:
		return fmt.Sprint(o.CIDRs)
	}
	return "?"
}

// logs keeps messages of level warning and above.
type logs struct{ await.Log }

func (l *logs) take() []string {
	var messages []string
	for line := range strings.Lines(l.Take()) {
		if !strings.Contains(line, "initial sync complete") {
			_, message, _ := strings.Cut(strings.TrimSpace(line), "level=")
			messages = append(messages, message)
		}
	}
	return messages
}

// objectMeta is the metadata of "namespace/name", or "name".
func objectMeta(full string, labels ...string) metav1.ObjectMeta {
	namespace, name, ok := strings.Cut(full, "/")
	if !ok {
		namespace, name = "", namespace
	}
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		m.Labels[key] = value
	}
	return m
}

// service is a Service whose port tells its versions apart.
func service(name string, port int32, labels ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: objectMeta(name, labels...), Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: port}},
	}}
}

// slice is an EndpointSlice for the Service of the same name.
func slice(name, addr string, labels ...string) *discoveryv1.EndpointSlice {
	m := objectMeta(name, append(labels, discoveryv1.LabelServiceName+"="+name[strings.Index(name, "/")+1:])...)
	return &discoveryv1.EndpointSlice{ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{addr}},
	}}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: objectMeta(name, corev1.LabelTopologyZone+"=z")}
}

func namespace(name string) *corev1.Namespace { return &corev1.Namespace{ObjectMeta: objectMeta(name)} }

// disabled is a namespace that is taken from the proxy.
func disabled(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: objectMeta(name, optOutLabel+"=disabled")}
}

func serviceCIDR(cidr string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: objectMeta("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
}

// hereNode is how the Node "here" looks in the sink.
const hereNode = "node:z[][]"

var _ runtime.Object = object(nil)

// problems checks the problems of the source.
func (w *world) problems(want ...string) {
	w.t.Helper()
	synctest.Wait()
	var got []string
	for _, p := range w.source.Problems() {
		got = append(got, p.Error())
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		w.t.Fatalf("the problems should be (-), are (+):\n%s", diff)
	}
}

var (
	service7  = model.Ref{Kind: model.KindService, Namespace: "ns-7", Name: "x"}
	service7a = model.Ref{Kind: model.KindService, Namespace: "a", Name: "x"}
)
