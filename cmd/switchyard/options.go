package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/loglimit"
)

// primaryAddresses is the value of --nodeport-addresses that stands for the node's first address of each family.
const primaryAddresses = "primary"

// prefixes is a flag: a comma-separated list of CIDRs.
type prefixes []netip.Prefix

var _ pflag.Value = (*prefixes)(nil)

func (p *prefixes) String() string {
	var s []string
	for _, c := range *p {
		s = append(s, c.String())
	}
	return strings.Join(s, ",")
}

// Set replaces the value.
func (p *prefixes) Set(s string) error {
	var list []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		c, err := netip.ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return fmt.Errorf("%q is not a CIDR such as 10.244.0.0/16", item)
		}
		list = append(list, c.Masked())
	}
	*p = list
	return nil
}

// Type names the value in the help text.
func (p *prefixes) Type() string { return "CIDRs" }

// oncePath is a flag: a path, which would replace the first one without a word if it were given twice.
type oncePath string

var _ pflag.Value = (*oncePath)(nil)

func (p *oncePath) String() string { return string(*p) }

// Set takes the value if there is none.
func (p *oncePath) Set(s string) error {
	if *p != "" && *p != oncePath(s) {
		return fmt.Errorf("%s was given before: put the manifests into one directory, and name that", *p)
	}
	*p = oncePath(s)
	return nil
}

// Type names the value in the help text.
func (p *oncePath) Type() string { return "path" }

// nodePortAddresses is a flag: the keyword primary, or CIDRs.
type nodePortAddresses struct{ config.NodePortAddresses }

var _ pflag.Value = (*nodePortAddresses)(nil)

func (a *nodePortAddresses) String() string {
	if a.Primary {
		return primaryAddresses
	}
	return (*prefixes)(&a.CIDRs).String()
}

// Set replaces the value.
func (a *nodePortAddresses) Set(s string) error {
	if s == primaryAddresses {
		a.NodePortAddresses = config.NodePortAddresses{Primary: true}
		return nil
	}
	a.Primary = false
	if err := (*prefixes)(&a.CIDRs).Set(s); err != nil {
		return fmt.Errorf("%w, nor the word %s", err, primaryAddresses)
	}
	return nil
}

// Type names the value in the help text.
func (a *nodePortAddresses) Type() string { return "CIDRs" }

// addressAndPort is a flag: an IP address and a port, the latter alone for all addresses, or nothing.
type addressAndPort struct{ netip.AddrPort }

var _ pflag.Value = (*addressAndPort)(nil)

func (a *addressAndPort) String() string {
	if !a.IsValid() {
		return ""
	}
	return a.AddrPort.String()
}

// Set replaces the value.
func (a *addressAndPort) Set(s string) (err error) {
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
func (a *addressAndPort) Type() string { return "IP:port" }

// pageAddress is a flag: an IP address and a port, the latter alone for the loopback address, or nothing.
type pageAddress struct{ addressAndPort }

// Set replaces the value.
func (a *pageAddress) Set(s string) error {
	if _, err := strconv.ParseUint(strings.TrimPrefix(s, ":"), 10, 16); err == nil {
		s = "127.0.0.1:" + strings.TrimPrefix(s, ":")
	}
	return a.addressAndPort.Set(s)
}

// verbosityUsage is the help text of -v, which means the same in all commands.
const verbosityUsage = "log more: 0 for what an operator should know, 4 and above for debugging, as in Kubernetes"

// logFlags are the flags about logging.
type logFlags struct {
	verbosity int32
	format    string
}

func (l *logFlags) register(flags *pflag.FlagSet) {
	flags.Int32VarP(&l.verbosity, "v", "v", 0, verbosityUsage)
	flags.StringVar(&l.format, "logging-format", "text", "text or json")
}

// check finds values that cannot be used.
func (l *logFlags) check() error {
	if l.format != "text" && l.format != "json" {
		return fmt.Errorf("--logging-format: %q is neither text nor json", l.format)
	}
	return nil
}

// logger logs to w, within bounds.
func (l *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: levelOf(l.verbosity)}
	var h slog.Handler = slog.NewTextHandler(w, options)
	if l.format == "json" {
		h = slog.NewJSONHandler(w, options)
	}
	log := slog.New(loglimit.New().Handler(h))
	logLibraries(log)
	return log, nil
}
