package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/cmd/internal/cli"
)

// TestFlagsOfTheAPI: what is wrong with the flags of serve and apply is a matter of usage, and the message names the flag and what
// to do.
func TestFlagsOfTheAPI(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	tests := []struct {
		args string
		want []string
	}{
		{"serve --listen foo", []string{"--listen", "unix://, npipe:// or tcp://"}},
		{"serve --listen unix://api.sock", []string{"--listen", "absolute, as in unix:///run/switchyard/api.sock"}},
		{"serve --listen tcp://127.0.0.1", []string{"--listen", "IP address and a port"}},
		{"serve --listen tcp://192.0.2.1:8443", []string{"--listen", "takes TLS: give --tls-cert, --tls-key and --client-ca, or choose a loopback address"}},
		{"serve --listen tcp://192.0.2.1:8443 --tls-cert a --tls-key b", []string{"--listen", "takes TLS: give --tls-cert, --tls-key and --client-ca"}},
		{"serve --listen tcp://[::]:8443", []string{"--listen", "other machines can reach"}},
		{"serve --listen tcp://127.0.0.1:1 --tls-cert a", []string{"all of --tls-cert, --tls-key and --client-ca"}},
		{"serve --tls-cert a --tls-key b --client-ca c --listen unix://" + socket, []string{"--tls-cert", "add one, or leave them out"}},
		{"serve --socket-mode 0999", []string{"--socket-mode", "octal such as 0600"}},
		{"serve --socket-mode rw", []string{"--socket-mode", "octal such as 0600"}},
		{"serve --nodes --node a", []string{"--nodes and --node exclude each other"}},
		{"serve --max-clients -1", []string{"--max-clients", "or 0 for the default"}},
		{"serve --source a --relay unix:///b", []string{"--relay, --source exclude each other", "leave out all but one"}},
		{"serve --source a --kubeconfig b", []string{"--kubeconfig and --master, --source exclude each other"}},
		{"serve --source a --relay-ca b", []string{"name one with --relay, or leave them out"}},
		{"serve --relay unix:///b --relay-cert c", []string{"--relay-cert and --relay-key are needed together"}},
		{"serve --relay foo", []string{"--relay: target \"foo\"", "want unix:///path"}},
		{"serve --relay relay.example:8443", []string{"--relay: relay.example:8443", "give --relay-ca, --relay-cert and --relay-key, or choose a unix socket"}},
		{"serve --relay unix:///b --relay-socket-users no-such-user", []string{"--relay-socket-users", "name a user of this host, or give the number"}},
		{"serve --max-connection-age 1s", []string{"--max-connection-age: 1s is too short; give a minute or more, or 0"}},
		{"serve --socket-users root,no-such-user", []string{"--socket-users: user \"no-such-user\"", "or give the number"}},
		{"serve --logging-format xml", []string{"--logging-format", "is none of text, json and klog"}},
		{"apply nftables --api foo", []string{"--api: target \"foo\"", "want unix:///path"}},
		{"apply nftables --api relay.example:8443", []string{"--api: target \"relay.example:8443\"", "--tls-ca"}},
		{"apply nftables --tls-cert a", []string{"--tls-cert and --tls-key are needed together"}},
		{"apply nftables --kubeconfig a", []string{"--kubeconfig is for --fallback; give both, or leave it out"}},
		{"apply nftables --fallback --fallback-after 0s", []string{"--fallback-after must be more than 0"}},
		{"apply nftables --socket-users no-such-user", []string{"--socket-users", "name a user of this host, or give the number"}},
		{"apply nftables now", []string{`unknown command "now"`}},
		{"apply ebpf --tls-cert a", []string{"--tls-cert and --tls-key are needed together"}},
		{"apply iptables --tls-cert a", []string{"--tls-cert and --tls-key are needed together"}},
		{"apply magic", []string{`unknown command "magic"`}},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			if code := run(t.Context(), strings.Fields(tt.args), &stdout, &stderr); code != cli.ExitUsage {
				t.Errorf("exit code %d, want %d", code, cli.ExitUsage)
			}
			for _, want := range append(tt.want, "--help' for usage.") {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("%q is not in:\n%s", want, stderr.String())
				}
			}
		})
	}
}
