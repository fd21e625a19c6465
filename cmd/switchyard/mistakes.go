package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// removedFlags are flags that kube-proxy once had, with the release of Kubernetes that removed them and what to do.
var removedFlags = func() map[string]string {
	m := map[string]string{
		"cleanup-iptables":   "Kubernetes 1.16 removed it: use --cleanup",
		"cleanup-ipvs":       "Kubernetes 1.21 removed it: --cleanup always removes what is of IPVS, too",
		"conntrack-max":      "Kubernetes 1.16 removed it: use --conntrack-max-per-core and --conntrack-min",
		"resource-container": "Kubernetes 1.16 removed it: leave it out; the container of the process has its limits",
		"udp-timeout":        "it was for the mode userspace, which Kubernetes 1.26 removed: leave it out; --conntrack-udp-timeout is for connection tracking",
		"proxy-port-range":   "it was for the mode userspace, which Kubernetes 1.26 removed: leave it out",
	}
	for _, name := range []string{
		"add-dir-header", "alsologtostderr", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "logtostderr", "one-output",
		"skip-headers", "skip-log-headers", "stderrthreshold",
	} {
		m[name] = "Kubernetes 1.26 removed it: leave it out; the log goes to stderr, from where the container runtime or systemd takes it"
	}
	return m
}()

// explainFlag adds to the error of a flag what was probably meant.
func explainFlag(c *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(c, unknown.GetSpecifiedName(), err)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok && invalid.GetFlag().Value.Type() == "duration" {
		if n, numErr := strconv.Atoi(invalid.GetValue()); numErr == nil {
			return fmt.Errorf("%w; write %v for %d seconds", err, time.Duration(n)*time.Second, n)
		}
	}
	return err
}

func unknownFlag(c *cobra.Command, name string, err error) error {
	name = strings.ReplaceAll(name, "_", "-")
	if c.Name() == "proxy" {
		if why, removed := removedFlags[name]; removed {
			return fmt.Errorf("%w: %s", err, why)
		}
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if like := manifest.Closest(name, names); like != "" && len(name) > 1 {
		return fmt.Errorf("%w: did you mean --%s?", err, like)
	}
	return err
}

// explainArgs adds to the error of an argument the command that was probably meant.
func explainArgs(c *cobra.Command, args []string, err error) error {
	if !c.HasAvailableSubCommands() || len(args) == 0 {
		return err
	}
	var names []string
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if strings.HasPrefix(sub.Name(), args[0]) {
			return fmt.Errorf("%w: did you mean %q?", err, sub.Name())
		}
		names = append(names, sub.Name())
	}
	if like := manifest.Closest(args[0], names); like != "" {
		return fmt.Errorf("%w: did you mean %q?", err, like)
	}
	return err
}
