package userspace

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// TestPipesAreBounded: data goes on without a pipe when all are in use, and those that are given back are used again.
func TestPipesAreBounded(t *testing.T) {
	p := newPipePool(4)
	var used []*pipe
	for range 4 {
		one := p.get()
		if one == nil {
			t.Fatal("no pipe")
		}
		used = append(used, one)
	}
	if p.get() != nil {
		t.Error("there are more pipes than there may be")
	}
	p.put(used[0])
	if p.get() != used[0] {
		t.Error("a pipe that was given back is not used again")
	}
	p.most.Store(2)
	for _, one := range used {
		p.put(one)
	}
	if n := p.made.Load(); n != 2 {
		t.Errorf("%d pipes are left after the bound was lowered to 2", n)
	}
}

// TestStuckConnections: connections whose endpoint reads nothing hold no more pipes than there may be, and no more in their sockets than their bound. Others
// go on. It is not parallel, so that nobody else has pipes.
func TestStuckConnections(t *testing.T) {
	before := pipes.most.Load()
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	r, at := listening(t, frontend)
	for drained := false; !drained; { // others have left pipes, which are handed out whatever most is
		select {
		case left := <-pipes.empty:
			pipes.close(left)
		default:
			drained = true
		}
	}
	used := pipes.made.Load() // by others, whose connections are still open
	pipes.most.Store(used + 3)
	defer pipes.most.Store(before)
	route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort(server.Addr().String())}}}
	r.set(&state.Update{Changed: []*state.Service{{
		Name: state.ServiceName{Namespace: "ns", Name: "web"},
		Ports: []state.Port{{
			Family: state.IPv4, Protocol: state.TCP, Internal: state.Traffic{Inside: route, Outside: route},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
		}},
	}}})
	r.start()
	r.listen()
	connect := func() (client, endpoint net.Conn) {
		client, err := net.DialTimeout("tcp4", at.String(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		endpoint = await.Receive(t, "a connection comes to the endpoint", accepted)
		t.Cleanup(func() { endpoint.Close() })
		return client, endpoint
	}
	const stuck = 12
	for range stuck {
		client, _ := connect()
		_ = client.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		go func() { _, _ = client.Write(make([]byte, 64<<20)) }() // until it is stuck
	}
	client, endpoint := connect()
	const size = 8 << 20
	go func() { _, _ = client.Write(make([]byte, size)) }()
	_ = endpoint.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := io.CopyN(io.Discard, endpoint, size); err != nil {
		t.Errorf("%d bytes have come of a connection beside others that are stuck: %v", n, err)
	}
	if n := pipes.made.Load(); n > used+3 {
		t.Errorf("%d pipes are there, want %d at most", n, used+3)
	}
	for _, l := range r.polls {
		for _, c := range l.all() {
			c.mu.Lock()
			for _, e := range c.ends {
				for _, option := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
					if n, err := unix.GetsockoptInt(e.fd, unix.SOL_SOCKET, option); err != nil || n > mostBuffer {
						t.Errorf("a socket may hold %d bytes (%v), want %d at most", n, err, mostBuffer)
					}
				}
			}
			c.mu.Unlock()
		}
	}
}

// TestBuffers: the more connections there are, the less each may hold.
func TestBuffers(t *testing.T) {
	for conns, want := range map[int]int{0: 1 << 20, 1: 1 << 20, 64: 1 << 20, 256: 256 << 10, 1024: 64 << 10, 65536: 16 << 10} {
		if got := bufferOf((&Options{}).sharedBuffers(), conns); got != want {
			t.Errorf("beside %d connections, a buffer may have %d bytes, want %d", conns, got, want)
		}
	}
}

// TestStuckConnectionsFitIntoMemory: whatever the limit of memory, the buffers of as many connections as there may be fit into three quarters of it.
func TestStuckConnectionsFitIntoMemory(t *testing.T) {
	for _, memory := range []int64{64 << 20, 128 << 20, 1000 << 20, 4 << 30} {
		o := Options{Memory: memory, MaxConnections: 1 << 20}.withinMemory()
		if o.MaxConnections < 100 {
			t.Errorf("%d MiB: %d connections", memory>>20, o.MaxConnections)
		}
		var all int64
		for conns := range o.MaxConnections {
			all += int64(buffersOfConn * bufferOf(o.sharedBuffers(), conns+1))
		}
		if all > memory/4*3 {
			t.Errorf("%d MiB: %d connections may hold %d MiB", memory>>20, o.MaxConnections, all>>20)
		}
	}
	if o := (Options{MaxConnections: 7}).withinMemory(); o.MaxConnections != 7 {
		t.Errorf("without a limit of memory: %d connections, want 7", o.MaxConnections)
	}
}
