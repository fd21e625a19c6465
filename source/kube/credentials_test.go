package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTokenIsReadAgain replaces the token in its file, as kubelet does.
func TestTokenIsReadAgain(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		file := write(t, "token", "first\n")
		a.token = "first"
		w := begin(a, func(o *Options) { o.Config.BearerTokenFile = file })
		w.complete(true)
		a.do(func() { a.token = "second" })
		a.cut(false)
		settle(time.Minute)
		if p := w.source.Problems(); len(p) != 5 {
			t.Errorf("the old token should not be accepted any more; problems: %v", p)
		}
		write(t, file, "second\n")
		a.put(service("a/x", 80))
		settle(3 * time.Minute)
		w.noProblems()
		w.holds("a/x:80", hereNode)
	})
}

// TestCAIsReadAgain gives the API server a certificate of another CA, and then the new CA to the client.
func TestCAIsReadAgain(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		certificate, ca := authority(t)
		file := write(t, "ca.crt", ca)
		a.host = "https://api.test"
		a.tls = &tls.Config{Certificates: []tls.Certificate{certificate}}
		w := begin(a, func(o *Options) { o.Config.CAFile = file })
		w.complete(true)
		certificate, ca = authority(t)
		a.do(func() { a.tls = &tls.Config{Certificates: []tls.Certificate{certificate}} })
		a.cut(false)
		settle(10 * time.Minute)
		if p := w.source.Problems(); len(p) != 5 {
			t.Errorf("the new certificate should not be accepted yet; problems: %v", p)
		}
		w.logged("API server cannot be reached")
		write(t, file, ca)
		a.put(service("a/x", 80))
		settle(8 * time.Minute)
		w.noProblems()
		w.holds("a/x:80", hereNode)
	})
}

// write writes a file and returns its path. A name that is no path is put in a directory of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(t.TempDir(), name)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// authority makes a CA that signs itself as a server, and returns it both ways.
func authority(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"api.test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
