package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/switchyard-net/switchyard/test/randcluster"
)

// eventWriter encodes the events of a watch as an API server does.
type eventWriter struct {
	*watcher
	t      *testing.T
	codecs serializer.CodecFactory
	info   runtime.SerializerInfo
	body   bytes.Buffer
	frames io.Writer
}

func newEventWriter(t *testing.T, r *resource, media string) *eventWriter {
	types, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	w := &eventWriter{t: t, codecs: serializer.NewCodecFactory(types)}
	w.watcher = &watcher{listReader: listReader{resource: r, decoder: w.codecs.UniversalDeserializer()}}
	w.info, _ = runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), media)
	w.frames = w.info.StreamSerializer.Framer.NewFrameWriter(&w.body)
	return w
}

func (w *eventWriter) add(kind string, o runtime.Object) {
	w.t.Helper()
	var raw bytes.Buffer
	if err := w.codecs.EncoderForVersion(w.info.Serializer, w.resource.version).Encode(o, &raw); err != nil {
		w.t.Fatal(err)
	}
	event := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw.Bytes()}}
	if err := w.info.StreamSerializer.Serializer.Encode(event, w.frames); err != nil {
		w.t.Fatal(err)
	}
}

var medias = []string{protobuf, runtime.ContentTypeJSON}

// TestEvents reads random objects from watches. Each must equal the fully decoded object.
func TestEvents(t *testing.T) {
	options := gocmp.Options{
		gocmp.AllowUnexported(item{}),
		gocmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }),
		gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	kinds := []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark}
	for _, r := range resources("here", "", false) {
		for _, media := range medias {
			t.Run(r.kind.String()+" "+media, func(t *testing.T) {
				w := newEventWriter(t, r, media)
				var want []item
				for seed := range randcluster.Seeds(150, 5000) {
					rng := rand.New(rand.NewPCG(seed, 1))
					object := reflect.New(reflect.TypeOf(r.example).Elem())
					fill(rng, "", object.Elem())
					if media == runtime.ContentTypeJSON { // which has only valid characters
						object.Interface().(metav1.Object).SetManagedFields(nil)
						if s, ok := object.Interface().(*corev1.Service); ok {
							for i := range s.Spec.Ports {
								s.Spec.Ports[i].TargetPort = intstr.FromInt32(1)
							}
						}
					}
					if seed == 100 { // larger than what is kept
						object.Interface().(metav1.Object).SetAnnotations(map[string]string{"large": strings.Repeat("x", 2*keepEvent)})
					}
					want = append(want, strip(r.kind, object.Interface().(metav1.Object)))
					w.add(string(kinds[seed%4]), object.Interface().(runtime.Object))
				}
				next := w.eventReader(&w.body)
				for n := range want {
					kind, got, err := next()
					if err != nil || kind != kinds[n%4] {
						t.Fatalf("event %d: %v, error %v", n, kind, err)
					}
					if diff := gocmp.Diff(want[n], *got, options); diff != "" {
						t.Fatalf("event %d: the object (-), what was read (+):\n%s", n, diff)
					}
				}
				if _, _, err := next(); err != io.EOF {
					t.Errorf("the end is %v", err)
				}
			})
		}
	}
}

// TestEventsWithErrors reads what ends a watch.
func TestEventsWithErrors(t *testing.T) {
	services := resources("here", "", false)[3]
	gone := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"}
	for _, media := range medias {
		for name, c := range map[string]struct {
			kind   string
			object runtime.Object
			want   func(*metav1.Status) bool
		}{
			"error":          {"ERROR", gone, func(s *metav1.Status) bool { return s.Reason == metav1.StatusReasonExpired && s.Message == "too old" }},
			"unknown type":   {"REPLACED", service("shop/a", 80), isInternal},
			"another object": {"ADDED", gone, isInternal},
			"another kind":   {"ADDED", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, isInternal},
		} {
			t.Run(name+" "+media, func(t *testing.T) {
				w := newEventWriter(t, services, media)
				w.add("ADDED", service("shop/a", 80))
				w.add(c.kind, c.object)
				next := w.eventReader(&w.body)
				if _, i, err := next(); err != nil || i.ref.Name != "a" {
					t.Fatalf("%v, error %v", i, err)
				}
				_, _, err := next()
				if s := failureOf(err); s == nil || !c.want(s) {
					t.Errorf("error %v makes the Reflector see %v", err, s)
				}
			})
		}
	}
	for name, text := range map[string]string{"length": "\xff\xff\xff\xff", "no event": "\x00\x00\x00\x01\xff", "no JSON": "{x"} {
		w := newEventWriter(t, services, protobuf)
		w.body.WriteString(text)
		if _, _, err := w.eventReader(&w.body)(); err == nil || !isInternal(failureOf(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func isInternal(s *metav1.Status) bool {
	return s != nil && apierrors.IsInternalError(&apierrors.StatusError{ErrStatus: *s})
}

// TestEventsCutShort ends a watch after each byte. Incomplete events do not count, and the next watch delivers them.
func TestEventsCutShort(t *testing.T) {
	for _, media := range medias {
		w := newEventWriter(t, resources("here", "", false)[3], media)
		w.add("ADDED", service("shop/a", 80))
		one := w.body.Len()
		w.add("DELETED", service("shop/b", 80))
		for n := range w.body.Len() {
			next, read := w.eventReader(bytes.NewReader(w.body.Bytes()[:n])), 0
			_, _, err := next()
			for ; err == nil; _, _, err = next() {
				read++
			}
			whole := 0
			for _, end := range []int{one, w.body.Len()} {
				if media == runtime.ContentTypeJSON {
					end-- // the end of the line
				}
				if n >= end {
					whole++
				}
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || failureOf(err) != nil || read != whole {
				t.Fatalf("%s cut after %d bytes: %d events, error %v", media, n, read, err)
			}
		}
	}
}
