package kube

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/model"
)

// TestListOfAnotherKind: a list of another type than the requested one is an error, in any form.
func TestListOfAnotherKind(t *testing.T) {
	for _, kind := range []model.Kind{model.KindService, model.KindEndpointSlice, model.KindNode, model.KindNamespace, model.KindServiceCIDR} {
		r, _ := lister(t, kind)
		for _, text := range []string{
			`{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`,
			`{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}`,
			`{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"1"},"items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}]}`,
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}`,
			`{"apiVersion":"v1","kind":"Status","status":"Success"}`,
			`{"apiVersion":"networking.k8s.io/v1","kind":"IngressList","metadata":{"resourceVersion":"1"},"items":[null]}`,
			protobufMagic + field(1, field(1, "events.k8s.io/v1")+field(2, kind.String()+"List")),
		} {
			if list, err := r.readList(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "the API server sent a ") {
				t.Errorf("%v: %q makes a list of %d: %v", kind, text, len(list.Items), err)
			}
		}
	}
}

// field is a field of a protobuf message with a length.
func field(number byte, content string) string {
	return string(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(content)))) + content
}

// endless is a text that goes on with the same part without end.
type endless struct {
	io.Reader
	part string
	read int
}

func newEndless(begin, part string) *endless {
	return &endless{Reader: strings.NewReader(begin), part: part}
}

// Read implements io.Reader.
func (e *endless) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err == io.EOF {
		e.Reader = strings.NewReader(strings.Repeat(e.part, 1+len(p)/len(e.part)))
		err = nil
	}
	e.read += n
	return n, err
}

// TestEndlessList: a list without end is an error once it is larger than any cluster's, before there is no memory left.
func TestEndlessList(t *testing.T) {
	const most = 1 << 20
	r, _ := lister(t, model.KindService)
	r.limit = most
	raw := func(length uint64) string { return string(binary.AppendUvarint([]byte{2<<3 | 2}, length)) }
	object := field(2, field(1, field(1, "a")))
	for name, body := range map[string]*endless{
		"objects":              newEndless(protobufMagic+raw(1<<62), object),
		"other fields":         newEndless(protobufMagic+raw(1<<62), field(3, strings.Repeat("x", 1000))),
		"fields around it":     newEndless(protobufMagic, field(7, "")),
		"raw lists":            newEndless(protobufMagic, field(2, object)),
		"an endless object":    newEndless(protobufMagic+raw(1<<62)+string(binary.AppendUvarint([]byte{2<<3 | 2}, 1<<29)), "x"),
		"JSON, objects":        newEndless(`{"apiVersion":"v1","kind":"ServiceList","items":[`, `{"metadata":{"name":"a"}},`),
		"JSON, spaces":         newEndless("", "    "),
		"JSON, a long string":  newEndless(`{"apiVersion":"`, "x"),
		"JSON, nested objects": newEndless("", `{"a":`),
	} {
		if _, err := r.readList(body); err == nil || !strings.Contains(err.Error(), "a list") && !strings.Contains(err.Error(), "the list") {
			t.Errorf("%s: %v", name, err)
		}
		if body.read > 2*most || name == "objects" && body.read > most/4 { // small ones take more memory than bytes
			t.Errorf("%s: %d bytes were read of a list that may have %d", name, body.read, most)
		}
	}
}

// TestEndlessEvent: so is an event of a watch.
func TestEndlessEvent(t *testing.T) {
	r, _ := lister(t, model.KindService)
	body := newEndless(`{"type":"ADDED","object":{"metadata":{"name":"`, strings.Repeat("x", 1<<10))
	next := (&watcher{listReader: *r}).eventReader(body)
	if _, _, err := next(); err == nil || !strings.Contains(err.Error(), "an event has more than") {
		t.Error(err)
	}
	if body.read > 2*maxEvent {
		t.Errorf("%d bytes were read", body.read)
	}
}

// TestEndlessPages: the pages of a list have its bounds together.
func TestEndlessPages(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		made, err := newClients(a.config(), a.types, a.codecs, nil)
		if err != nil {
			t.Fatal(err)
		}
		services := resources("here", "", false)[3]
		a.ready = map[string][]byte{"services": []byte(`{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"1","continue":"more"},"items":[]}`)}
		h := &health{log: slog.New(slog.DiscardHandler)}
		w := &watcher{listReader: listReader{resource: services, client: made[services.version], decoder: a.codecs.UniversalDeserializer(), limit: 1 << 20}, health: h}
		source := w.listWatch().(listing)
		page := func(more string) error {
			_, err := source.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0", Continue: more})
			return err
		}
		err = page("")
		for pages := 1; err == nil; pages++ {
			if pages > 100 {
				t.Fatal("there are pages without end")
			}
			err = page("more")
		}
		if !strings.Contains(err.Error(), "is larger than") || len(h.problems()) != 1 {
			t.Errorf("%v, problems %v", err, h.problems())
		}
		if err := page(""); err != nil {
			t.Errorf("a new list: %v", err)
		}
		time.Sleep(listTime)
		if err := page("more"); err == nil || !strings.Contains(err.Error(), "the list of services has not ended after") {
			t.Errorf("a page that comes after %v: %v", listTime, err)
		}
	})
}

// TestListWithoutEnd: an API server that does not end its answer is a problem, and is asked again.
func TestListWithoutEnd(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80))
		a.held["services"] = true
		w := begin(a)
		settle(2 * listTime)
		if list := w.source.Problems(); len(list) != 1 || !strings.Contains(list[0].Error(), "the list of services has not ended after 5m0s") {
			t.Errorf("problems: %v", list)
		}
		a.do(func() { delete(a.held, "services") })
		settle(2 * listTime)
		w.complete(true)
		w.holds("a/x:80", hereNode)
		w.noProblems()
		w.logged("cannot be reached", "can be reached again")
	})
}

// TestReaderRefusesListOfAnotherType: tools that explain do not take a list of another type for an empty one.
func TestReaderRefusesListOfAnotherType(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.ready = map[string][]byte{"services": []byte(`{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}`)}
		r, err := NewReader(a.config())
		if err != nil {
			t.Fatal(err)
		}
		objects, err := r.Routing(t.Context())
		if want := "list services: the API server sent a PodList of v1 instead of a ServiceList of v1"; fmt.Sprint(err) != want {
			t.Errorf("%d objects, %v", len(objects), err)
		}
	})
}

// answering answers all requests with one answer.
type answering struct{ *http.Response }

func (a answering) RoundTrip(*http.Request) (*http.Response, error) { return a.Response, nil }

// TestRefusalIsBounded: client-go reads the body of an error as a whole.
func TestRefusalIsBounded(t *testing.T) {
	body := newEndless("", "no ")
	resp, err := refusals{answering{&http.Response{StatusCode: http.StatusInternalServerError, Body: io.NopCloser(body)}}}.RoundTrip(nil)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(resp.Body); len(text) != maxRefusal || err != nil {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// FuzzReadText: no text that is no protobuf makes the decoder of lists panic.
func FuzzReadText(f *testing.F) {
	services, codecs := lister(f, model.KindService)
	f.Add(encoded(f, codecs, model.KindService, runtime.ContentTypeJSON, service("a/x", 80)))
	f.Add([]byte(`{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{}]}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"ServiceList","items":[null,{"spec":{"ports":[null]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := services.readList(strings.NewReader(string(text)))
		if err != nil {
			return
		}
		for _, o := range list.Items {
			if i := o.(*item); i.object == nil && i.fault == nil || i.ref.Kind != model.KindService {
				t.Errorf("%q makes an item without object and fault, or of another kind: %+v", text, i)
			}
		}
	})
}
