//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/switchyard-net/switchyard/test/bench"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"bench": main}) }

// TestScripts runs the command line as a person would; testdata has one script a file.
func TestScripts(t *testing.T) { testscript.Run(t, testscript.Params{Dir: "testdata"}) }

// TestStrict: figures that missed their target are an error only if that is wanted, and everything is written before.
func TestStrict(t *testing.T) {
	failure := errors.New("the kernel refused it")
	for _, c := range []struct {
		args   []string
		value  float64
		failed error
		want   string // of the error, which is nil without
	}{
		{nil, 3, nil, ""},
		{[]string{"--strict"}, 2, nil, ""},
		{[]string{"--strict"}, 3, nil, "nftables/warm-restart with 100000 services is 3.00 s, at most 2"},
		{nil, 3, failure, failure.Error()},
		{[]string{"--strict"}, 3, failure, failure.Error() + "\n1 of the figures missed their target: nftables/warm-restart"},
	} {
		cmd := newBench("part", "A part", false, func(_ context.Context, r *bench.Reporter, _ bench.Options) error {
			r.Report(bench.Result{Name: "nftables/warm-restart", Services: 100_000, Endpoints: 5, Value: c.value, Unit: "s"})
			return c.failed
		})
		var lines, table bytes.Buffer
		cmd.SetArgs(c.args)
		cmd.SetOut(&lines)
		cmd.SetErr(&table)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true // as its parent does
		err := cmd.Execute()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %v: got %v, want %q", c.args, c.value, err, c.want)
		}
		if !strings.Contains(lines.String(), "nftables/warm-restart") || !strings.Contains(table.String(), "nftables/warm-restart") {
			t.Errorf("%q with %v: not all was written:\n%s%s", c.args, c.value, &lines, &table)
		}
	}
}

// TestGrowthsAreKept: what grows too fast is an error once all is written, and only at sizes that show it.
func TestGrowthsAreKept(t *testing.T) {
	steep := bench.Growth{Operation: "store/load", Dimension: "ports", Sizes: []int{10, 100}, Seconds: []float64{1e-6, 1e-4}, Slope: 2, Last: 2, Steep: true}
	explained, plain := steep, steep
	explained.Operation, explained.Explained = "kernel/list", "it compares all pairs"
	plain.Operation, plain.Slope, plain.Last, plain.Steep = "wire/read", 1, 1, false
	for _, c := range []struct {
		all   []bench.Growth
		quick bool
		want  string // in the error, which is nil without
	}{
		{[]bench.Growth{plain, explained}, false, ""},
		{[]bench.Growth{plain, explained, steep}, false, "store/load with more and more ports"},
		{[]bench.Growth{plain, explained, steep}, true, ""},
	} {
		for _, dir := range []string{"", t.TempDir()} {
			err := keepGrowths(dir, c.all, c.quick)
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), explained.Operation)) {
				t.Errorf("%d growths, quick: %v: got %v, want %q", len(c.all), c.quick, err, c.want)
			}
			if dir == "" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, "scaling.md"))
			if err != nil || !strings.Contains(string(text), explained.Operation) {
				t.Errorf("%d growths, quick: %v: %v, and scaling.md is\n%s", len(c.all), c.quick, err, text)
			}
		}
	}
}
