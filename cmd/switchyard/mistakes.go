package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// explainRemoved adds the remedy to the error of a flag that kube-proxy once had. The result does not wrap the error, so that no similar flag is
// suggested.
func explainRemoved(_ *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if why, removed := removedFlags[strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")]; removed {
			return fmt.Errorf("%v: %s", err, why)
		}
	}
	return err
}
