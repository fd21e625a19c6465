package manifest

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// typeInfo has the facts about a Go type that the walk needs.
type typeInfo struct {
	// unmarshals is set if the type reads its own JSON, as IntOrString, Quantity and Time do.
	unmarshals bool
	// textual is set if the type reads its own text, as netip.Addr does.
	textual bool
	// fields maps the JSON names of a struct's fields, including the fields of inlined structs, to their indexes.
	fields map[string][]int
	// names are the keys of fields, sorted.
	names []string
}

var typeInfos sync.Map // of reflect.Type to *typeInfo

func infoOf(t reflect.Type) *typeInfo {
	if info, ok := typeInfos.Load(t); ok {
		return info.(*typeInfo)
	}
	info := &typeInfo{unmarshals: reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())}
	info.textual = !info.unmarshals && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	if t.Kind() == reflect.Struct && !info.unmarshals && !info.textual {
		info.fields = map[string][]int{}
		addFields(info.fields, t, nil)
		for name := range info.fields {
			info.names = append(info.names, name)
		}
		slices.Sort(info.names)
	}
	stored, _ := typeInfos.LoadOrStore(t, info)
	return stored.(*typeInfo)
}

// addFields adds the fields of t, which lies at index within the outermost struct. API types inline structs, not pointers.
func addFields(fields map[string][]int, t reflect.Type, index []int) {
	for f := range t.Fields() {
		at := append(slices.Clone(index), f.Index...)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			addFields(fields, f.Type, at)
		case f.IsExported() && name != "" && name != "-":
			fields[name] = at
		}
	}
}
