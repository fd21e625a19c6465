package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		target, grpc string
		local        bool
	}{
		{"unix:///run/switchyard/api.sock", "unix:///run/switchyard/api.sock", true},
		{"npipe:////./pipe/switchyard", "passthrough:///localhost", true},
		{`\\.\pipe\switchyard`, "passthrough:///localhost", true},
		{"unix:relative.sock", "unix:relative.sock", true},
		{"unix:/run/a.sock", "unix:/run/a.sock", true},
		{"unix-abstract:a", "unix-abstract:a", true},
		{"127.0.0.1:12345", "dns:///127.0.0.1:12345", true},
		{"tcp://127.0.0.1:12345", "dns:///127.0.0.1:12345", true},
		{"tcp://[::1]:12345", "dns:///[::1]:12345", true},
		{"localhost:12345", "dns:///localhost:12345", true},
		{"dns:///localhost:12345", "dns:///localhost:12345", true},
		{"passthrough:///127.3.2.1:1", "passthrough:///127.3.2.1:1", true},
		{"192.0.2.1:12345", "dns:///192.0.2.1:12345", false},
		{"tcp://relay:12345", "dns:///relay:12345", false},
		{"localhost.example:1", "dns:///localhost.example:1", false},
		{"[2001:db8::1]:1", "dns:///[2001:db8::1]:1", false},
		{"0.0.0.0:1", "dns:///0.0.0.0:1", false},
		{"dns:///relay.example:8443", "dns:///relay.example:8443", false},
		{"dns:///relay.example", "dns:///relay.example", false},
	} {
		got, err := parseTarget(c.target)
		if err != nil || got.grpc != c.grpc || got.local != c.local {
			t.Errorf("%s: got %+v, %v; want %q, local %v", c.target, got, err, c.grpc, c.local)
		}
	}
	for _, bad := range []string{"unix://", "unix:", "unix:///", "unix://run/a.sock", "tcp://127.0.0.1", "127.0.0.1", ":12345", "relay", "https://127.0.0.1:1", "xds:///127.0.0.1:1", "tcp://:1", "tcp://relay:", "/run/a.sock", "npipe:////relay/pipe/a"} {
		if _, err := parseTarget(bad); err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: error %v, want one that names it and says what would do", bad, err)
		}
	}
}

func TestOnlyTLSLeavesTheHost(t *testing.T) {
	for target, local := range map[string]bool{"": true, "127.0.0.1:1": true, "192.0.2.1:1": false, "dns:///relay.example:1": false} {
		conn, err := Dial(Options{Target: target})
		if (err == nil) != local {
			t.Errorf("%s without TLS: error %v", target, err)
		}
		if err == nil {
			conn.Close()
		} else if !strings.Contains(err.Error(), "--tls-ca") || !strings.Contains(err.Error(), target) {
			t.Errorf("the error does not name the target or the remedy: %v", err)
		}
		certificates, err := NewCertificates(TLSFiles{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{{TLS: &tls.Config{}}, {Certificates: certificates}} {
			o.Target = target
			conn, err = Dial(o)
			if err != nil {
				t.Errorf("%s with TLS: %v", target, err)
				continue
			}
			conn.Close()
		}
	}
}

// TestNameWithManyAddresses: connections to a name are spread over its addresses, whichever comes first.
func TestNameWithManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := manual.NewBuilderWithScheme("unix") // in place of the usual one
		addresses.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: "a"}, {Addr: "b"}, {Addr: "c"}}})
		first := make(map[string]int)
		const dials = 300
		for range dials {
			tried := make(chan string, 1)
			conn, err := Dial(Options{Target: "unix:///run/switchyard/api.sock", DialOptions: []grpc.DialOption{
				grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
					select {
					case tried <- address:
					default:
					}
					return nil, errors.New("there is no server")
				}),
				grpc.WithResolvers(addresses),
			}})
			if err != nil {
				t.Fatal(err)
			}
			conn.Connect()
			first[<-tried]++
			conn.Close()
			synctest.Wait()
		}
		for _, a := range []string{"a", "b", "c"} {
			if first[a] < dials/6 {
				t.Errorf("of %d connections, %d were tried at %s first, want about a third: %v", dials, first[a], a, first)
			}
		}
	})
}
