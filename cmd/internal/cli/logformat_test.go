package cli

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

// TestLogFormats: each format has its own lines, and a verbosity shows the same lines in each.
func TestLogFormats(t *testing.T) {
	lines := map[string]*regexp.Regexp{
		"text": regexp.MustCompile(`^time=\S+ level=WARN msg="cannot program" service=a/b revision=7$`),
		"klog": regexp.MustCompile(`^W\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ logformat_test\.go:\d+\] "cannot program" service="a/b" revision=7$`),
	}
	for _, format := range []string{"text", "json", "klog"} {
		var out bytes.Buffer
		log := slog.New(LogHandler(&out, format, LevelOf(2)))
		log.Warn("cannot program", "service", "a/b", "revision", 7)
		log.Log(t.Context(), LevelOf(2), "of verbosity 2")
		log.Log(t.Context(), LevelOf(3), "of verbosity 3")
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(got) != 2 || !strings.Contains(got[1], "of verbosity 2") {
			t.Errorf("%s: %q", format, got)
			continue
		}
		if format == "json" {
			var line map[string]any
			if err := json.Unmarshal([]byte(got[0]), &line); err != nil || line["msg"] != "cannot program" || line["service"] != "a/b" {
				t.Errorf("%s: %s: %v", format, got[0], err)
			}
		} else if !lines[format].MatchString(got[0]) {
			t.Errorf("%s: %s", format, got[0])
		}
	}
	if err := (&LogFlags{Format: "xml"}).Check(); err == nil || !strings.Contains(err.Error(), "text, json and klog") {
		t.Errorf("xml: %v", err)
	}
}
