package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pki is a certificate authority and the certificates that it has signed.
type pki struct {
	now    time.Time
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	pool   *x509.CertPool
	server tls.Certificate // relay.example
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{now: time.Now(), pool: x509.NewCertPool()}
	p.ca = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: p.now.Add(-time.Hour), NotAfter: p.now.Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	p.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, p.ca, p.ca, &p.key.PublicKey, p.key)
	if err != nil {
		t.Fatal(err)
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	p.pool.AddCert(p.ca)
	p.server = p.sign(t, "relay.example")
	return p
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign returns a certificate for a name, with its key.
func (p *pki) sign(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: p.now.Add(-time.Hour), NotAfter: p.now.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, &key.PublicKey, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// write writes a certificate and its key.
func write(t *testing.T, cert tls.Certificate, certFile, keyFile string) {
	t.Helper()
	writePEM(t, certFile, "CERTIFICATE", cert.Certificate[0])
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
}

// connected returns the ends of a connection. That is not a net.Pipe, in which two that write at the same time wait for ever.
func connected(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if here, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// handshake connects a client to a server of p, which demands certificates of p. It returns the name that the client showed.
func (p *pki) handshake(t *testing.T, c *Certificates) (name string, err error) {
	t.Helper()
	here, there := connected(t)
	defer here.Close()
	server := tls.Server(there, &tls.Config{
		Certificates: []tls.Certificate{p.server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: p.pool, NextProtos: []string{"h2"},
	})
	done := make(chan error, 1)
	go func() {
		defer there.Close()
		done <- server.HandshakeContext(t.Context())
	}()
	creds := c.credentials().Clone()
	conn, _, err := creds.ClientHandshake(t.Context(), "relay.example", here)
	if err != nil {
		here.Close()
		<-done
		return "", err
	}
	defer conn.Close()                                // or the server checks its certificates and writes the log while the test continues
	go func() { _, _ = conn.Read(make([]byte, 1)) }() // what the server says after its handshake
	if err := <-done; err != nil {
		return "", err
	}
	return server.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// TestCertificatesAreReadAgain replaces the files of a client that runs, all of them, as when an authority is replaced.
func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	f := TLSFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), ServerName: "relay.example"}
	replace := func(p *pki, name string) {
		writePEM(t, f.CA, "CERTIFICATE", p.ca.Raw)
		write(t, p.sign(t, name), f.Cert, f.Key)
	}
	first, second := newPKI(t), newPKI(t)
	replace(first, "node-a")
	var log strings.Builder
	c, err := NewCertificates(f, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	shows := func(p *pki, want string) {
		t.Helper()
		if name, err := p.handshake(t, c); err != nil || name != want {
			t.Errorf("the client shows the certificate of %q, want %q; %v\n%s", name, want, err, &log)
		}
	}
	shows(first, "node-a")
	write(t, first.sign(t, "node-b"), f.Cert, f.Key)
	shows(first, "node-b")
	if _, err := second.handshake(t, c); err == nil {
		t.Error("a server of an authority that nobody vouches for was taken")
	}
	replace(second, "node-c")
	shows(second, "node-c")
	if _, err := first.handshake(t, c); err == nil {
		t.Error("a server of the authority that was replaced was taken")
	}
	if log.Len() > 0 {
		t.Errorf("without trouble, it was logged:\n%s", &log)
	}

	// Unusable files change nothing, and are reported once.
	for file, broken := range map[string]func() error{
		f.CA:   func() error { return os.WriteFile(f.CA, []byte("nonsense"), 0o600) },
		f.Cert: func() error { return os.Remove(f.Cert) },
		f.Key:  func() error { write(t, first.sign(t, "node-d"), filepath.Join(dir, "other.pem"), f.Key); return nil },
	} {
		if err := broken(); err != nil {
			t.Fatal(err)
		}
		shows(second, "node-c")
		shows(second, "node-c")
		if n := strings.Count(log.String(), "cannot reload certificates"); n != 1 || !strings.Contains(log.String(), filepath.Base(file)) {
			t.Errorf("%s is broken; it was said %d times:\n%s", file, n, &log)
		}
		log.Reset()
		replace(second, "node-c")
		shows(second, "node-c")
	}
	replace(first, "node-e")
	shows(first, "node-e")
}

func TestTLSFilesThatDoNotWork(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write(t, p.sign(t, "node-a"), file("cert.pem"), file("key.pem"))
	for _, c := range []struct {
		files TLSFiles
		want  string
	}{
		{TLSFiles{CA: file("none.pem")}, "none.pem"},
		{TLSFiles{CA: file("key.pem")}, "key.pem has no certificate"},
		{TLSFiles{Cert: file("cert.pem")}, "both Cert and Key"},
		{TLSFiles{Key: file("key.pem")}, "both Cert and Key"},
		{TLSFiles{Cert: file("key.pem"), Key: file("cert.pem")}, "key.pem"},
	} {
		if _, err := NewCertificates(c.files, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.files, err, c.want)
		}
	}
}
