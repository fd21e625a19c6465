package bench

import (
	"bytes"
	"strings"
	"testing"
)

// TestMemoryTarget: memory has its target at the size that this is for.
func TestMemoryTarget(t *testing.T) {
	for _, c := range []struct {
		services, endpoints int
		value               float64
		want                string // the end of the line
	}{
		{10_000, 5, 40, `"unit":"MiB","atMost":40}`},
		{10_000, 5, 40.1, `"unit":"MiB","atMost":40,"missed":true}`},
		{10_000, 50, 400, `"unit":"MiB"}`},
		{100_000, 5, 400, `"unit":"MiB"}`},
	} {
		var line, table bytes.Buffer
		reportMemory(NewReporter(&line, &table), Result{"memory/rss", c.services, c.endpoints, c.value, "MiB"})
		if !strings.HasSuffix(line.String(), c.want+"\n") {
			t.Errorf("got %swant the end %s", &line, c.want)
		}
	}
}
