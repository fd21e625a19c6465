//go:build unix

package kube

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestKubeconfigSwapped swaps a kubeconfig for a named pipe and for a file without end: neither is waited for, and the last one counts.
func TestKubeconfigSwapped(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := write(t, "kubeconfig", kubeconfig("http://one.test", "", "x"))
	_, renew, err := Connection{Kubeconfig: file}.Follow()
	check(err)
	check(os.Remove(file))
	check(syscall.Mkfifo(file, 0o600))
	refused := func(want string) {
		t.Helper()
		if config, err := renew(); config != nil || err == nil || !strings.Contains(err.Error(), file+": "+want) {
			t.Errorf("got %v, %v; want an error about %s", config, err, want)
		}
	}
	const pipe = "it is a named pipe: put a regular file in its place"
	refused(pipe)
	refused(pipe)
	if _, err := (Connection{Kubeconfig: file}).Config(); err == nil || !strings.Contains(err.Error(), pipe) {
		t.Errorf("a start with a named pipe: %v", err)
	}
	check(os.Remove(file))
	check(os.WriteFile(file, nil, 0o600))
	check(os.Truncate(file, 1<<40))
	refused("it has more than 8388608 bytes")
	check(os.Remove(file))
	write(t, file, kubeconfig("http://two.test", "", "x"))
	_, err = renew() // which waits until it stays as it is
	check(err)
	if config, err := renew(); err != nil || config == nil || config.Host != "http://two.test" {
		t.Errorf("got %v, %v", config, err)
	}
}
