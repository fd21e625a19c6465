package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/switchyard-net/switchyard/client/tlsfiles"
)

// TLSFiles names the files that a client needs for TLS. All are PEM.
type TLSFiles struct {
	// CA has the certificates of the authorities that may vouch for the server. Default: the authorities of the system.
	CA string
	// Cert and Key are the client's certificate, by which the server knows which node it may have, and its key. Default: the
	// client shows none.
	Cert, Key string
	// ServerName is the name that the server's certificate must have. Default: the host in the target.
	ServerName string
}

// Certificates has the contents of TLSFiles. The files are read again for each connection, so they can be replaced at
// any time. A connection ends when the server's certificate expires, or when the authorities in the file no longer
// verify it. Files that can no longer be used are logged, and their previous contents count until they are fixed.
type Certificates struct{ files *tlsfiles.Config }

// NewCertificates reads the files for the first time. An error names the file. log gets failures to read them again; nil
// discards it.
func NewCertificates(files TLSFiles, log *slog.Logger) (*Certificates, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errors.New("a client's certificate and its key are needed together: set both Cert and Key of TLSFiles, or neither")
	}
	compose := func(contents [][]byte) (config *tls.Config, err error) {
		config = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: files.ServerName}
		if files.CA != "" {
			if config.RootCAs, err = tlsfiles.Authorities(files.CA, contents[0]); err != nil {
				return nil, err
			}
		}
		if files.Cert != "" {
			pair, err := tls.X509KeyPair(contents[1], contents[2])
			if err != nil {
				return nil, fmt.Errorf("client's certificate %s with key %s: %w", files.Cert, files.Key, err)
			}
			// Shown for any authorities that the server names, so that the server reports its reason for a refusal.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return config, nil
	}
	f, err := tlsfiles.New(cmp.Or(log, slog.New(slog.DiscardHandler)), compose, files.CA, files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return &Certificates{f}, nil
}

// credentials are the credentials of a connection whose handshakes use the current certificates.
func (c *Certificates) credentials() credentials.TransportCredentials {
	return following{credentials.NewTLS(c.files.Current()), c.files}
}

type following struct {
	credentials.TransportCredentials // of the beginning, for all but handshakes
	files                            *tlsfiles.Config
}

// ClientHandshake implements [credentials.TransportCredentials].
func (f following) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := f.files.Current()
	secure, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	if err != nil {
		return nil, nil, err
	}
	if server, ok := info.(credentials.TLSInfo); ok {
		secure = f.files.Guard(secure, tlsfiles.Peer{Config: config, State: server.State, Options: func(c *tls.Config) x509.VerifyOptions {
			return x509.VerifyOptions{Roots: c.RootCAs} // its name was verified before, and it is to be a server's by default
		}})
	}
	return secure, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (f following) Clone() credentials.TransportCredentials {
	return following{f.TransportCredentials.Clone(), f.files}
}
