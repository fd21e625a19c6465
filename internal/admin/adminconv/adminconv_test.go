package adminconv_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/adminconv"
	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
)

// full sets every field of a value to something that is not zero, each to another one.
func full[T any](t *testing.T) *T {
	t.Helper()
	n := 0
	v := new(T)
	fill(t, reflect.ValueOf(v).Elem(), &n)
	return v
}

func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(*n)})
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(addr))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(addr, uint16(*n))))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.PrefixFrom(addr, 32)))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 1).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rune('a' + *n)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[brain.Reason]int{brain.NotReady: *n, brain.OtherNode: 1}))
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(t, f, n)
		}
	default:
		t.Fatalf("a field of kind %v has no value here", v.Kind())
	}
}

// wired sends a message to itself.
func wired[M proto.Message](t *testing.T, m, to M) M {
	t.Helper()
	data, err := proto.Marshal(m)
	if err == nil {
		err = proto.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func same[T any](t *testing.T, want, got *T, err error) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); diff != "" || err != nil {
		t.Errorf("%T changes on its way (-want +got): %v\n%s", want, err, diff)
	}
}

// TestNothingIsLost: every field of each row, and of the status, comes out as it went in.
func TestNothingIsLost(t *testing.T) {
	row := func(m *adminv1.Row) *adminv1.Row { return wired(t, m, &adminv1.Row{}) }
	service, endpoint, node, status := full[view.Service](t), full[view.Endpoint](t), full[view.Node](t), full[view.Status](t)
	s, err := adminconv.ToService(row(adminconv.FromService(service)).GetService())
	same(t, service, s, err)
	e, err := adminconv.ToEndpoint(row(adminconv.FromEndpoint(endpoint)).GetEndpoint())
	same(t, endpoint, e, err)
	n, err := adminconv.ToNode(row(adminconv.FromNode(node)).GetNode())
	same(t, node, n, err)
	same(t, status, adminconv.ToStatus(wired(t, adminconv.FromStatus(status), &adminv1.Status{})), nil)
	same(t, &view.Status{}, adminconv.ToStatus(adminconv.FromStatus(&view.Status{})), nil)
	traffic := full[view.Traffic](t)
	same(t, traffic, adminconv.ToTraffic(wired(t, adminconv.FromTraffic(traffic), &adminv1.TrafficResponse{})), nil)
	same(t, &view.Traffic{}, adminconv.ToTraffic(adminconv.FromTraffic(&view.Traffic{})), nil)
	empty, err := adminconv.ToService(adminconv.FromService(&view.Service{}).GetService())
	same(t, &view.Service{}, empty, err)
}

// TestBrokenRows: what is no address is an error that names the object and the field.
func TestBrokenRows(t *testing.T) {
	if _, err := adminconv.ToService(&adminv1.Service{Namespace: "a", Name: "b", ClusterIps: []string{"x"}}); err == nil {
		t.Error("a cluster IP x is accepted")
	}
	if _, err := adminconv.ToEndpoint(&adminv1.Endpoint{Address: "10.0.0.1"}); err == nil {
		t.Error("an endpoint without a port is accepted")
	}
	if _, err := adminconv.ToNode(&adminv1.Node{PodCidrs: []string{"10.0.0.1"}}); err == nil {
		t.Error("a pod CIDR without a length is accepted")
	}
}
