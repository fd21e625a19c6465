package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// TestLibraryErrorsAreForDebugging: errors that client-go logs appear at level debug only.
func TestLibraryErrorsAreForDebugging(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelInfo: "", slog.LevelDebug: "level=DEBUG msg=m err=e"} {
		var text bytes.Buffer
		logr.FromSlogHandler(demote{slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level})}).Error(errors.New("e"), "m")
		if !strings.Contains(text.String(), want) || (want == "") != (text.Len() == 0) {
			t.Errorf("at level %v the log says %q, want %q", level, text.String(), want)
		}
	}
}
