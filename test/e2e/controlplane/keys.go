//go:build linux

package controlplane

import (
	"crypto/x509/pkix"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/switchyard-net/switchyard/test/certtest"
)

// writeKeys writes the API server's key and certificate, server.key and server.crt, to dir. It returns the certificate of the authority
// that has signed the certificate. The key also signs service account tokens. Pods know the API server by the address of its Service.
func writeKeys(dir string) ([]byte, error) {
	ca := certtest.NewAuthority()
	cert, key := ca.Issue(24*time.Hour, pkix.Name{CommonName: "kube-apiserver"}, "localhost", "127.0.0.1", Address, "10.99.0.1")
	return ca.PEM, errors.Join(
		os.WriteFile(filepath.Join(dir, "server.crt"), cert, 0o600),
		os.WriteFile(filepath.Join(dir, "server.key"), key, 0o600),
	)
}
