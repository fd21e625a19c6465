package main

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/configfile"
)

// fileFlags are --config, and the flags that count as a field of the file, of run, serve and apply. A flag that is given counts more than
// the file.
type fileFlags struct {
	path            string
	health, metrics addressAndPort
	stdin           input

	flags    *pflag.FlagSet
	warnings []string
}

func (o *fileFlags) register(f *pflag.FlagSet, kinds string) {
	o.flags = f
	f.StringVar(&o.path, "config", "", "configuration file, "+kinds+", or - for standard input; flags that are given count more")
	f.Var(&o.health, "healthz-bind-address", "IP and port of /healthz and /livez; empty for none")
	f.Var(&o.metrics, "metrics-bind-address", "IP and port of /metrics, /configz and /statusz; empty for none")
}

// counts reports whether a flag decides: it is given, or there is no file.
func (o *fileFlags) counts(flag string) bool { return o.path == "" || o.flags.Changed(flag) }

// read returns the configuration of the file, or that of a command without one. What an operator should know is logged by warn.
func (o *fileFlags) read(load func([]byte, configfile.Options) (*config.Config, []config.Note, error)) (*config.Config, error) {
	if o.path == "" {
		c := flagConfig()
		c.HealthzBindAddress, c.MetricsBindAddress = o.health.AddrPort, o.metrics.AddrPort
		return c, nil
	}
	files, err := readFiles(o.stdin, o.path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	loaded, notes, broken := load(files[0].Data, configfile.Options{Name: files[0].Name, Platform: runtime.GOOS})
	c, err := config.Choose(nil, loaded, broken)
	if err != nil {
		return nil, err
	}
	if broken != nil {
		o.warnings = append(lines(broken), "as configHardFail is false, the defaults of the fields at fault are used")
	}
	for _, n := range notes {
		o.warnings = append(o.warnings, files[0].Name+": "+n.String())
	}
	if o.counts("healthz-bind-address") {
		c.HealthzBindAddress = o.health.AddrPort
	}
	if o.counts("metrics-bind-address") {
		c.MetricsBindAddress = o.metrics.AddrPort
	}
	return c, nil
}

// logging lets the file decide about the log where no flag does.
func (o *fileFlags) logging(l *logFlags, c *config.Config) {
	if !o.counts("v") {
		l.verbosity = c.Logging.Verbosity
	}
	if !o.counts("logging-format") {
		l.format = c.Logging.Format
	}
}

// warn logs what an operator should know about the file.
func (o *fileFlags) warn(c *config.Config, log *slog.Logger) {
	for _, w := range o.warnings {
		log.Warn("the configuration needs a look", "problem", w)
	}
	if o.path != "" {
		warnWithoutEffect(c, log)
	}
}

// valid returns why the flags do not fit the file.
func (o *fileFlags) valid(c *config.Config) error {
	if o.path == "" {
		return nil // the flags have checks of their own
	}
	var errs []error
	for _, f := range c.Validate(runtime.GOOS) {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}
