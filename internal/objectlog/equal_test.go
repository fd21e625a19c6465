package objectlog

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// samples makes one new object of each kind with all fields set.
func samples() []model.Object {
	addrs := func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	}
	prefixes := func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }
	return []model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "a"}, Created: at, ProxyName: "p", HasProxyName: true, Type: model.TypeNodePort,
			Headless: true, ClusterIPs: addrs(), ExternalIPs: addrs(), LoadBalancerIPs: addrs(), SourceRanges: prefixes(),
			Ports:         []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080}},
			InternalLocal: true, ExternalLocal: true, Affinity: time.Hour, HealthCheckNodePort: 30081, ExternalName: "www.example.com",
		},
		&model.EndpointSlice{
			Namespace: "ns", Name: "a-1", Service: "a", ProxyName: "p", HasProxyName: true, Headless: true, Family: state.IPv4,
			Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{
				Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true, Terminating: true, NodeName: "n1",
				ZoneHints: []string{"west"}, NodeHints: []string{"n1"},
			}},
			Hostnames: []string{"a-0"}, TriggerTime: at,
		},
		&model.Node{Name: "n1", Zone: "west", Addresses: addrs(), Internal: 1, PodCIDRs: prefixes()},
		&model.Namespace{Name: "ns", ProxyDisabled: true},
		&model.ServiceCIDR{Name: "c", CIDRs: prefixes()},
	}
}

// TestEveryFieldCounts changes each field of each kind of object and wants the object to be another one.
func TestEveryFieldCounts(t *testing.T) {
	for i, sample := range samples() {
		if !equal(sample, samples()[i]) {
			t.Errorf("%s does not equal itself", sample.Ref())
		}
		for n := 0; ; n++ {
			changed := samples()[i]
			left := n
			path := change(reflect.ValueOf(changed).Elem(), &left, reflect.TypeOf(changed).Elem().Name())
			if path == "" {
				if n < 2 {
					t.Errorf("only %d fields found in %s", n, sample.Ref())
				}
				break
			}
			if equal(sample, changed) || equal(changed, sample) {
				t.Errorf("a change of %s makes no difference", path)
			}
		}
		for j, other := range samples() {
			if i != j && equal(sample, other) {
				t.Errorf("%s equals %s", sample.Ref(), other.Ref())
			}
		}
		if equal(sample, nil) || equal(nil, sample) {
			t.Errorf("%s equals nothing", sample.Ref())
		}
	}
}

// change changes the field numbered n, counting leaves and the lengths of lists, and reports which one that was.
func change(v reflect.Value, n *int, path string) string {
	leaf := func(change func()) string {
		if *n--; *n >= 0 {
			return ""
		}
		change()
		return path
	}
	switch value := v.Interface().(type) {
	case netip.Addr:
		return leaf(func() { v.Set(reflect.ValueOf(value.Next())) })
	case netip.Prefix:
		return leaf(func() { v.Set(reflect.ValueOf(netip.PrefixFrom(value.Addr(), value.Bits()+1))) })
	case time.Time:
		return leaf(func() { v.Set(reflect.ValueOf(value.Add(1))) })
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if p := change(v.Field(i), n, path+"."+v.Type().Field(i).Name); p != "" {
				return p
			}
		}
		return ""
	case reflect.Slice:
		for i := range v.Len() {
			if p := change(v.Index(i), n, path+"[]"); p != "" {
				return p
			}
		}
		path += "[len]"
		return leaf(func() { v.Set(v.Slice(0, v.Len()-1)) })
	case reflect.Bool:
		return leaf(func() { v.SetBool(!v.Bool()) })
	case reflect.String:
		return leaf(func() { v.SetString(v.String() + "x") })
	case reflect.Uint8, reflect.Uint16:
		return leaf(func() { v.SetUint(v.Uint() + 1) })
	case reflect.Int, reflect.Int64:
		return leaf(func() { v.SetInt(v.Int() + 1) })
	}
	panic("a field of kind " + v.Kind().String() + " at " + path)
}

// TestInsignificantDifferences has objects that are written in different ways and are the same.
func TestInsignificantDifferences(t *testing.T) {
	a := &model.EndpointSlice{Namespace: "ns", Name: "a-1", TriggerTime: at}
	b := &model.EndpointSlice{
		Namespace: "ns", Name: "a-1", TriggerTime: at.In(time.FixedZone("", 3600)),
		Ports: []model.EndpointPort{}, Endpoints: []model.Endpoint{},
	}
	if !equal(a, b) {
		t.Error("an empty list or another time zone counts")
	}
}
