package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/switchyard-net/switchyard/client/tlsfiles"
)

// TLS are the files, in PEM, by which a listener speaks TLS. They are read again when they have
// changed. A connection ends when the client's certificate expires, and within 15 seconds after its authority has left the file.
type TLS struct {
	// CertFile has the server's certificate, followed by intermediate ones if there are any. Required.
	CertFile string
	// KeyFile has the certificate's key. Required.
	KeyFile string
	// ClientCAFile has the authorities that sign clients' certificates. Required.
	ClientCAFile string
}

// follow reads the files for the first time.
func (t *TLS) follow(log *slog.Logger) (*tlsfiles.Config, error) {
	files := *t
	compose := func(contents [][]byte) (*tls.Config, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", files.CertFile, files.KeyFile, err)
		}
		authorities, err := tlsfiles.Authorities(files.ClientCAFile, contents[2])
		if err != nil {
			return nil, fmt.Errorf("clients' %w", err)
		}
		return &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{pair},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    authorities,
			NextProtos:   []string{"h2"},
			// A client that comes back shows its certificate again: the authorities may be others by then.
			SessionTicketsDisabled: true,
		}, nil
	}
	return tlsfiles.New(log, compose, files.CertFile, files.KeyFile, files.ClientCAFile)
}
