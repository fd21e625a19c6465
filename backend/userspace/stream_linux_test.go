package userspace

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// TestEndpointSpeaksFirst: what an endpoint says as soon as it has accepted reaches the client, also if the loop gets to know of both at once.
func TestEndpointSpeaksFirst(t *testing.T) {
	k := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	server, err := openSocket(k)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(server)
	if err := unix.Bind(server, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(server, 0); err != nil { // there is room for one
		t.Fatal(err)
	}
	endpoint, err := boundTo(server)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(to netip.AddrPort) net.Conn {
		t.Helper()
		c, err := net.DialTimeout("tcp4", to.String(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("in vain: ", what)
			}
		}
	}
	accept := func() (fd int) {
		t.Helper()
		await("a connection", func() bool {
			fd, _, err = unix.Accept4(server, unix.SOCK_CLOEXEC)
			return err == nil
		})
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}

	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	fd, at, err := bindTo(k, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Options{DialTimeout: time.Hour, Listen: []Listen{{Protocol: state.TCP, At: at, Frontend: frontend}}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRelay(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	if err := r.addStreams(k, plan.Inside, at, frontend, fd); err != nil {
		t.Fatal(err)
	}
	route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: endpoint}}}
	r.set(&state.Update{Changed: []*state.Service{{
		Name: state.ServiceName{Namespace: "ns", Name: "web"},
		Ports: []state.Port{{
			Family: k.Family, Protocol: k.Protocol, Internal: state.Traffic{Inside: route, Outside: route},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
		}},
	}}})
	r.start()
	r.listen()

	dial(endpoint) // so that the server has no room for the relay's connection, which is tried again after a second
	client := dial(at)
	await("the relay waits for the endpoint", func() bool {
		n := 0
		for _, l := range r.polls {
			n += len(l.all())
		}
		return n > 0
	})
	r.pause()
	accept()
	if _, err := unix.Write(accept(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	r.poll()
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("what the endpoint has said does not come: %v", err)
	}
}
