package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/certtest"

	clusterv1 "github.com/switchyard-net/switchyard/internal/proto/cluster/v1"
)

// authority is one, in a test.
type authority struct {
	*certtest.Authority
	t testing.TB
}

func newAuthority(t testing.TB) *authority { return &authority{certtest.NewAuthority(), t} }

// issue returns a certificate and its key in PEM.
func (a *authority) issue(name, organisation string, expires time.Duration) (cert, key []byte) {
	return a.Issue(expires, pkix.Name{CommonName: name, Organization: []string{organisation}}, "127.0.0.1")
}

// client is the TLS of a client that has a certificate by a, and trusts servers by trusted.
func (a *authority) client(name, organisation string, trusted *authority) *tls.Config {
	pair, err := tls.X509KeyPair(a.issue(name, organisation, time.Hour))
	if err != nil {
		a.t.Fatal(err)
	}
	c := &tls.Config{RootCAs: trusted.Pool()}
	// Unlike with Certificates, it is shown also if the server does not name its authority.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return c
}

// files are the server's certificates on disk.
func (a *authority) files(dir string, clients *authority) *server.TLS {
	a.t.Helper()
	t := &server.TLS{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key"), ClientCAFile: filepath.Join(dir, "ca")}
	cert, key := a.issue("server", "", time.Hour)
	for f, b := range map[string][]byte{t.CertFile: cert, t.KeyFile: key, t.ClientCAFile: clients.PEM} {
		if err := os.WriteFile(f, b, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return t
}

// serveTLS serves w on a TCP socket, and returns where.
func serveTLS(t testing.TB, w *world, files *server.TLS) string {
	t.Helper()
	a, _ := server.ParseAddress("tcp://127.0.0.1:0")
	l, err := server.Listen(t.Context(), a, 0, files)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, l, files) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dialTLS(t testing.TB, address string, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// objects is a service that Options.Register adds.
type objects struct {
	clusterv1.UnimplementedObjectsServer
}

func (objects) Follow(stream clusterv1.Objects_FollowServer) error {
	return stream.Send(&clusterv1.FollowResponse{Full: true})
}

// TestCertificatesDecide what their holders may have, over real TLS.
func TestCertificatesDecide(t *testing.T) {
	w := newWorld(t, func(o *server.Options) {
		o.Register = func(r grpc.ServiceRegistrar) { clusterv1.RegisterObjectsServer(r, objects{}) }
		feed := o.Feed
		o.Feed = func(string) (state.Feed, error) { return feed(nodeName) }
	})
	w.sink.Update(service("a", 1, 2), nil)
	w.sink.Complete()
	ca, other := newAuthority(t), newAuthority(t)
	address := serveTLS(t, w, ca.files(t.TempDir(), ca))

	for _, c := range []struct {
		name, organisation, node string
		endpoints, objects       codes.Code
	}{
		{"system:node:" + nodeName, "system:nodes", "", codes.OK, codes.PermissionDenied},
		{"system:node:" + nodeName, "system:nodes", nodeName, codes.OK, codes.PermissionDenied},
		{"system:node:" + nodeName, "system:nodes", "node-b", codes.PermissionDenied, codes.PermissionDenied},
		{"system:node:", "system:nodes", nodeName, codes.PermissionDenied, codes.PermissionDenied},
		{"system:node:" + nodeName, "", "", codes.PermissionDenied, codes.PermissionDenied},
		{"system:node:" + nodeName, "system:masters", nodeName, codes.PermissionDenied, codes.PermissionDenied},
		{nodeName, "system:nodes", nodeName, codes.PermissionDenied, codes.PermissionDenied},
		{"relay-1", "switchyard:relays", "node-b", codes.OK, codes.OK},
		{"stranger", "system:masters", nodeName, codes.PermissionDenied, codes.PermissionDenied},
	} {
		t.Run(c.name+" wants "+c.node, func(t *testing.T) {
			conn := dialTLS(t, address, ca.client(c.name, c.organisation, ca))
			_, names, err := next(t, soon(t), localnetv1.NewEndpointsClient(conn), &localnetv1.NextFilter{Node: c.node})
			if status.Code(err) != c.endpoints || err == nil && names != "a" {
				t.Errorf("Next: %q, %v; want %v", names, err, c.endpoints)
			}
			s := watch(t, soon(t), localnetv1.NewEndpointsClient(conn), &localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Node: c.node}, Ready: true})
			if _, err := s.receive(); status.Code(err) != c.endpoints {
				t.Errorf("Watch: %v; want %v", err, c.endpoints)
			}
			follow, err := clusterv1.NewObjectsClient(conn).Follow(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := follow.Recv(); status.Code(err) != c.objects {
				t.Errorf("Follow: %v; want %v", err, c.objects)
			}
			_, err = healthv1.NewHealthClient(conn).Check(soon(t), &healthv1.HealthCheckRequest{})
			isNode := c.name == "system:node:"+nodeName && c.organisation == "system:nodes"
			if allowed := isNode || c.organisation == "switchyard:relays"; (err == nil) != allowed {
				t.Errorf("Check: %v", err)
			}
		})
	}
	t.Run("of another authority", func(t *testing.T) {
		conn := dialTLS(t, address, other.client("system:node:"+nodeName, "switchyard:relays", ca))
		if _, _, err := next(t, soon(t), localnetv1.NewEndpointsClient(conn), &localnetv1.NextFilter{}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("expired", func(t *testing.T) {
		pair, err := tls.X509KeyPair(ca.issue("system:node:"+nodeName, "system:nodes", -time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		c := ca.client("", "", ca)
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		if _, _, err := next(t, soon(t), localnetv1.NewEndpointsClient(dialTLS(t, address, c)), &localnetv1.NextFilter{}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("none", func(t *testing.T) {
		c := ca.client("", "", ca)
		c.GetClientCertificate = nil
		if _, _, err := next(t, soon(t), localnetv1.NewEndpointsClient(dialTLS(t, address, c)), &localnetv1.NextFilter{}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("old TLS", func(t *testing.T) {
		c := ca.client("relay", "switchyard:relays", ca)
		c.MinVersion = tls.VersionTLS10
		for version, want := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
			c.MaxVersion = version
			conn, err := tls.Dial("tcp", address, c)
			if err == nil {
				_ = conn.Close()
			} else if !strings.Contains(err.Error(), "protocol version") {
				t.Error(err)
			}
			if (err == nil) != want {
				t.Errorf("%s: got %v", tls.VersionName(version), err)
			}
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		conn := dial(t, func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		})
		if _, _, err := next(t, soon(t), localnetv1.NewEndpointsClient(conn), &localnetv1.NextFilter{}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}

// TestCertificatesAreReadAgain when their files have changed. Connections stay, and files that cannot be read change nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	var log strings.Builder
	w := newWorld(t, func(o *server.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	w.sink.Complete()
	before, after := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	address := serveTLS(t, w, before.files(dir, before))
	connects := func(c *tls.Config) error {
		_, _, err := next(t, soon(t), localnetv1.NewEndpointsClient(dialTLS(t, address, c)), &localnetv1.NextFilter{})
		return err
	}
	name := "system:node:" + nodeName
	if err := connects(before.client(name, "system:nodes", before)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "crt"), []byte("half a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := connects(before.client(name, "system:nodes", before)); err != nil {
			t.Fatalf("while the files are broken: %v", err)
		}
	}
	after.files(dir, after)
	if err := connects(after.client(name, "system:nodes", after)); err != nil {
		t.Errorf("with the new certificates: %v", err)
	}
	if err := connects(before.client(name, "system:nodes", after)); err == nil {
		t.Error("a client of the old authority was let in")
	}
	w.stop()
	if n := strings.Count(log.String(), "cannot reload certificates"); n != 1 {
		t.Errorf("broken files were reported %d times, want once:\n%s", n, log.String())
	}
}

func TestServeNeedsReadableCertificates(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	for name, damage := range map[string]func(*server.TLS) error{
		"no certificate": func(f *server.TLS) error { return os.Remove(f.CertFile) },
		"no key":         func(f *server.TLS) error { return os.WriteFile(f.KeyFile, nil, 0o600) },
		"no authority":   func(f *server.TLS) error { return os.WriteFile(f.ClientCAFile, nil, 0o600) },
		"other key": func(f *server.TLS) error {
			_, key := ca.issue("x", "", time.Hour)
			return os.WriteFile(f.KeyFile, key, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			files := ca.files(dir, ca)
			if err := damage(files); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			if err := newWorld(t, nil).server.Serve(t.Context(), l, files); err == nil || !strings.Contains(fmt.Sprint(err), dir) {
				t.Errorf("got %v", err)
			}
		})
	}
}
