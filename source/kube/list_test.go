package kube

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/switchyard-net/switchyard/model"
)

// lister reads lists.
func lister(t testing.TB, kind model.Kind) (*listReader, serializer.CodecFactory) {
	t.Helper()
	types, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(types)
	all := resources("here", "", false)
	r := all[slices.IndexFunc(all, func(r *resource) bool { return r.kind == kind })]
	return &listReader{resource: r, decoder: codecs.UniversalDeserializer()}, codecs
}

// encoded is a list as an API server sends it.
func encoded(t testing.TB, codecs serializer.CodecFactory, kind model.Kind, media string, objects ...object) []byte {
	t.Helper()
	w, _ := lister(t, kind)
	list := map[model.Kind]interface {
		runtime.Object
		metav1.ListInterface
	}{
		model.KindService: &corev1.ServiceList{}, model.KindEndpointSlice: &discoveryv1.EndpointSliceList{},
		model.KindNode: &corev1.NodeList{}, model.KindNamespace: &corev1.NamespaceList{}, model.KindServiceCIDR: &networkingv1.ServiceCIDRList{},
	}[kind]
	list.SetResourceVersion("1234")
	list.SetContinue("more")
	items := make([]runtime.Object, len(objects))
	for i, o := range objects {
		items[i] = o
	}
	if err := meta.SetList(list, items); err != nil {
		t.Fatal(err)
	}
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), media)
	var b bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, w.resource.version).Encode(list, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rendered is the content of a list, in words.
func rendered(l *itemList) []string {
	said := []string{"version " + l.ResourceVersion, "continue " + l.Continue}
	for _, o := range l.Items {
		i := o.(*item)
		text := i.ref.String() + " " + i.version + " "
		if i.fault != nil {
			text += i.fault.Error()
		} else {
			text += render(i.object)
		}
		said = append(said, text)
	}
	return said
}

// TestListEncodings reads the same list of each kind in both encodings.
func TestListEncodings(t *testing.T) {
	big := service("big/x", 80)
	big.Annotations = map[string]string{"text": strings.Repeat("x", 3*listBuffer)}
	faulty := service("a/faulty", 80)
	faulty.Spec.ClusterIPs = []string{"nothing"}
	for kind, objects := range map[model.Kind][]object{
		model.KindService:       {service("a/x", 80), big, faulty, service("b/y", 81)},
		model.KindEndpointSlice: {slice("a/x", "10.0.0.1"), slice("b/y", "10.0.0.2")},
		model.KindNode:          {node("here")},
		model.KindNamespace:     {disabled("a"), disabled("b")},
		model.KindServiceCIDR:   {serviceCIDR("10.96.0.0/16")},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			w, codecs := lister(t, kind)
			for i, o := range objects {
				o.SetResourceVersion(strings.Repeat("7", i+1))
			}
			fast, err1 := w.readList(bytes.NewReader(encoded(t, codecs, kind, protobuf, objects...)))
			slow, err2 := w.readList(bytes.NewReader(encoded(t, codecs, kind, "application/json", objects...)))
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			if diff := gocmp.Diff(rendered(slow), rendered(fast)); diff != "" {
				t.Errorf("in JSON (-), in protobuf (+):\n%s", diff)
			}
			if n := len(fast.Items); n != len(objects) || fast.ResourceVersion != "1234" || fast.Continue != "more" {
				t.Errorf("%d of %d items: %v", n, len(objects), rendered(fast))
			}
			empty, err := w.readList(bytes.NewReader(encoded(t, codecs, kind, protobuf)))
			if err != nil || len(empty.Items) != 0 || empty.ResourceVersion != "1234" {
				t.Errorf("no objects: %v, %v", empty, err)
			}
		})
	}
}

// TestListCutShort ends a list after each of its bytes. A short list would say that objects have been deleted.
func TestListCutShort(t *testing.T) {
	for _, media := range []string{protobuf, "application/json"} {
		w, codecs := lister(t, model.KindService)
		whole := encoded(t, codecs, model.KindService, media, service("a/x", 80), service("b/x", 80))
		want, err := w.readList(iotest.OneByteReader(bytes.NewReader(whole)))
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(whole) {
			list, err := w.readList(bytes.NewReader(whole[:n]))
			if err == nil && !slices.Equal(rendered(list), rendered(want)) {
				t.Errorf("%s: the first %d of %d bytes make a list: %v", media, n, len(whole), rendered(list))
			}
			broken := io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(io.ErrClosedPipe))
			if list, err := w.readList(broken); err == nil {
				t.Errorf("%s: a connection that breaks after %d of %d bytes makes a list: %v", media, n, len(whole), rendered(list))
			}
		}
	}
}

// TestListHasAnotherType has an answer of another type than the requested one.
func TestListHasAnotherType(t *testing.T) {
	w, codecs := lister(t, model.KindService)
	_, err := w.readList(bytes.NewReader(encoded(t, codecs, model.KindNode, protobuf, node("here"))))
	if err == nil || !strings.Contains(err.Error(), "the API server sent a NodeList of v1 instead of a ServiceList of v1") {
		t.Errorf("got %v", err)
	}
	if _, err := w.readList(strings.NewReader("<html>")); err == nil {
		t.Error("read a page as a list")
	}
	if _, err := w.readList(strings.NewReader(protobufMagic + "\x12" + string(binary.AppendUvarint(nil, 1<<63)))); err == nil {
		t.Error("read a list of endless length")
	}
	if _, err := w.readList(strings.NewReader(protobufMagic + "\x12\x02" + "\x0a\x0a\x12\x0812345678")); err == nil {
		t.Error("read a list of 2 bytes with a field of 10")
	}
}

// TestListBreaks loses the connection in the middle of the lists. Known objects stay, and the lists come again.
func TestListBreaks(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/x", 80), service("b/x", 80))
		w := begin(a)
		w.complete(true)
		w.sink.updates = nil
		a.cut(true)
		a.compact()
		a.put(service("a/x", 81))
		a.remove(service("b/x", 0))
		a.do(func() { a.half = true })
		a.up()
		settle(10 * time.Second)
		w.updates()
		w.holds("a/x:80", "b/x:80", hereNode)
		a.do(func() { a.half = false })
		settle(2 * time.Minute)
		w.holds("a/x:81", hereNode)
		w.noProblems()
	})
}

// FuzzReadList compares a list that is read object by object with the result of the decoders of k8s.io.
func FuzzReadList(f *testing.F) {
	services, codecs := lister(f, model.KindService)
	endpointSlices, _ := lister(f, model.KindEndpointSlice)
	f.Add(encoded(f, codecs, model.KindService, protobuf, service("a/x", 80), service("b/x", 81, "app=shop")))
	f.Add(encoded(f, codecs, model.KindEndpointSlice, protobuf, slice("a/x", "10.0.0.1"), slice("b/x", "10.0.0.2")))
	f.Add(encoded(f, codecs, model.KindService, protobuf))
	f.Fuzz(func(t *testing.T, text []byte) {
		text = append([]byte(protobufMagic), bytes.TrimPrefix(text, []byte(protobufMagic))...)
		for _, w := range []*listReader{services, endpointSlices} {
			list, err := w.readList(bytes.NewReader(text))
			if err != nil {
				continue
			}
			want := &itemList{}
			if w.readAll(bytes.NewReader(text), want) != nil {
				continue
			}
			if diff := gocmp.Diff(rendered(want), rendered(list)); diff != "" {
				t.Errorf("at once (-), object by object (+):\n%s", diff)
			}
		}
	})
}
