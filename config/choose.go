package config

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Choose decides which configuration to use after a file has been read, by ConfigHardFail. Running is the configuration
// in use, nil at the start. Loaded and err are the results of reading.
//
// Without err, Choose returns loaded. With err, ConfigHardFail of running decides. At the start, ConfigHardFail of
// loaded decides, which is known even if other fields of the file are broken. If it is true, Choose returns err, and
// the process should end. If it is false, the caller warns of err and uses the configuration that Choose returns. At
// the start that is loaded, with defaults in place of broken fields; later it is running, unchanged.
//
// If the file cannot be read, or is invalid even with defaults, loaded is nil and the start fails.
func Choose(running, loaded *Config, err error) (*Config, error) {
	switch {
	case err == nil:
		return loaded, nil
	case running == nil && (loaded == nil || loaded.ConfigHardFail), running != nil && running.ConfigHardFail:
		return nil, err
	case running == nil:
		return loaded, nil
	}
	return running, nil
}

// ResetInvalid gives the fields at fault the values that they have in other. Faults of paths that c does not have are left alone.
func (c *Config) ResetInvalid(faults []*FieldError, other *Config) {
	for _, f := range faults {
		reset(reflect.ValueOf(c).Elem(), reflect.ValueOf(other).Elem(), f.Path)
	}
}

// Revert gives the fields at the paths, as [Diff] names them, the values that they have in other.
func (c *Config) Revert(paths []string, other *Config) {
	for _, path := range paths {
		reset(reflect.ValueOf(c).Elem(), reflect.ValueOf(other).Elem(), path)
	}
}

func reset(v, other reflect.Value, path string) {
	for name := range strings.SplitSeq(path, ".") {
		name, _, indexed := strings.Cut(name, "[") // a list is reset as a whole
		v, other = member(v, name), member(other, name)
		if !v.IsValid() {
			return
		}
		if indexed {
			break
		}
	}
	v.Set(other)
}

// Text returns the value of the field at path, as [Diff] names it, in JSON; "" if there is no such field.
func (c *Config) Text(path string) string {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v = member(v, name); !v.IsValid() {
			return ""
		}
	}
	value := v.Interface()
	if ports, ok := value.(NodePortAddresses); ok {
		value = ports.Strings()
	}
	if v.Kind() == reflect.Slice && v.IsNil() {
		return "[]"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return string(text)
}

// member returns the field of struct v with the name of a path, ignoring case.
func member(v reflect.Value, name string) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) })
}

// leaves calls visit for each field of struct v that is not a struct of fields itself.
func leaves(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	for f, fv := range v.Fields() {
		at := JoinPath(path, f.Name)
		if isSection(f.Type) {
			leaves(fv, at, visit)
		} else {
			visit(at, fv)
		}
	}
}

// isSection reports whether t is a section of the configuration, and not a value such as netip.AddrPort or a duration.
func isSection(t reflect.Type) bool {
	_, isText := t.MethodByName("MarshalText")
	return t.Kind() == reflect.Struct && !isText && t != reflect.TypeFor[NodePortAddresses]()
}
