package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// watchBuffer holds most events.
	watchBuffer = 4 << 10
	// maxEvent is how many bytes an event may have, as client-go has it.
	maxEvent = 16 << 20
	// keepEvent is how many bytes of memory are kept for the next event.
	keepEvent = 64 << 10
)

// eventReader returns a function that reads the next event of a watch, in protobuf or JSON. One that reports an error of the API server is
// returned as that error.
func (w *watcher) eventReader(body io.Reader) func() (watch.EventType, *item, error) {
	in := bufio.NewReaderSize(body, watchBuffer)
	read := w.objectReader()
	var next func(*metav1.WatchEvent) error
	var e metav1.WatchEvent // its memory is used again
	return func() (watch.EventType, *item, error) {
		if next == nil {
			first, err := in.Peek(1)
			if err != nil {
				return "", nil, err
			}
			next = protobufEvents(in)
			if first[0] == '{' {
				next = jsonEvents(in)
			}
		}
		e = metav1.WatchEvent{Object: runtime.RawExtension{Raw: emptied(e.Object.Raw)}}
		if err := next(&e); err != nil {
			return "", nil, err
		}
		switch kind := watch.EventType(e.Type); kind {
		case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
			object, err := read(e.Object.Raw)
			if err != nil {
				return "", nil, fmt.Errorf("decode an object: %v", err) // %v: an io.EOF in it must not mean the end of the stream
			}
			i := strip(w.resource.kind, object)
			return kind, &i, nil
		case watch.Error:
			status, err := runtime.Decode(w.decoder, e.Object.Raw)
			if err == nil {
				err = apierrors.FromObject(status)
			}
			return "", nil, err
		default:
			return "", nil, fmt.Errorf("the API server sent an event of type %q", kind)
		}
	}
}

func jsonEvents(in io.Reader) func(*metav1.WatchEvent) error {
	limited := &io.LimitedReader{R: in}
	decoder := json.NewDecoder(limited)
	return func(e *metav1.WatchEvent) error {
		limited.N = maxEvent // in addition to the bytes that the decoder has read ahead
		err := decoder.Decode(e)
		if err != nil && limited.N == 0 {
			return fmt.Errorf("an event has more than %d bytes", maxEvent)
		}
		return err
	}
}

// protobufEvents reads events that each follow their length in four bytes.
func protobufEvents(in io.Reader) func(*metav1.WatchEvent) error {
	var buffer []byte
	return func(e *metav1.WatchEvent) error {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxEvent {
			return fmt.Errorf("an event has %d bytes", n)
		}
		buffer = slices.Grow(emptied(buffer), int(n))[:n]
		if _, err := io.ReadFull(in, buffer); err != nil {
			return unexpected(err)
		}
		if err := e.Unmarshal(buffer); err != nil {
			return fmt.Errorf("decode an event: %v", err) // %v: an io.EOF in it must not mean the end of the stream
		}
		return nil
	}
}

// emptied returns memory to use again, unless it is much.
func emptied(b []byte) []byte {
	if cap(b) > keepEvent {
		return nil
	}
	return b[:0]
}

// objectReader returns a function that reads one object of the resource after another. In protobuf, it decodes the same
// fields as for a list. An object is valid until the next is read.
func (w *watcher) objectReader() func(encoded []byte) (metav1.Object, error) {
	read, want := w.resource.newReader(), reflect.TypeOf(w.resource.example)
	var wrapped runtime.Unknown // its memory is used again
	return func(encoded []byte) (metav1.Object, error) {
		message, ok := bytes.CutPrefix(encoded, []byte(protobufMagic))
		if !ok {
			decoded, err := runtime.Decode(w.decoder, encoded)
			if err != nil {
				return nil, err
			}
			if got := reflect.TypeOf(decoded); got != want {
				return nil, fmt.Errorf("the API server sent a %v instead of a %v", got, want)
			}
			return decoded.(metav1.Object), nil
		}
		wrapped = runtime.Unknown{Raw: emptied(wrapped.Raw)}
		if err := wrapped.Unmarshal(message); err != nil {
			return nil, err
		}
		if kind := w.resource.kind.String(); wrapped.Kind != kind {
			return nil, fmt.Errorf("the API server sent a %s instead of a %s", wrapped.Kind, kind)
		}
		return read(wrapped.Raw)
	}
}
