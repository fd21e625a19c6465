package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/test/usage"
)

// TestHostileText checks the error for an invalid file, and that the rest of the file is read.
func TestHostileText(t *testing.T) {
	a, b := namespaceText("a"), namespaceText("b")
	for name, c := range map[string]struct{ input, want string }{
		"garbage in the middle": {a + "---\n\t}{ &*@\n---\n" + b, "f:1: Namespace a\nf:6: Namespace b\nerror: f:4: not valid YAML: a tab cannot indent: use spaces\n"},
		"NUL":                   {a + "---\nkind: \x00\n---\n" + b, "f:1: Namespace a\nf:6: Namespace b\nerror: f:4: not valid YAML: control characters are not allowed\n"},
		"not UTF-8":             {a + "---\nkind: \xff\n---\n" + b, "f:1: Namespace a\nf:6: Namespace b\nerror: f:4: not valid YAML: invalid leading UTF-8 octet\n"},
		"half a letter":         {a + "---\nkind: \xc3", "f:1: Namespace a\nerror: f:4: not valid YAML: incomplete UTF-8 octet sequence\n"},
		"a key twice":           {"{apiVersion: v1, kind: Namespace,\nmetadata: {name: a,\nname: b}}\n---\n" + b, "f:5: Namespace b\nerror: f:3:1: Namespace a: metadata.name: is given twice, first in line 2\n"},
		"objects in a row":      {a + b + "---\n" + a, "f:6: Namespace a\nerror: f:3: not valid YAML: did not find expected <document start>\n"},
		"text after an object":  {a + "kind: Namespace\n---\n" + b, "f:5: Namespace b\nerror: f:3: not valid YAML: did not find expected <document start>\n"},
		"CR only":               {strings.ReplaceAll(a, "\n", "\r"), "f:1: Namespace a\n"},
		"a list of nothing":     {"- - -", "error: f:1:1: is no manifest: it has a list in place of an object with apiVersion and kind\n"},
		"too deep":              {a + "---\n" + strings.Repeat("[", 20_000) + "\n---\n" + b, "f:1: Namespace a\nf:6: Namespace b\nerror: f:4: not valid YAML: exceeded max depth of 10000\n"},
		"an anchor from before": {"x: &x {y: 1}\n---\n{z: *x}\n---\n" + b, "f:5: Namespace b\nerror: f:1:1: is no manifest: it has neither apiVersion nor kind\nerror: f:3: not valid YAML: unknown anchor 'x' referenced\n"},
	} {
		if diff := cmp.Diff(c.want, report(Decode("f", []byte(c.input)))); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
	}
}

func namespaceText(name string) string {
	return "{apiVersion: v1, kind: Namespace,\n metadata: {name: " + name + "}}\n"
}

// TestHostileSize: the errors and the memory for any file are bounded.
func TestHostileSize(t *testing.T) {
	const start = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"
	nested := func(key string, depth int) string {
		return start + "  managedFields:\n  - fieldsV1: " + strings.Repeat("{b: 1, b: 1, "+key+": ", depth) + "1" + strings.Repeat("}", depth) + "\n"
	}
	long := strings.Repeat("k", 4<<20)
	var unknown strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&unknown, "x%d: 1\n", i)
	}
	for _, c := range []struct {
		name, input string
		more        bool // the faults are too many
	}{
		{"a fault in each of many levels", nested(strings.Repeat("k", 500), 500), true},
		{"a fault in each of very many levels", nested("k", 9000), true},
		{"many unknown fields", start + unknown.String(), true},
		{"many documents that are no objects", strings.Repeat("---\na: b\n", 50_000), true},
		{"many documents that are no YAML", strings.Repeat("---\n{\n", 20_000), true},
		{"many empty documents", strings.Repeat("---\n", 100_000), false},
		{"a long key", start + "? " + long + "\n: 1\n", false},
		{"a long kind", "apiVersion: v2\nkind: " + long + "List\nitems: 1\n", false},
		{"a long version", "apiVersion: v" + long + "\nkind: Service\n", false},
		{"a long name", "apiVersion: v1\nkind: Service\nmetadata: {name: " + long + "}\nx: [1]\ny: 1\n", false},
		{"a long value", start + "spec: {clusterIPs: " + long + "}\n", false},
		{"a long anchor", start + "spec: *" + long + "\n", false},
		{"a long line", long, false},
	} {
		objects, errs := Decode("f", []byte(c.input))
		before := usage.Heap()
		size, more := 0, false
		for _, err := range errs {
			size += len(err.Error())
			more = more || strings.Contains(err.Error(), "more errors")
			if e, ok := errors.AsType[*Error](err); !ok || e.Line == 0 && !more {
				t.Errorf("%s: no line in %.200s", c.name, err)
			}
		}
		if len(errs) > maxFaults+1 || size > 4*maxText*maxFaults || more != c.more {
			t.Errorf("%s: %d objects, %d faults of %d bytes; said that there are more: %v, want %v", c.name, len(objects), len(errs), size, more, c.more)
		}
		for i := range errs {
			errs[i] = nil
		}
		if held := before - usage.Heap(); held > 2<<20 {
			t.Errorf("%s: the faults of a file of %d KiB held %d KiB", c.name, len(c.input)>>10, held>>10)
		}
		runtime.KeepAlive(objects)
	}
}

// TestTooLargeFile has a file that is larger than memory. It takes no room on the disk.
func TestTooLargeFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 1<<40); err != nil {
		t.Skip("files of this size cannot be made here:", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(namespaceText("b")), 0o600); err != nil {
		t.Fatal(err)
	}
	want := file + ": cannot be read: it has more than 512 MiB: split it into several files"
	objects, errs := Load(dir)
	if len(objects) != 1 || len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("beside it are %d objects; errors %v, want %s", len(objects), errs, want)
	}
	if _, errs := Load(file); len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("alone: errors %v, want %s", errs, want)
	}
}

// checkHostile checks the properties that hold for any text. Errors name the place and are bounded, objects survive a
// round trip, and neighbouring objects are not affected.
func checkHostile(t *testing.T, data []byte, objects []Object, errs []error) {
	t.Helper()
	lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + strings.Count(string(data), "\u0085") +
		strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 1
	size := 0
	for i, err := range errs {
		size += len(err.Error())
		e, ok := err.(*Error)
		last := i == maxFaults
		if !ok || e.File != "f" || (e.Line < 1) != last || e.Line > lines || e.Err == nil || !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("an error without position, of %d lines: %v", lines, err)
		}
	}
	if len(errs) > maxFaults+1 || size > 4*maxText*(maxFaults+1) {
		t.Errorf("%d errors of %d bytes", len(errs), size)
	}
	for _, o := range objects {
		text, err := json.Marshal(o.Object)
		if err != nil {
			t.Errorf("%v cannot be written: %v", o.Object, err)
			continue
		}
		again, errs := Decode("f", text)
		if len(again) != 1 || len(errs) > 0 {
			t.Errorf("%s\nis not read again: %v", text, errs)
			continue
		}
		if back, err := json.Marshal(again[0].Object); err != nil || string(back) != string(text) {
			t.Errorf("went %s\ncame %s, %v", text, back, err)
		}
	}
	neighbour := "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: neighbour}\n"
	for _, text := range []string{string(data) + neighbour, neighbour + "---\n" + string(data)} {
		if beside, _ := Decode("f", []byte(text)); !strings.HasPrefix(string(data), "\xff\xfe") && !strings.HasPrefix(string(data), "\xfe\xff") &&
			!strings.Contains(report(beside, nil), " Namespace neighbour\n") {
			t.Errorf("beside %q a good document is not read", data)
		}
	}
}
