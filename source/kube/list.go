package kube

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// itemList is a list of objects without its metadata, in the form that client-go's Reflector takes.
type itemList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object // each an *item
	// size is the size of the list, for the limit of one list.
	size uint64
}

// DeepCopyObject implements runtime.Object. Nobody changes a list.
func (l *itemList) DeepCopyObject() runtime.Object { return l }

// DeepCopyObject implements runtime.Object. Nobody changes an item.
func (i *item) DeepCopyObject() runtime.Object { return i }

// GetObjectKind implements runtime.Object.
func (i *item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// listReader requests and reads lists of a resource.
type listReader struct {
	resource *resource
	client   rest.Interface
	decoder  runtime.Decoder
	// limit is how much a list may count. Default: maxList.
	limit uint64
}

// The bounds of a list, all pages together. A cluster of 150,000 pods has some 150 MiB of EndpointSlices.
const (
	// maxList limits the bytes of a list, including objectCost for each object and pageCost for each page. These are
	// the memory of the smallest object and page.
	maxList    = 1 << 30
	objectCost = 256
	pageCost   = 64 << 10
	// textCost is how many bytes a byte of JSON counts: such a list is in memory as a whole, and so are its objects.
	textCost = 4
	// listTime is how long a list may take. API servers cut requests after a minute, unless they are configured otherwise.
	listTime = 5 * time.Minute
)

func (r *listReader) most() uint64 { return cmp.Or(r.limit, maxList) }

func (r *listReader) tooLarge() error {
	return fmt.Errorf("the list of %s is larger than %d MiB: the API server sends more than a cluster has", r.resource.name(), r.most()>>20)
}

// withDeadline returns a context for a list that began at a time. The cause of its end names the list.
func (r *listReader) withDeadline(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, began.Add(listTime), fmt.Errorf("the list of %s has not ended after %v", r.resource.name(), listTime))
}

// request is one for objects of the resource. fields is its field selector.
func (r *listReader) request(options metav1.ListOptions, fields string) *rest.Request {
	options.LabelSelector, options.FieldSelector = r.resource.labels, fields
	request := r.client.Get().Resource(r.resource.plural).VersionedParams(&options, metav1.ParameterCodec)
	if r.resource.namespace != "" {
		request = request.Namespace(r.resource.namespace)
	}
	return request
}

// list requests a list. Protobuf objects are stripped one by one while the rest arrives. So memory never holds all full
// objects, or all of their bytes.
func (r *listReader) list(ctx context.Context, request *rest.Request) (*itemList, error) {
	ctx, cancel := r.withDeadline(ctx, time.Now())
	defer cancel()
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, late(ctx, err)
	}
	defer body.Close()
	list, err := r.readList(body)
	if err != nil {
		return nil, fmt.Errorf("read a list of %s: %w", r.resource.name(), late(ctx, err))
	}
	return list, nil
}

// late returns the cause of a deadline that has passed, else err.
func late(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded {
		return context.Cause(ctx)
	}
	return err
}

const (
	// protobufMagic begins protobuf content. A message of type runtime.Unknown follows, whose field raw is the list.
	protobufMagic = "k8s\x00"
	// listBuffer holds any object that is not unusually large.
	listBuffer = 64 << 10
)

func (r *listReader) readList(body io.Reader) (*itemList, error) {
	list := &itemList{Items: []runtime.Object{}}
	in := bufio.NewReaderSize(body, listBuffer)
	if start, _ := in.Peek(len(protobufMagic)); string(start) != protobufMagic {
		return list, r.readAll(in, list)
	}
	s := stream{in: in, most: r.most()}
	_, err := s.take(uint64(len(protobufMagic)))
	for err == nil {
		var number, length uint64
		if number, length, err = s.field(); err != nil {
			break
		}
		switch number {
		case 1:
			err = r.readType(&s, length)
		case 2:
			err = r.readRaw(&s, length, list)
		default:
			_, err = s.take(length)
		}
	}
	if err != io.EOF {
		return nil, err
	}
	list.size += s.taken
	if list.ResourceVersion == "" {
		return nil, io.ErrUnexpectedEOF // every list has one, and comes with all its objects or not at all
	}
	return list, nil
}

// readAll reads a list that is not in protobuf.
func (r *listReader) readAll(in io.Reader, list *itemList) error {
	most := r.most() / textCost
	text, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	if err != nil {
		return err
	}
	if uint64(len(text)) > most {
		return r.tooLarge()
	}
	list.size = textCost * uint64(len(text))
	objects, got, err := r.decoder.Decode(text, nil, nil)
	if err != nil {
		return err
	}
	if err := r.check(got.GroupVersion().String(), got.Kind); err != nil {
		return err
	}
	about, err := meta.ListAccessor(objects)
	if err != nil {
		return err
	}
	list.ResourceVersion, list.Continue = about.GetResourceVersion(), about.GetContinue()
	return meta.EachListItem(objects, func(o runtime.Object) error {
		object, err := meta.Accessor(o)
		if err == nil {
			r.add(list, object)
		}
		return err
	})
}

func (r *listReader) add(list *itemList, object metav1.Object) {
	i := strip(r.resource.kind, object)
	list.Items = append(list.Items, &i)
	list.size += objectCost
}

// check returns an error unless a list has the requested type.
func (r *listReader) check(apiVersion, kind string) error {
	version, want := r.resource.version.String(), r.resource.kind.String()+"List"
	if apiVersion != version || kind != want {
		return fmt.Errorf("the API server sent a %s of %s instead of a %s of %s", kind, apiVersion, want, version)
	}
	return nil
}

// readType checks the type of the list.
func (r *listReader) readType(s *stream, length uint64) error {
	b, err := s.take(length)
	if err != nil {
		return err
	}
	var got runtime.TypeMeta
	if err := got.Unmarshal(b); err != nil {
		return err
	}
	return r.check(got.APIVersion, got.Kind)
}

// readRaw reads the list itself: field 1 is about it, and each field 2 an object.
func (r *listReader) readRaw(s *stream, length uint64, list *itemList) error {
	end, read := s.taken+length, r.resource.newReader()
	for s.taken < end {
		number, length, err := s.field()
		if err != nil {
			return unexpected(err)
		}
		b, err := s.take(length)
		if err != nil {
			return err
		}
		switch number {
		case 1:
			err = list.ListMeta.Unmarshal(b)
		case 2:
			var object metav1.Object
			if object, err = read(b); err == nil {
				r.add(list, object)
			}
		}
		if err == nil && list.size+s.taken > s.most {
			err = r.tooLarge()
		}
		if err != nil {
			return err
		}
	}
	if s.taken != end {
		return fmt.Errorf("a list of %d bytes has a field beyond its end", length)
	}
	return nil
}

// stream reads a protobuf message that is not all there yet. All fields of the messages that make a list have a length.
type stream struct {
	in    *bufio.Reader
	taken uint64 // bytes
	most  uint64 // that may be taken
}

// ReadByte implements io.ByteReader.
func (s *stream) ReadByte() (byte, error) {
	b, err := s.in.ReadByte()
	if err == nil {
		s.taken++
	}
	return b, err
}

// field reads what precedes the content of a field. At the end of the stream it returns io.EOF.
func (s *stream) field() (number, length uint64, err error) {
	tag, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, err
	}
	const hasLength = 2
	if tag&7 != hasLength {
		return 0, 0, fmt.Errorf("protobuf field %d has wire type %d instead of %d", tag>>3, tag&7, hasLength)
	}
	length, err = binary.ReadUvarint(s)
	return tag >> 3, length, unexpected(err)
}

// take reads the next n bytes. They are valid until the stream is read again.
func (s *stream) take(n uint64) ([]byte, error) {
	if n > maxEvent || s.taken+n > s.most { // neither overflows
		return nil, fmt.Errorf("a protobuf field has %d bytes, after %d others: an object has %d at most, and a list %d", n, s.taken, maxEvent, s.most)
	}
	s.taken += n
	if n <= listBuffer {
		b, err := s.in.Peek(int(n))
		_, _ = s.in.Discard(len(b))
		return b, unexpected(err)
	}
	b, err := io.ReadAll(io.LimitReader(s.in, int64(n)))
	if err == nil && uint64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// unexpected returns the error for an end of the stream within an item.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
