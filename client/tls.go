package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/credentials"
)

// TLSFiles names files with what a client needs for TLS. All are PEM.
type TLSFiles struct {
	// CA has the certificates of the authorities that may vouch for the server. Default: those of the system.
	CA string
	// Cert and Key are the client's certificate, by which the server knows which node it may have, and its key. Default: the
	// client shows none.
	Cert, Key string
	// ServerName is the name that the server's certificate must have. Default: the host in the target.
	ServerName string
}

// Certificates is what TLSFiles say. They are read again for each connection, so they can be replaced at any time; connections
// stay. Files that cannot be used any more are logged, and what they said before counts until they are mended.
type Certificates struct {
	files TLSFiles
	log   *slog.Logger

	mu     sync.Mutex // guards all below
	read   [3][]byte
	config *tls.Config
	failed string // the last error that was logged
}

// NewCertificates reads the files for the first time. An error names the file. log gets trouble with reading them again; nil
// discards it.
func NewCertificates(files TLSFiles, log *slog.Logger) (*Certificates, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errors.New("a client's certificate and its key are needed together: set both Cert and Key of TLSFiles, or neither")
	}
	c := &Certificates{files: files, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	if err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// current returns the configuration for the next handshake. It must not be modified.
func (c *Certificates) current() *tls.Config {
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
func (c *Certificates) reload() error {
	var read [3][]byte
	for i, f := range []string{c.files.CA, c.files.Cert, c.files.Key} {
		if f == "" {
			continue
		}
		var err error
		if read[i], err = os.ReadFile(f); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
	}
	if c.config != nil && bytes.Equal(read[0], c.read[0]) && bytes.Equal(read[1], c.read[1]) && bytes.Equal(read[2], c.read[2]) {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.files.ServerName}
	if c.files.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(read[0]) {
			return fmt.Errorf("certificate authorities: %s has no certificate in PEM", c.files.CA)
		}
	}
	if c.files.Cert != "" {
		pair, err := tls.X509KeyPair(read[1], read[2])
		if err != nil {
			return fmt.Errorf("client's certificate %s with key %s: %w", c.files.Cert, c.files.Key, err)
		}
		// Shown whatever authorities the server names, so that it is the server that says what it does not like about it.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	c.read, c.config = read, config
	return nil
}

// credentials are those of a connection whose handshakes use the certificates of their time.
func (c *Certificates) credentials() credentials.TransportCredentials {
	return following{credentials.NewTLS(c.current()), c}
}

type following struct {
	credentials.TransportCredentials // of the beginning, for all but handshakes
	certificates                     *Certificates
}

// ClientHandshake implements [credentials.TransportCredentials].
func (f following) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(f.certificates.current()).ClientHandshake(ctx, authority, conn)
}

// Clone implements [credentials.TransportCredentials].
func (f following) Clone() credentials.TransportCredentials {
	return following{f.TransportCredentials.Clone(), f.certificates}
}
