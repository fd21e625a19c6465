package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// formatFlag is the name of the flag of [LogFlags].Format.
const formatFlag = "logging-format"

// formatError is an error of a command that logs in a format.
type formatError struct {
	error
	format string
}

func (e *formatError) Unwrap() error { return e.error }

// InFormat returns err as the error of a command that logs in a format, such as json. The error is then a line of the log on stderr, too.
// Without InFormat, the flag --logging-format decides.
func InFormat(err error, format string) error {
	if err == nil {
		return nil
	}
	return &formatError{err, format}
}

// formatOf returns the format of the message about err, with which a command ended.
func formatOf(cmd *cobra.Command, args []string, err error) string {
	if e, ok := errors.AsType[*formatError](err); ok {
		return e.format
	}
	if cmd.Flags().Lookup(formatFlag) == nil {
		return textFormat
	}
	return formatIn(args)
}

// formatIn returns the value of --logging-format in arguments, which may be wrong otherwise: text if there is none that is known.
func formatIn(args []string) string {
	format := textFormat
	for i, arg := range args {
		if arg == "--" {
			break
		}
		flag, value, hasValue := strings.Cut(arg, "=")
		if strings.ReplaceAll(flag, "_", "-") != "--"+formatFlag {
			continue
		}
		if !hasValue && i+1 < len(args) {
			value = args[i+1]
		}
		format = value
	}
	if slices.Contains(LogFormats, format) {
		return format
	}
	return textFormat
}

// report writes an error where there is no logger: as a line of the log, but in the format text for people.
func report(w io.Writer, format string, level slog.Level, message string, err error) {
	if format == textFormat {
		fmt.Fprintf(w, "switchyard: %v\n", err)
		return
	}
	slog.New(LogHandler(w, format, level)).Log(context.Background(), level, message, "error", err)
}
