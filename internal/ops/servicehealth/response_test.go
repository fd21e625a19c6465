package servicehealth

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// serve runs a server on real loopback addresses.
func serve(t *testing.T, healthy func() bool) *Server { return serveWith(t, Options{Healthy: healthy}) }

func serveWith(t *testing.T, o Options) *Server {
	s := New(o)
	s.SetAddresses(recordtest.Addrs("127.0.0.1", "::1"))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return s
}

// freePort returns a TCP port that is free on 127.0.0.1 and ::1.
func freePort(t *testing.T) uint16 {
	for range 20 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addr := netip.MustParseAddrPort(l.Addr().String())
		l6, err := net.Listen("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port()).String())
		if err != nil {
			continue
		}
		l6.Close()
		return addr.Port()
	}
	t.Skip("no port is free on both 127.0.0.1 and ::1: this machine may lack IPv6")
	return 0
}

// get asks until somebody listens.
func get(t *testing.T, host string, port uint16) (*http.Response, string) {
	t.Helper()
	url := "http://" + net.JoinHostPort(host, fmt.Sprint(port)) + "/"
	var resp *http.Response
	await.Until(t, "somebody answers at "+url, func() bool {
		var err error
		resp, err = http.Get(url)
		return err == nil
	})
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, strings.TrimSpace(string(body))
}

func TestAnswers(t *testing.T) {
	var healthy atomic.Bool
	s := serve(t, healthy.Load)
	port := freePort(t)
	tests := []struct {
		name     string
		healthy  bool
		v4, v6   int
		host     string
		code     int
		weight   string
		contents string
	}{
		{"some", true, 2, 3, "127.0.0.1", 200, "2", `"localEndpoints":2,"serviceProxyHealthy":true`},
		{"some of IPv6", true, 2, 3, "::1", 200, "3", `"localEndpoints":3,"serviceProxyHealthy":true`},
		{"none of IPv6", true, 2, 0, "::1", 503, "0", `"localEndpoints":0,"serviceProxyHealthy":true`},
		{"none", true, 0, 0, "127.0.0.1", 503, "0", `"localEndpoints":0,"serviceProxyHealthy":true`},
		{"dataplane stuck", false, 2, 2, "127.0.0.1", 503, "2", `"localEndpoints":2,"serviceProxyHealthy":false`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			healthy.Store(test.healthy)
			s.Update(full(record("web", port, test.v4, test.v6)))
			resp, body := get(t, test.host, port)
			if want := `{"service":{"namespace":"d","name":"web"},` + test.contents + `}`; body != want || resp.StatusCode != test.code {
				t.Errorf("got %d %s\nwant %d %s", resp.StatusCode, body, test.code, want)
			}
			for name, want := range map[string]string{
				"X-Load-Balancing-Endpoint-Weight": test.weight,
				"X-Content-Type-Options":           "nosniff",
				"Content-Type":                     "application/json",
			} {
				if got := resp.Header.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

// TestClosedServiceAnswers503 lets a service go while a request is on its way: kube-proxy then gives an empty 200, and the load
// balancer goes on sending connections.
func TestClosedServiceAnswers503(t *testing.T) {
	s := serve(t, func() bool { return true })
	port := freePort(t)
	s.Update(full(record("web", port, 1, 1)))
	if resp, _ := get(t, "127.0.0.1", port); resp.StatusCode != 200 {
		t.Fatalf("got %v", resp.Status)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n")
	// The server has accepted this connection once it answers a later one.
	get(t, "127.0.0.1", port)

	s.Update(removed("web"))
	await.Until(t, "nobody listens on "+addr, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	fmt.Fprintf(conn, "\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	want := `{"service":{"namespace":"d","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}`
	if got := strings.TrimSpace(string(body)); resp.StatusCode != 503 || got != want {
		t.Errorf("got %d %s\nwant 503 %s", resp.StatusCode, got, want)
	}
}

// TestPortChangesHands: the connection of a load balancer stays, and the answer is the new owner's.
func TestPortChangesHands(t *testing.T) {
	s := serve(t, func() bool { return true })
	port := freePort(t)
	s.Update(full(record("old", port, 1, 1)))
	get(t, "127.0.0.1", port)
	u := removed("old")
	u.Changed = full(record("new", port, 2, 2)).Changed
	s.Update(u)
	if _, body := get(t, "127.0.0.1", port); !strings.Contains(body, `"name":"new"},"localEndpoints":2`) {
		t.Errorf("got %s", body)
	}
}

// TestPortBecomesFree has a real conflict with another program.
func TestPortBecomesFree(t *testing.T) {
	s := serve(t, func() bool { return true })
	port := freePort(t)
	other, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	s.Update(full(record("web", port, 1, 1)))
	get(t, "::1", port)
	await.Until(t, "the other program is a problem", func() bool {
		p := s.Problems()
		return len(p) == 1 && strings.Contains(p[0].Error(), "stop what listens on TCP port")
	}, func() any { return s.Problems() })
	other.Close()
	if resp, _ := get(t, "127.0.0.1", port); resp.StatusCode != 200 {
		t.Errorf("got %v", resp.Status)
	}
	await.Until(t, "there is no problem", func() bool { return len(s.Problems()) == 0 }, func() any { return s.Problems() })
}
