package configfile_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
)

// TestReferenceIsComplete compares docs/config-reference.md with the types. Every field has a row in the table of its
// section, with its default and the time at which a change takes effect. There are no other rows.
func TestReferenceIsComplete(t *testing.T) {
	rows := referenceRows(t)
	base := marshal(t, config.Default())
	fields(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "", func(path string, typ reflect.Type) {
		row, ok := rows[path]
		if !ok {
			t.Errorf("docs/config-reference.md does not have %s", path)
			return
		}
		delete(rows, path)
		def := at(t, base, path)
		c, _ := load(t, file(t, v1alpha2.APIVersion, map[string]any{path: sample(t, path, typ, def)}))
		when := "restart"
		switch live, _, none := config.Diff(config.Default(), c); {
		case len(live) > 0:
			when = "live"
		case len(none) > 0:
			when = "none"
		}
		if want := reference(t, def); row.def != want || row.when != when || row.meaning == "" || row.typ == "" {
			t.Errorf("docs/config-reference.md says of %s %+v; its default is %s, a change takes effect: %s", path, row, want, when)
		}
	})
	for path := range rows {
		t.Errorf("docs/config-reference.md has %s, which does not exist", path)
	}
}

type row struct{ typ, def, meaning, when string }

// referenceRows returns the rows of the tables that have a column for changes, by the paths of their fields.
func referenceRows(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile("../../docs/config-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]row{}
	section := ""
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = ""
			if strings.HasPrefix(heading, "`") {
				section = strings.Trim(heading, "`\n") + "."
			}
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		rows[section+cells[1]] = row{typ: cells[2], def: cells[3], meaning: cells[4], when: cells[5]}
	}
	return rows
}

// reference returns a default in the reference's style: nothing for an empty value.
func reference(t *testing.T, def any) string {
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
