package configfile_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
)

// TestReference compares the tables of docs/config-reference.md, and docs/config.schema.json, with the types of
// v1alpha2 and their comments. With -update it writes both.
func TestReference(t *testing.T) {
	r := &reference{types: sources(t, "../../config", "../../config/v1alpha2"), base: marshal(t, config.Default())}
	const page, schema = "../../docs/config-reference.md", "../../docs/config.schema.json"
	had, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, page, r.fill(t, string(had)))
	text, err := json.MarshalIndent(r.schema(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, schema, string(text)+"\n")
}

func compare(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(want)) {
		t.Errorf("%s does not fit the types: run go test ./internal/configfile -run TestReference -update", file)
	}
}

// reference knows the types of the configuration, their comments and the defaults.
type reference struct {
	types typeComments
	base  string // the YAML of all defaults
}

// typeComments has the comments of fields and the values of constants, by the name of their type.
type typeComments struct {
	fields    map[string]map[string]string
	constants map[string][]string
}

func sources(t *testing.T, dirs ...string) typeComments {
	t.Helper()
	c := typeComments{fields: map[string]map[string]string{}, constants: map[string][]string{}}
	for _, dir := range dirs {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, c.add)
		}
	}
	return c
}

func (c *typeComments) add(n ast.Node) bool {
	spec, isValue := n.(*ast.ValueSpec)
	if isValue && len(spec.Values) == 1 {
		typ, isNamed := spec.Type.(*ast.Ident)
		value, isLiteral := spec.Values[0].(*ast.BasicLit)
		if isNamed && isLiteral && value.Kind == token.STRING {
			text, _ := strconv.Unquote(value.Value) // the parser has accepted it
			c.constants[typ.Name] = append(c.constants[typ.Name], text)
		}
		return true
	}
	typ, ok := n.(*ast.TypeSpec)
	if !ok {
		return true
	}
	if s, ok := typ.Type.(*ast.StructType); ok {
		comments := map[string]string{}
		for _, f := range s.Fields.List {
			for _, name := range f.Names {
				comments[name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
		// config.Config and the sections of a file have types of the same name. The types of a file are read last.
		c.fields[typ.Name.Name] = comments
	}
	return true
}

// docsLink finds the pages that comments name, with a heading.
var docsLink = regexp.MustCompile(`docs/((?:adr/)?([a-z0-9-]+\.md)(?:#[a-z-]+)?)`)

// row returns the line of a field in the table of its section.
func (r *reference) row(t *testing.T, path string, f reflect.StructField, owner reflect.Type) string {
	t.Helper()
	name := path[strings.LastIndex(path, ".")+1:]
	meaning := r.types.fields[owner.Name()][f.Name]
	if meaning == "" {
		t.Errorf("field %s.%s has no comment, which explains %s in docs/config-reference.md", owner.Name(), f.Name, path)
	}
	meaning = docsLink.ReplaceAllString(strings.TrimSuffix(meaning, "."), "[$2]($1)")
	def := defaultText(t, at(t, r.base, path))
	if def != "" {
		def = "`" + def + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", name, typeText(f.Type), def, meaning, r.when(t, path, f.Type))
}

// when tells when a change of a field takes effect, by changing it.
func (r *reference) when(t *testing.T, path string, typ reflect.Type) string {
	t.Helper()
	c, _ := load(t, file(t, v1alpha2.APIVersion, map[string]any{path: sample(t, path, typ, at(t, r.base, path))}))
	switch live, _, none := config.Diff(config.Default(), c); {
	case len(live) > 0:
		return "live"
	case len(none) > 0:
		return "none"
	}
	return "restart"
}

const tableHead = "| Field | Type | Default | Meaning | Change |\n|---|---|---|---|---|\n"

// fill returns the page with new tables. A heading such as "## `linux.conntrack`" names the section of a table.
func (r *reference) fill(t *testing.T, page string) string {
	t.Helper()
	tables := map[string]string{}
	walk(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "", func(path string, f reflect.StructField, owner reflect.Type) {
		section := path[:max(strings.LastIndex(path, "."), 0)]
		tables[section] = cmp.Or(tables[section], tableHead) + r.row(t, path, f, owner)
	})
	var out strings.Builder
	section := ""
	lines := slices.Collect(strings.Lines(page))
	for i := 0; i < len(lines); i++ {
		if heading, ok := strings.CutPrefix(lines[i], "## "); ok {
			section = ""
			if strings.HasPrefix(heading, "`") {
				section = strings.Trim(heading, "`\n")
			}
		}
		if !strings.HasPrefix(tableHead, lines[i]) {
			out.WriteString(lines[i])
			continue
		}
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|") {
			i++
		}
		out.WriteString(tables[section])
		delete(tables, section)
	}
	for section := range tables {
		t.Errorf("docs/config-reference.md has no table below the heading ## `%s`", section)
	}
	return out.String()
}

// schema returns the JSON schema of a file.
func (r *reference) schema(t *testing.T) map[string]any {
	t.Helper()
	root := map[string]any{
		"$schema": "http://json-schema.org/draft-07/schema#", "title": v1alpha2.Kind + " of " + v1alpha2.APIVersion,
		"type": "object", "required": []string{"apiVersion", "kind"}, "additionalProperties": false,
		"properties": map[string]any{
			"apiVersion": map[string]any{"const": v1alpha2.APIVersion}, "kind": map[string]any{"const": v1alpha2.Kind},
		},
	}
	walk(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "", func(path string, f reflect.StructField, owner reflect.Type) {
		section := root["properties"].(map[string]any)
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			if section[name] == nil {
				section[name] = map[string]any{
					"type": []string{"object", "null"}, "additionalProperties": false, "properties": map[string]any{},
				}
			}
			section = section[name].(map[string]any)["properties"].(map[string]any)
		}
		s := schemaOf(f.Type)
		s["type"] = []any{s["type"], "null"}
		s["description"] = r.types.fields[owner.Name()][f.Name]
		if def := at(t, r.base, path); def != nil {
			s["default"] = def
		}
		if values := r.types.constants[f.Type.Name()]; len(values) > 0 {
			s["enum"] = append([]any{"", nil}, anys(values)...)
		}
		section[names[len(names)-1]] = s
	})
	return root
}

func anys(values []string) []any {
	var list []any
	for _, v := range values {
		list = append(list, v)
	}
	return list
}

func schemaOf(t reflect.Type) map[string]any {
	if t.PkgPath() != "" && t.Kind() != reflect.String { // these are written as text
		if t.Kind() == reflect.Struct && t.Name() == reflect.TypeFor[v1alpha2.VModule]().Name() {
			return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{
				"filePattern": map[string]any{"type": "string"}, "verbosity": map[string]any{"type": "integer"},
			}}
		}
		if t.Name() == "Quantity" {
			return map[string]any{"type": "string", "pattern": `^[0-9]+([EPTGMk]i?|m)?$`}
		}
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float32:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	}
	return map[string]any{"type": "string"}
}

// typeText names a type for readers.
func typeText(t reflect.Type) string {
	switch t.Name() {
	case "Addr":
		return "IP"
	case "AddrPort":
		return "IP:port"
	case "Prefix":
		return "CIDR"
	case "Duration", "Quantity":
		return strings.ToLower(t.Name())
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int32, reflect.Int64:
		return "integer"
	case reflect.Float32:
		return "number"
	case reflect.Slice:
		return "list of " + typeText(t.Elem()) + "s"
	case reflect.Map:
		return "map of " + typeText(t.Elem()) + "s"
	case reflect.Struct:
		return "object"
	}
	return "string"
}

// defaultText returns a default as the tables have it: nothing for an empty value.
func defaultText(t *testing.T, def any) string {
	t.Helper()
	if v := reflect.ValueOf(def); !v.IsValid() || (v.Kind() == reflect.Slice || v.Kind() == reflect.String) && v.Len() == 0 {
		return ""
	}
	if s, ok := def.(string); ok {
		return s
	}
	text, err := json.Marshal(def)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSchemaKnowsTheFields: the schema has all defaults, and no section takes an unknown field.
func TestSchemaKnowsTheFields(t *testing.T) {
	text, err := os.ReadFile("../../docs/config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var check func(path string, schema map[string]any, value any)
	check = func(path string, schema map[string]any, value any) {
		properties, _ := schema["properties"].(map[string]any)
		section, isSection := value.(map[string]any)
		if !isSection || properties == nil {
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("%s takes unknown fields", path)
		}
		for name, v := range section {
			field, ok := properties[name].(map[string]any)
			if !ok {
				t.Errorf("the schema does not have %s.%s", path, name)
				continue
			}
			check(path+"."+name, field, v)
		}
	}
	check("", schema, yamlValue(t, marshal(t, config.Default())))
}
