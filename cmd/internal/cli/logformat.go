package cli

import (
	"io"
	"log/slog"
	"math"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2/textlogger"
)

// textFormat is the default of [LogFormats]. Its readers are people, and the last message of a command is no line of the log.
const textFormat = "text"

// LogFormats are the formats of [LogHandler], which the configuration has, too.
var LogFormats = []string{textFormat, "json", "klog"}

// LogHandler returns a handler that writes lines of a level and of higher levels in a format. The format text is
// logfmt, json is JSON, and klog is the text of Kubernetes' components.
func LogHandler(w io.Writer, format string, level slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	switch format {
	case "json":
		return slog.NewJSONHandler(w, o)
	case "klog":
		verbosity := min(max(-int64(level), 0), math.MaxInt32) // klog shows warnings and errors with any verbosity
		return logr.ToSlogHandler(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(int(verbosity)))))
	default:
		return slog.NewTextHandler(w, o)
	}
}
