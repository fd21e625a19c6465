package cli

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/switchyard-net/switchyard/internal/loglimit"
)

// AddressAndPort is a flag: an IP address and a port, the latter alone for all addresses, or nothing.
type AddressAndPort struct{ netip.AddrPort }

var _ pflag.Value = (*AddressAndPort)(nil)

func (a *AddressAndPort) String() string {
	if !a.IsValid() {
		return ""
	}
	return a.AddrPort.String()
}

// Set replaces the value.
func (a *AddressAndPort) Set(s string) (err error) {
	if s == "" {
		a.AddrPort = netip.AddrPort{}
		return nil
	}
	if s[0] == ':' {
		s = "[::]" + s
	}
	if a.AddrPort, err = netip.ParseAddrPort(s); err != nil || a.Port() == 0 {
		return fmt.Errorf("%q is not an IP address and port such as 127.0.0.1:10256", s)
	}
	return nil
}

// Type names the value in the help text.
func (a *AddressAndPort) Type() string { return "IP:port" }

// PageAddress is a flag: an IP address and a port, the latter alone for the loopback address, or nothing.
type PageAddress struct{ AddressAndPort }

// Set replaces the value.
func (a *PageAddress) Set(s string) error {
	if _, err := strconv.ParseUint(strings.TrimPrefix(s, ":"), 10, 16); err == nil {
		s = "127.0.0.1:" + strings.TrimPrefix(s, ":")
	}
	return a.AddressAndPort.Set(s)
}

// VerbosityUsage is the help text of -v, which means the same in all commands.
const VerbosityUsage = "log more: 0 for what an operator should know, 4 and above for debugging, as in Kubernetes"

// LogFormatUsage is the help text of --logging-format.
const LogFormatUsage = "text (logfmt), json, or klog for the text of Kubernetes' components"

// LogFlags are the flags about logging.
type LogFlags struct {
	// Verbosity is as in Kubernetes: 0 for what an operator should know, 4 and above for debugging.
	Verbosity int32
	// Format is text, json or klog.
	Format string
}

// Register adds the flags to the flags of a command.
func (l *LogFlags) Register(flags *pflag.FlagSet) {
	flags.Int32VarP(&l.Verbosity, "v", "v", 0, VerbosityUsage)
	flags.StringVar(&l.Format, formatFlag, textFormat, LogFormatUsage)
}

// Check finds values that cannot be used.
func (l *LogFlags) Check() error {
	if !slices.Contains(LogFormats, l.Format) {
		return NoneOf(formatFlag, l.Format, LogFormats...)
	}
	return nil
}

// Logger logs to w, within bounds.
func (l *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	log := slog.New(loglimit.New().Handler(LogHandler(w, l.Format, LevelOf(l.Verbosity))))
	LogLibraries(log)
	return log, nil
}

// LogLibraries writes the messages of libraries that use klog, such as client-go, to log. Call it before the first goroutine that may log.
func LogLibraries(log *slog.Logger) { klog.SetSlogLogger(log) }

// LevelOf returns the lowest level that is shown with a verbosity. Kubernetes' verbosity 4 is for debugging, as is slog's level -4:
// one is the negative of the other.
func LevelOf(verbosity int32) slog.Level { return slog.Level(-verbosity) }
