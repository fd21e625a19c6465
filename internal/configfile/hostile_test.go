package configfile_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/configfile"
)

// position begins each fault of a file that has one: the file, the line, the column.
var position = regexp.MustCompile(`^f(:\d+){1,2}: `)

// checkFaults requires an error to be a list of faults of bounded length. Each fault has the file and its line, except
// for the note that there are more.
func checkFaults(t *testing.T, err error) {
	t.Helper()
	if len(err.Error()) > 300<<10 {
		t.Errorf("the error has %d bytes: %.500v", len(err.Error()), err)
	}
	faults := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	for _, fault := range faults {
		text := fault.Error()
		if !position.MatchString(text) && !strings.Contains(text, " more errors") && !strings.HasPrefix(text, "f: is empty") {
			t.Errorf("a fault without a position: %.500s", text)
		}
	}
}

// TestManyFaults has files that are as wrong as a megabyte can be.
func TestManyFaults(t *testing.T) {
	var unknown, sections strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&unknown, "x%d: 1\n", i)
	}
	sections.WriteString("logging:\n  vmodule:\n")
	for range 20_000 {
		sections.WriteString("  - {filePattern: '[', verbosity: -1}\n")
	}
	for name, text := range map[string]string{
		"unknown fields":        v2 + unknown.String(),
		"unknown fields, older": v1 + unknown.String(),
		"values of a list":      v2 + "api: {listen: [" + strings.Repeat("x,", 200_000) + "]}\n",
		"values of a section":   v2 + sections.String(),
		"aliases":               v2 + "x: &x [a,a,a,a,a,a,a,a,a]\ny: &y [*x,*x,*x,*x,*x]\nnodePortAddresses: [*y,*y,*y]\n",
		"a long value":          v2 + "mode: " + strings.Repeat("m", 100<<10) + "\n",
		"a long kind":           "apiVersion: v1\nkind: " + strings.Repeat("k", 1<<20) + "\n",
	} {
		c, _, err := configfile.Load([]byte(text), configfile.Options{Name: "f"})
		if err == nil || c != nil && strings.Contains(err.Error(), " more errors") {
			t.Errorf("%s: got %v, %.200v", name, c, err)
			continue
		}
		checkFaults(t, err)
		if n := strings.Count(err.Error(), "\n"); n > 205 {
			t.Errorf("%s: %d faults are reported", name, n)
		}
	}
}

// TestFaultsOfNoField: a fault without a field is still reported.
func TestFaultsOfNoField(t *testing.T) {
	for _, head := range []string{v1, v2} {
		c, _, err := configfile.Load([]byte(head+"? [mode]\n: ipvs\n"), configfile.Options{Name: "f"})
		if c != nil || err == nil || err.Error() != "f:3:3: a key must be a string, got a list" {
			t.Errorf("got %v, %v", c, err)
		}
	}
}

// FuzzLoadDataplane reads any text as the file of one dataplane.
func FuzzLoadDataplane(f *testing.F) {
	const head = "apiVersion: switchyard.net/v1alpha1\nkind: NFTablesConfiguration\n"
	for _, text := range []string{head, head + "masqueradeBit: 32\n", head + "masqueradeBit: [1]\nx: 1\n", "kind: NFTablesConfiguration", "{"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := configfile.Load(data, configfile.Options{Name: "f", Dataplanes: []string{configfile.KindNFTables}})
		if err != nil {
			checkFaults(t, err)
			return
		}
		if faults := c.Validate(""); len(faults) > 0 {
			t.Errorf("returns a section with faults: %v", errors.Join(faults[0]))
		}
	})
}
