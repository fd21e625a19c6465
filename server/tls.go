package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// TLS are the files, in PEM, by which a listener speaks TLS. They are read again when they have changed; connections stay.
type TLS struct {
	// CertFile has the server's certificate, followed by intermediate ones if there are any. Required.
	CertFile string
	// KeyFile has the certificate's key. Required.
	KeyFile string
	// ClientCAFile has the authorities that sign clients' certificates. Required.
	ClientCAFile string
}

// certificates is what the files of a TLS say.
type certificates struct {
	files TLS
	log   *slog.Logger

	mu     sync.Mutex // guards all below
	read   [3][]byte
	config *tls.Config
	failed string // the last error that was logged
}

// newCertificates reads the files for the first time.
func newCertificates(t *TLS, log *slog.Logger) (*certificates, error) {
	c := &certificates{files: *t, log: log}
	return c, c.reload()
}

// current returns the configuration for the next handshake. Files that have become unreadable are told of, and what they said
// before counts.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.reload()
	switch {
	case err == nil:
		c.failed = ""
	case err.Error() != c.failed:
		c.failed = err.Error()
		c.log.Error("cannot read the certificates again; going on with the last ones", "error", err)
	}
	return c.config
}

// reload reads the files, which are small beside the cost of a handshake, and takes them if they have changed.
func (c *certificates) reload() error {
	var read [3][]byte
	for i, f := range []string{c.files.CertFile, c.files.KeyFile, c.files.ClientCAFile} {
		var err error
		if read[i], err = os.ReadFile(f); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
	}
	if c.config != nil && bytes.Equal(read[0], c.read[0]) && bytes.Equal(read[1], c.read[1]) && bytes.Equal(read[2], c.read[2]) {
		return nil
	}
	pair, err := tls.X509KeyPair(read[0], read[1])
	if err != nil {
		return fmt.Errorf("TLS: certificate %s with key %s: %w", c.files.CertFile, c.files.KeyFile, err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(read[2]) {
		return fmt.Errorf("TLS: client authorities %s: %w", c.files.ClientCAFile, errors.New("there is no certificate in PEM"))
	}
	c.read = read
	c.config = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    authorities,
		NextProtos:   []string{"h2"},
		// Who comes back shows the certificate again: the authorities may be others by then.
		SessionTicketsDisabled: true,
	}
	return nil
}
