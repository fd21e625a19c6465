package cli

import (
	"runtime/debug"
	"testing"
)

func TestCommit(t *testing.T) {
	for modified, want := range map[string]string{"false": " commit abc", "true": " commit abc with changes"} {
		info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: modified}}}
		if got := commitOf(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := commitOf(&debug.BuildInfo{}); got != "" {
		t.Errorf("got %q without a repository", got)
	}
}
