// Command tiny-dataplane makes cluster IPs work, in under 200 lines and without rules in the kernel. It makes the
// cluster's service ranges addresses of this node, listens there, and copies data to an endpoint and back. It needs
// root and ip.
//
// This simplicity has a price. Endpoints see an address of this node as the client's, and all clients take the route
// inside. There is no affinity, and what should be dropped is refused. Services with more than cluster IPs, TCP and
// UDP are reported as failed, but their cluster IPs, TCP and UDP work. Programs that listen on all addresses of the
// node also answer on cluster IPs, and keep services off their port. When this program ends, all connections end.
// examples/nft-dataplane is a complete dataplane.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/client"
	api "github.com/switchyard-net/switchyard/client/localnet/v1"
)

const idle = time.Minute // how long a UDP session lasts without a packet

var networks = map[api.Protocol]string{api.Protocol_PROTOCOL_TCP: "tcp", api.Protocol_PROTOCOL_UDP: "udp"}

func main() {
	o := client.Options{Name: "tiny-dataplane", Logger: slog.Default()}
	flag.StringVar(&o.Target, "api", client.DefaultTarget, "where the node-local API is served")
	flag.Func("socket-user", "a user who may serve it on a unix socket, by name or number, in addition to root and this process's user; may be repeated", func(u string) error {
		o.SocketUsers = append(o.SocketUsers, u)
		return nil
	})
	flag.Parse()
	log.Fatal(client.RunSink(context.Background(), o, make(dataplane))) // it returns only if the options are wrong
}

// dataplane is a client.Sink. It has the listeners.
type dataplane map[address]*listener

type address struct{ network, at string } // as for net.Listen

// listener listens on a cluster IP. TCP connections outlive it.
type listener struct {
	service client.ServiceName
	port    atomic.Pointer[api.Port]
	socket  io.Closer
}

// Apply implements client.Sink.
func (d dataplane) Apply(_ context.Context, c *client.Change) (map[client.ServiceName]error, error) {
	for _, p := range c.Node.ServiceCidrs {
		cidr := client.Prefix(p).String()
		if out, err := exec.Command("ip", "route", "replace", "local", cidr, "dev", "lo").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip route replace local %s dev lo: %w: %s", cidr, err, out)
		}
	}
	// For IPv6, the route alone is not enough to listen. Where this cannot be set, services say so below.
	_ = os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0)
	failed, wanted := make(map[client.ServiceName]error), make(map[address]*listener)
	changed := slices.Clone(c.Removed)
	for _, s := range c.Changed {
		name := client.NameOf(s)
		if err := client.Check(s); err != nil {
			failed[name] = err // do not guess: the service keeps its listeners
			continue
		}
		changed = append(changed, name)
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				a := address{networks[p.Protocol], client.AddrPort(f).String()}
				if f.Kind != api.FrontendKind_FRONTEND_KIND_CLUSTER_IP || f.Restricted || a.network == "" {
					failed[name] = errors.New("this dataplane serves cluster IPs only, for everybody, over TCP and UDP")
				} else if len(p.Internal.Inside.Endpoints) > 0 { // otherwise nobody listens, and the kernel refuses
					wanted[a] = &listener{service: name}
					wanted[a].port.Store(p)
				}
			}
		}
	}
	maps.DeleteFunc(d, func(a address, l *listener) bool {
		return wanted[a] == nil && slices.Contains(changed, l.service) && l.socket.Close() == nil
	})
	for a, l := range wanted {
		if old := d[a]; old != nil {
			old.service = l.service
			old.port.Store(l.port.Load())
		} else if err := l.listen(a); err != nil {
			failed[l.service] = fmt.Errorf("%w; is it in the cluster's service ranges, and the port not taken by another program?", err)
		} else {
			d[a] = l
		}
	}
	return failed, nil
}

// listen opens the socket and serves it.
func (l *listener) listen(a address) error {
	if a.network == "udp" {
		p, err := net.ListenPacket(a.network, a.at)
		if err == nil {
			l.socket = p
			go l.serveUDP(p.(*net.UDPConn))
		}
		return err
	}
	t, err := net.Listen(a.network, a.at)
	if err == nil {
		l.socket = t
		go l.serveTCP(t)
	}
	return err
}

// pick returns an endpoint: the one before, if that still serves.
func (l *listener) pick(before string) string {
	port := l.port.Load()
	route := port.Internal.Inside.Endpoints
	for e := range client.Endpoints(port, slices.Concat(route, port.Lingering)) {
		if client.AddrPort(e).String() == before {
			return before
		}
	}
	return client.AddrPort(port.Endpoints[route[rand.IntN(len(route))]]).String()
}

func (l *listener) serveTCP(t net.Listener) {
	for c, err := t.Accept(); !errors.Is(err, net.ErrClosed); c, err = t.Accept() {
		if err != nil {
			time.Sleep(100 * time.Millisecond) // too many open files, say
			continue
		}
		go l.relay(c.(*net.TCPConn))
	}
}

func (l *listener) relay(c *net.TCPConn) {
	defer c.Close()
	e, err := net.DialTimeout("tcp", l.pick(""), 10*time.Second)
	if err != nil {
		_ = c.SetLinger(0) // a reset
		return
	}
	defer e.Close()
	ways := sync.WaitGroup{}
	ways.Go(func() { _, _ = io.Copy(e, c); _ = e.(*net.TCPConn).CloseWrite() })
	ways.Go(func() { _, _ = io.Copy(c, e); _ = c.CloseWrite() })
	ways.Wait()
}

func (l *listener) serveUDP(p *net.UDPConn) {
	sessions := sync.Map{} // by client: a socket connected to its endpoint
	packet := make([]byte, 65535)
	for {
		n, from, err := p.ReadFromUDPAddrPort(packet)
		if err != nil {
			return
		}
		before := ""
		session, ok := sessions.Load(from)
		if ok {
			before = session.(net.Conn).RemoteAddr().String()
		}
		if to := l.pick(before); to != before { // the old session ends when it is idle
			e, err := net.Dial("udp", to)
			if err != nil {
				continue
			}
			sessions.Store(from, e)
			session = e
			go func() { answer(p, from, e); sessions.CompareAndDelete(from, e) }()
		}
		_ = session.(net.Conn).SetReadDeadline(time.Now().Add(idle))
		_, _ = session.(net.Conn).Write(packet[:n])
	}
}

// answer copies what an endpoint answers, until the session is idle or closed, or the endpoint refuses.
func answer(p *net.UDPConn, to netip.AddrPort, e net.Conn) {
	defer e.Close()
	packet := make([]byte, 65535)
	for n, err := e.Read(packet); err == nil; n, err = e.Read(packet) {
		_, _ = p.WriteToUDPAddrPort(packet[:n], to)
		_ = e.SetReadDeadline(time.Now().Add(idle))
	}
}
