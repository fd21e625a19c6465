package configfile_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha1"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
)

// TestDeepCopy fills every field, also those that later versions will have, and expects an equal copy that shares no memory.
func TestDeepCopy(t *testing.T) {
	deepCopy(t, (*config.Config).DeepCopy)
	deepCopy(t, (*v1alpha1.KubeProxyConfiguration).DeepCopy)
	deepCopy(t, (*v1alpha2.KubeProxyConfiguration).DeepCopy)
	deepCopy(t, (*v1alpha2.KubeProxyInstanceConfiguration).DeepCopy)
}

func deepCopy[T any](t *testing.T, copyOf func(*T) *T) {
	t.Helper()
	in := new(T)
	fill(reflect.ValueOf(in).Elem())
	out := copyOf(in)
	if diff := cmp.Diff(in, out, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Errorf("%T: the copy is not equal (-want +got):\n%s", in, diff)
	}
	apart(t, reflect.TypeFor[T]().String(), reflect.ValueOf(in).Elem(), reflect.ValueOf(out).Elem())
	if copyOf(nil) != nil {
		t.Errorf("%T: the copy of nil is not nil", in)
	}
}

// fill gives v, and what is in it, memory that a copy could share.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for f, fv := range v.Fields() {
			if f.IsExported() {
				fill(fv)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 4))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), reflect.Zero(v.Type().Elem()))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	}
}

func apart(t *testing.T, path string, a, b reflect.Value) {
	switch a.Kind() {
	case reflect.Struct:
		for f, fv := range a.Fields() {
			if f.IsExported() {
				apart(t, path+"."+f.Name, fv, b.FieldByIndex(f.Index))
			}
		}
	case reflect.Slice, reflect.Map, reflect.Pointer:
		if a.IsNil() || a.UnsafePointer() == b.UnsafePointer() {
			t.Errorf("%s: the copy shares memory", path)
		}
	}
}
