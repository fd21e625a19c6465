package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/test/certtest"
)

// open reports whether a stream is still open, once all is quiet. Nothing must be on its way.
func (w *watcher) open() bool {
	w.t.Helper()
	if w.ended == nil {
		w.ended = make(chan error, 1)
		go func() {
			_, err := w.receive()
			w.ended <- err
		}()
	}
	synctest.Wait()
	select {
	case err := <-w.ended:
		w.ended <- err
		return false
	default:
		return true
	}
}

// TestCertificatesExpireOnOpenStreams: a certificate is good as long as it says, and not as long as a connection lasts.
func TestCertificatesExpireOnOpenStreams(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxAge = -1 }, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		node := watch(t, t.Context(), localnetv1.NewEndpointsClient(g.node("192.0.2.1")), subscribe) // for an hour
		node.expect("1 full node")
		time.Sleep(time.Hour - time.Second)
		if !node.open() {
			t.Fatal("the stream has ended before the certificate has expired")
		}
		time.Sleep(2 * time.Second)
		if node.open() {
			t.Error("the stream is open after the certificate has expired")
		}
		if n := w.server.Clients(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// TestAuthoritiesChangeOnOpenStreams: an authority that no longer vouches for a client ends its connections. An
// authority that is added, or vouches for it again, does not.
func TestAuthoritiesChangeOnOpenStreams(t *testing.T) {
	var log strings.Builder
	bubble(t, func(o *server.Options) { o.MaxAge, o.Logger = -1, slog.New(slog.NewTextHandler(&log, nil)) }, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		var old []*watcher
		for range 20 {
			conn := g.client("192.0.2.1", "relay", "switchyard:relays")
			s := watch(t, t.Context(), localnetv1.NewEndpointsClient(conn), subscribe)
			s.expect("1 full node")
			old = append(old, s)
		}
		other := newAuthority(t)
		trust := func(authorities ...*authority) {
			t.Helper()
			var pem []byte
			for _, a := range authorities {
				pem = append(pem, a.PEM...)
			}
			if err := os.WriteFile(g.files.ClientCAFile, pem, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		count := func() (open int) {
			for _, s := range old {
				if s.open() {
					open++
				}
			}
			return open
		}
		trust(g.ca, other)
		time.Sleep(time.Minute)
		if n := count(); n != len(old) {
			t.Fatalf("%d of %d are open after an authority was added", n, len(old))
		}
		trust()
		time.Sleep(time.Minute)
		if n := count(); n != len(old) {
			t.Fatalf("%d of %d are open after the file broke", n, len(old))
		}
		trust(other)
		time.Sleep(7 * time.Second)
		if n := count(); n == len(old) || n == 0 {
			t.Errorf("after some seconds, %d of %d are open: they should end one after the other", n, len(old))
		}
		time.Sleep(8 * time.Second)
		if n := count(); n > 0 {
			t.Errorf("%d are open after their authority was removed", n)
		}
		if n := strings.Count(log.String(), "no longer valid"); n == 0 || n > 2 {
			t.Errorf("it was logged %d times:\n%s", n, &log)
		}
	})
}

// follower is a client of the library with certificates in files, at a gate.
func follower(t *testing.T, g *gate, files client.TLSFiles, onError func(error), options ...grpc.DialOption) chan *client.Update {
	t.Helper()
	certificates, err := client.NewCertificates(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.NewWatcher(client.Options{
		Target: "passthrough:///127.0.0.1", Certificates: certificates, OnError: onError,
		DialOptions: append([]grpc.DialOption{grpc.WithContextDialer(g.dialer("192.0.2.1"))}, options...),
	})
	if err != nil {
		t.Fatal(err)
	}
	updates, done := make(chan *client.Update), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for u := range w.Updates(ctx) {
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		}
	}()
	return updates
}

// nodeFiles writes the certificate of a node, good for so long, and the authority of servers.
func nodeFiles(t *testing.T, dir string, ca *authority, expires time.Duration) client.TLSFiles {
	t.Helper()
	return certificateFiles(t, dir, ca, expires, pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}})
}

// certificateFiles is the same with any subject.
func certificateFiles(t *testing.T, dir string, ca *authority, expires time.Duration, subject pkix.Name) client.TLSFiles {
	t.Helper()
	f := client.TLSFiles{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	cert, key := ca.Issue(expires, subject)
	for name, text := range map[string][]byte{f.CA: ca.PEM, f.Cert: cert, f.Key: key} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestRenewedCertificatesLoseNothing: a client whose certificate expires comes back with the next one, and continues where it was.
func TestRenewedCertificatesLoseNothing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Update(services(10, 1), nil)
		w.sink.Complete()
		g := openGate(t, w)
		dir := t.TempDir()
		updates := follower(t, g, nodeFiles(t, dir, g.ca, 10*time.Minute), nil)
		if u := <-updates; !u.Full || len(u.Changed) != 10 {
			t.Fatalf("first came %+v", u)
		}
		nodeFiles(t, dir, g.ca, 30*time.Minute)
		time.Sleep(10*time.Minute - time.Millisecond)
		for i := range 20 { // around the moment
			w.sink.Update(service("new", 100+i, 1), nil)
			u := <-updates
			if u.Full || len(u.Changed) != 1 {
				t.Fatalf("then came %+v", u)
			}
			time.Sleep(time.Millisecond)
		}
		if n := w.server.Clients(); n != 1 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// TestServersAuthorityChanges: a client leaves a server that its authorities no longer vouch for, and reports it.
func TestServersAuthorityChanges(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		dir := t.TempDir()
		files := nodeFiles(t, dir, g.ca, 30*time.Minute)
		errs := make(chan error, 1000)
		updates := follower(t, g, files, func(err error) { errs <- err })
		<-updates
		if err := os.WriteFile(files.CA, certtest.NewAuthority().PEM, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		w.sink.Update(service("a", 1, 1), nil)
		time.Sleep(time.Minute)
		select {
		case u := <-updates:
			t.Errorf("an update came from a server that is not trusted: %+v", u)
		default:
		}
		if err := <-errs; !strings.Contains(err.Error(), "is no longer valid") || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("the first error is %v", err)
		}
		if err := os.WriteFile(files.CA, g.ca.PEM, 0o600); err != nil {
			t.Fatal(err)
		}
		if u := <-updates; u.Full || len(u.Changed) != 1 {
			t.Errorf("after the authority is back came %+v", u)
		}
	})
}

// TestServersCertificateExpires: a client leaves a server whose certificate has expired.
func TestServersCertificateExpires(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxAge = -1 }, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w) // for an hour
		errs := make(chan error, 10_000)
		<-follower(t, g, nodeFiles(t, t.TempDir(), g.ca, 20*time.Hour), func(err error) { errs <- err })
		time.Sleep(time.Hour - time.Second)
		if len(errs) > 0 {
			t.Fatal(<-errs)
		}
		time.Sleep(2 * time.Second)
		if err := <-errs; !strings.Contains(err.Error(), "expired") {
			t.Errorf("the first error is %v", err)
		}
		pair, err := tls.LoadX509KeyPair(g.files.CertFile, g.files.KeyFile)
		if err != nil || pair.Leaf.NotAfter.After(time.Now()) {
			t.Fatalf("the server's certificate has not expired: %v", err)
		}
	})
}
