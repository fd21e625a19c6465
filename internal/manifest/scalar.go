package manifest

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// scalar reads n into v, which is a string, a boolean or a number.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s, ok := stringOf(n); ok {
			v.SetString(s)
		} else if n.Kind == yaml.ScalarNode {
			d.fail(n, "must be a string, got %s: put it in quotes", describe(n))
		} else {
			d.fail(n, "must be a string, got %s", describe(n))
		}
	case reflect.Bool:
		if b, ok := boolOf(n); ok {
			v.SetBool(b)
		} else {
			d.fail(n, "must be true or false, got %s", describe(n))
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if i, ok := intOf(n); ok && !v.OverflowInt(i) {
			v.SetInt(i)
		} else {
			d.fail(n, "must be %s, got %s", d.wantedNumber(), describe(n))
		}
	default:
		d.unmarshal(n, v)
	}
}

// portFields are the fields of the API that hold a port number.
var portFields = map[string]bool{
	"port": true, "nodePort": true, "healthCheckNodePort": true, "containerPort": true, "hostPort": true,
}

// wantedNumber describes the number that the current field accepts.
func (d *decoder) wantedNumber() string {
	if len(d.path) > 0 && portFields[d.path[len(d.path)-1].name] {
		return "a number from 1 to 65535"
	}
	return "a whole number"
}

// stringOf returns the string that n is. A plain word that YAML 1.1, and with it kubectl, reads as a boolean is none.
func stringOf(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && n.Tag != "!!timestamp" {
		return "", false
	}
	if _, isBool := boolOf(n); isBool {
		return "", false
	}
	return n.Value, true
}

// boolOf returns the boolean that n is, by the rules of YAML 1.1.
func boolOf(n *yaml.Node) (value, ok bool) {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle | yaml.TaggedStyle
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" && n.Style&quoted != 0 {
		return false, false
	}
	switch n.Value {
	case "true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

// intOf returns the whole number that n is, in any notation of YAML, also 8.0e1.
func intOf(n *yaml.Node) (int64, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" {
		return 0, false
	}
	if !strings.HasPrefix(n.Value, "0") {
		if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			return i, true
		}
	}
	var i int64
	if n.Tag == "!!int" {
		return i, n.Decode(&i) == nil
	}
	var f float64
	if n.Decode(&f) != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// unmarshal reads n into v through JSON, for types that read their own.
func (d *decoder) unmarshal(n *yaml.Node, v reflect.Value) {
	before := d.faults
	plain := d.plain(n)
	if d.faults > before {
		return
	}
	text, err := json.Marshal(plain)
	if err == nil {
		err = json.Unmarshal(text, v.Addr().Interface())
	}
	switch {
	case err == nil:
	case v.Type() == reflect.TypeFor[intstr.IntOrString]():
		d.fail(n, "must be a number or a string, got %s", describe(n))
	default:
		d.fail(n, "must be a valid %s, got %s (%w)", v.Type().Name(), describe(n), err)
	}
}

// plain returns n as the values that package json marshals.
func (d *decoder) plain(n *yaml.Node) any {
	if n.Kind == yaml.AliasNode {
		var value any
		d.follow(n, func(target *yaml.Node) { value = d.plain(target) })
		return value
	}
	if !d.spend(n) {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		values := make(map[string]any, len(n.Content)/2)
		d.mapping(n, segField, func(name string, _, value *yaml.Node) { values[name] = d.plain(value) })
		return values
	case yaml.SequenceNode:
		values := make([]any, len(n.Content))
		for i, item := range n.Content {
			d.within(segment{index: i, kind: segIndex}, func() { values[i] = d.plain(item) })
		}
		return values
	}
	if s, ok := stringOf(n); ok {
		return s
	}
	if b, ok := boolOf(n); ok {
		return b
	}
	if i, ok := intOf(n); ok {
		return i
	}
	var value any
	if err := n.Decode(&value); err != nil {
		d.fail(n, "cannot be read: %w", err)
	}
	return value
}

// describe describes what n is, for an error: its text, or its shape.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "the alias *" + shorten(n.Value, 60)
	}
	if n.Tag == "!!null" {
		return "null"
	}
	text := shorten(n.Value, 60)
	if _, isBool := boolOf(n); isBool {
		return "the boolean " + text
	}
	if n.Tag == "!!int" || n.Tag == "!!float" {
		return "the number " + text
	}
	return strconv.Quote(text)
}
