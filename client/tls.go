package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles names files with what a client needs for TLS. All are PEM.
type TLSFiles struct {
	// CA has the certificates of the authorities that may vouch for the server. Default: those of the system.
	CA string
	// Cert and Key are the client's certificate, by which the server knows which node it may have, and its key. They are read
	// anew for each connection, so they can be replaced at any time. Default: the client shows none.
	Cert, Key string
	// ServerName is the name that the server's certificate must have. Default: the host in the target.
	ServerName string
}

// Config reads the files. An error names the file.
func (f TLSFiles) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: f.ServerName}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authorities: %s has no certificate in PEM", f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("a client's certificate and its key are needed together: --tls-cert and --tls-key")
	}
	if f.Cert != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			if err != nil {
				return nil, fmt.Errorf("client's certificate %s with key %s: %w", f.Cert, f.Key, err)
			}
			return &cert, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}
