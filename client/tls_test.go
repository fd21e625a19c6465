package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pki is a certificate authority and what it has signed.
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

func TestTLSFiles(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	f := TLSFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), ServerName: "relay.example"}
	writePEM(t, f.CA, "CERTIFICATE", p.ca.Raw)
	write(t, p.sign(t, "node-a"), f.Cert, f.Key)
	c, err := f.Config()
	if err != nil {
		t.Fatal(err)
	}
	if c.ServerName != "relay.example" || !c.RootCAs.Equal(p.pool) || c.InsecureSkipVerify {
		t.Errorf("config: %+v", c)
	}
	for _, name := range []string{"node-a", "node-b"} {
		// The files are replaced while the client runs.
		write(t, p.sign(t, name), f.Cert, f.Key)
		cert, err := c.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if cert.Leaf.Subject.CommonName != name {
			t.Errorf("the client shows the certificate of %s, want %s", cert.Leaf.Subject.CommonName, name)
		}
	}
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
		{TLSFiles{Cert: file("cert.pem")}, "--tls-key"},
		{TLSFiles{Key: file("key.pem")}, "--tls-cert"},
		{TLSFiles{Cert: file("key.pem"), Key: file("cert.pem")}, "key.pem"},
	} {
		if _, err := c.files.Config(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.files, err, c.want)
		}
	}
}
