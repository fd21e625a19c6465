// Package fields changes single values in larger ones by reflection, so that a test covers new fields as well.
package fields

import (
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// Changes returns each possible change of a single value in what original returns, which is a pointer, with the place of the change. A
// change gets an original of its own. A type without a rule here fails the test.
func Changes[P any](t testing.TB, original func() P) iter.Seq2[string, P] {
	t.Helper()
	return func(yield func(string, P) bool) {
		for n := 0; ; n++ {
			changed, at, path := original(), 0, ""
			visit(t, reflect.ValueOf(changed).Elem(), "", func(where string, change func()) {
				if at == n {
					path = where
					change()
				}
				at++
			})
			if n == at || !yield(path, changed) {
				return
			}
		}
	}
}

// visit calls f for each possible change of v and of everything in it, with the place it is made.
func visit(t testing.TB, v reflect.Value, path string, f func(path string, change func())) {
	set := func(what string, x any) {
		f(path+what, func() { v.Set(reflect.ValueOf(x)) })
	}
	switch x := v.Interface().(type) {
	case netip.Addr:
		if !x.IsValid() {
			set("", netip.MustParseAddr("10.0.0.1"))
			return
		}
		set("", x.Next())
		set(" (none)", netip.Addr{})
		set(" (mapped)", netip.MustParseAddr("::ffff:10.0.0.1"))
		set(" (zone)", netip.MustParseAddr("fe80::1%eth0"))
		return
	case netip.AddrPort:
		set(" (address)", netip.AddrPortFrom(x.Addr().Next(), x.Port()))
		set(" (port)", netip.AddrPortFrom(x.Addr(), x.Port()+1))
		if x.Port() != 0 {
			set(" (no port)", netip.AddrPortFrom(x.Addr(), 0))
		}
		return
	case netip.Prefix:
		set(" (address)", netip.PrefixFrom(x.Addr().Next(), x.Bits()))
		set(" (length)", netip.PrefixFrom(x.Addr(), x.Bits()+1))
		set(" (none)", netip.Prefix{})
		return
	case time.Time:
		set("", x.Add(time.Nanosecond))
		set(" (none)", time.Time{})
		return
	case time.Duration:
		set("", x+time.Second)
		if x != 0 {
			set(" (none)", time.Duration(0))
		}
		return
	}
	if _, ok := v.Interface().(interface{ Split() (string, []string) }); ok { // a packed text, in which no other text is valid
		if !v.IsZero() {
			f(path+" (none)", func() { v.SetZero() })
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for field, value := range v.Fields() {
			visit(t, value, path+"."+field.Name, f)
		}
	case reflect.Pointer:
		if v.IsNil() {
			f(path+" (set)", func() { v.Set(reflect.New(v.Type().Elem())) })
			return
		}
		visit(t, v.Elem(), path, f)
		f(path+" (unset)", func() { v.SetZero() })
	case reflect.Slice:
		for i := range v.Len() {
			visit(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
		if v.Len() == 0 {
			return
		}
		f(path+" (one less)", func() { v.SetLen(v.Len() - 1) })
		f(path+" (one more)", func() { v.Set(reflect.Append(v, v.Index(v.Len()-1))) })
		if v.Len() > 1 {
			f(path+" (order)", func() { reflect.Swapper(v.Interface())(0, 1) })
		}
	case reflect.String:
		f(path, func() { v.SetString(v.String() + "x") })
	case reflect.Bool:
		f(path, func() { v.SetBool(!v.Bool()) })
	case reflect.Int, reflect.Int64:
		f(path, func() { v.SetInt(v.Int() + 1) })
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		f(path, func() { v.SetUint(v.Uint() + 1) })
		if v.Uint() != 0 {
			f(path+" (zero)", func() { v.SetUint(0) })
		}
		f(path+" (large)", func() { v.SetUint(200) })
	default:
		t.Fatalf("package fields needs a rule for %v", v.Type())
	}
}
