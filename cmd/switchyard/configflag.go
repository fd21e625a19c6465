package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
	"github.com/switchyard-net/switchyard/config"
)

// fileFlags are --config, and the flags that count as a field of the files, of run, serve and apply. A flag that is given counts more than
// the files.
type fileFlags struct {
	configFiles
	health, metrics cli.AddressAndPort
	admin           string
	ui              cli.PageAddress
	log             cli.LogFlags

	flags    *pflag.FlagSet
	warnings []string
}

func (o *fileFlags) register(f *pflag.FlagSet, kinds string) {
	o.flags = f
	f.Var((*fileNames)(&o.paths), "config", "configuration file, "+kinds+", or - for standard input, may be given more than once: one for all nodes, and others for this one; flags that are given count more")
	f.Var(&o.health, "healthz-bind-address", "IP and port of /healthz and /livez; empty for none")
	f.Var(&o.metrics, "metrics-bind-address", "IP and port of /metrics, /configz and /statusz; empty for none")
	o.log.Register(f)
}

// adminUsage is the help text of --admin-bind-address.
const adminUsage = "where 'switchyard get' and 'switchyard explain' ask this process: unix:///PATH, or none"

// uiUsage is the help text of --ui-bind-address.
const uiUsage = "IP and port of a page for browsers about this process, or a port alone for 127.0.0.1; everybody who can connect may read it; empty for none"

// registerAdmin adds the flags of commands that have the cluster's objects.
func (o *fileFlags) registerAdmin(f *pflag.FlagSet) {
	f.StringVar(&o.admin, "admin-bind-address", config.DefaultAdminAddress, adminUsage)
	f.Var(&o.ui, "ui-bind-address", uiUsage)
}

// checkAdmin finds addresses that cannot be used.
func (o *fileFlags) checkAdmin() error {
	c := config.Default()
	c.AdminBindAddress, c.UIBindAddress = o.admin, o.ui.AddrPort
	var errs []error
	for _, f := range c.Validate(runtime.GOOS) {
		errs = append(errs, fmt.Errorf("%s %s", flagFor(f.Path), f.Problem))
	}
	return errors.Join(errs...)
}

// counts reports whether a flag decides: it is given, or there is no file.
func (o *fileFlags) counts(flag string) bool { return len(o.paths) == 0 || o.flags.Changed(flag) }

// fieldName returns what messages call a field of the configuration: its flag, unless the files decide.
func (o *fileFlags) fieldName(path string) string {
	if flag := flagFor(path); flag != path && o.counts(strings.TrimPrefix(flag, "--")) {
		return flag
	}
	return path
}

// load returns the configuration of the files, or the default configuration if none is given. It logs warnings for
// the operator with warn.
func (o *fileFlags) load() (c *config.Config, err error) {
	if len(o.paths) == 0 {
		return flagConfig(), nil
	}
	c, o.warnings, err = o.configFiles.load()
	return c, err
}

// set gives c what the flags mean that count.
func (o *fileFlags) set(c *config.Config) {
	for flag, set := range map[string]func(){
		"healthz-bind-address": func() { c.HealthzBindAddress = o.health.AddrPort },
		"metrics-bind-address": func() { c.MetricsBindAddress = o.metrics.AddrPort },
		"admin-bind-address":   func() { c.AdminBindAddress = o.admin },
		"ui-bind-address":      func() { c.UIBindAddress = o.ui.AddrPort },
		"v":                    func() { c.Logging.Verbosity = o.log.Verbosity },
		"logging-format":       func() { c.Logging.Format = o.log.Format },
	} {
		if o.counts(flag) {
			set()
		}
	}
}

// logger returns the log that c, whose flags are set, asks for, and what decides how much is logged.
func (o *fileFlags) logger(stdout, stderr io.Writer, c *config.Config) (*slog.Logger, *verbosity) {
	v := newVerbosity()
	log := newLog(stdout, stderr, c, v)
	cli.LogLibraries(log)
	return log, v
}

// warn logs what an operator should know about the files.
func (o *fileFlags) warn(c *config.Config, log *slog.Logger) {
	for _, w := range o.warnings {
		log.Warn("configuration warning", "problem", w)
	}
	if len(o.paths) > 0 {
		warnWithoutEffect(c, log)
	}
}

// valid returns why the flags do not fit the files.
func (o *fileFlags) valid(c *config.Config) error {
	if len(o.paths) == 0 {
		return nil // the flags have checks of their own
	}
	var errs []error
	for _, f := range c.Validate(runtime.GOOS) {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}
