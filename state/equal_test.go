package state_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// Every field of a record takes part in Equal: kpng's hashes left fields out, and changes to these were lost. Fields are found by
// reflection. So a new field is either covered or fails the test, because it has no rule.

func TestServiceEqualSeesEveryField(t *testing.T) {
	testEqual(t, (*state.Service).Equal)
}

func TestNamesEqualSeesEveryField(t *testing.T) {
	testEqual(t, (*state.Names).Equal)
}

func TestNodeEqualSeesEveryField(t *testing.T) {
	testEqual(t, (*state.Node).Equal)
}

// testEqual changes one value after the other in a filled T and expects that equal sees it.
func testEqual[T any](t *testing.T, equal func(a, b *T) bool) {
	seed := 0
	filled := func() *T {
		seed = 0
		v := new(T)
		fill(t, reflect.ValueOf(v).Elem(), &seed)
		return v
	}
	if !equal(filled(), filled()) {
		t.Fatal("two equal values are not Equal")
	}
	// Each round visits all values of a copy in the same order, and changes the nth.
	for n := 0; ; n++ {
		changed, at := filled(), 0
		var path string
		visit(t, reflect.ValueOf(changed).Elem(), "", func(where string, change func()) {
			if at == n {
				path = where
				change()
			}
			at++
		})
		if n == at {
			t.Logf("%d changes seen", n)
			return
		}
		if original := filled(); equal(original, changed) || equal(changed, original) {
			t.Errorf("Equal does not see a change of %s", path)
		}
	}
}

// fill gives v and everything in it a value other than zero, different each time. Slices get two items.
func fill(t *testing.T, v reflect.Value, seed *int) {
	*seed++
	n := *seed
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(addr(n)))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(addr(n), uint16(n))))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.PrefixFrom(addr(n), 24)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(t, field, seed)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), seed)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), seed)
		fill(t, v.Index(1), seed)
	case reflect.String:
		v.SetString(fmt.Sprint("s", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n%255 + 1))
	default:
		t.Fatalf("%v needs a rule in fill", v.Type())
	}
}

// visit calls f for each possible change of v and of everything in it, with the place it is made.
func visit(t *testing.T, v reflect.Value, path string, f func(path string, change func())) {
	switch x := v.Interface().(type) {
	case netip.Addr:
		f(path, func() { v.Set(reflect.ValueOf(x.Next())) })
		return
	case netip.AddrPort:
		f(path+" (address)", func() { v.Set(reflect.ValueOf(netip.AddrPortFrom(x.Addr().Next(), x.Port()))) })
		f(path+" (port)", func() { v.Set(reflect.ValueOf(netip.AddrPortFrom(x.Addr(), x.Port()+1))) })
		return
	case netip.Prefix:
		f(path+" (address)", func() { v.Set(reflect.ValueOf(netip.PrefixFrom(x.Addr().Next(), x.Bits()))) })
		f(path+" (length)", func() { v.Set(reflect.ValueOf(netip.PrefixFrom(x.Addr(), x.Bits()+1))) })
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for field, value := range v.Fields() {
			visit(t, value, path+"."+field.Name, f)
		}
	case reflect.Pointer:
		visit(t, v.Elem(), path, f)
		f(path+" (unset)", func() { v.SetZero() })
	case reflect.Slice:
		for i := range v.Len() {
			visit(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
		f(path+" (one less)", func() { v.SetLen(v.Len() - 1) })
		f(path+" (one more)", func() { v.Set(reflect.Append(v, v.Index(v.Len()-1))) })
		f(path+" (order)", func() { reflect.Swapper(v.Interface())(0, 1) })
	case reflect.String:
		f(path, func() { v.SetString(v.String() + "x") })
	case reflect.Bool:
		f(path, func() { v.SetBool(!v.Bool()) })
	case reflect.Int, reflect.Int64:
		f(path, func() { v.SetInt(v.Int() + 1) })
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		f(path, func() { v.SetUint(v.Uint() ^ 1) })
	default:
		t.Fatalf("%v needs a rule in visit", v.Type())
	}
}

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// Empty and nil slices are the same, wherever they are.
func TestEqualTakesEmptyForNil(t *testing.T) {
	port := func(endpoints []state.Endpoint, frontends []state.Frontend) state.Port {
		to := state.Traffic{Inside: state.Route{Endpoints: endpoints}, Outside: state.Route{Endpoints: endpoints}}
		return state.Port{Frontends: frontends, Internal: to, External: to, Lingering: endpoints}
	}
	frontend := func(sources []netip.Prefix) []state.Frontend { return []state.Frontend{{Sources: sources}} }
	for _, c := range []struct {
		name string
		a, b state.Service
	}{
		{"ports", state.Service{}, state.Service{Ports: []state.Port{}}},
		{"endpoints and frontends", state.Service{Ports: []state.Port{port(nil, nil)}},
			state.Service{Ports: []state.Port{port([]state.Endpoint{}, []state.Frontend{})}}},
		{"sources", state.Service{Ports: []state.Port{port(nil, frontend(nil))}},
			state.Service{Ports: []state.Port{port(nil, frontend([]netip.Prefix{}))}}},
	} {
		if !c.a.Equal(&c.b) || !c.b.Equal(&c.a) {
			t.Errorf("%s: empty and nil are not Equal", c.name)
		}
	}
	a := state.Node{}
	b := state.Node{Addresses: []netip.Addr{}, PodCIDRs: []netip.Prefix{}, ServiceCIDRs: []netip.Prefix{}}
	if !a.Equal(&b) || !b.Equal(&a) {
		t.Error("node: empty and nil are not Equal")
	}
}

// TestEqualSeesWeightsOfSharedRoutes: routes that share the memory of their endpoints may still differ.
func TestEqualSeesWeightsOfSharedRoutes(t *testing.T) {
	shared := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}}}
	refusing, dropping := shared, shared
	refusing.Refused, dropping.Verdict = 1, state.Drop
	for _, other := range []state.Route{refusing, dropping} {
		if shared.Equal(&other) || other.Equal(&shared) {
			t.Errorf("%+v and %+v are Equal", shared, other)
		}
	}
	if same := shared; !shared.Equal(&same) {
		t.Error("a route does not equal itself")
	}
}
