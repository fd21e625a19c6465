package userspace_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/topology"
)

// impostors listen at the known ports of the relay, on its address and on all, without any right. got counts what comes to them.
func (l *lab) impostors() (got *atomic.Int32) {
	l.t.Helper()
	got = new(atomic.Int32)
	if err := l.withoutRights(func() error {
		for _, addr := range []string{userspace.DefaultAddresses()[0].String()} {
			for _, port := range []string{"61871", "61872"} {
				stream, err := net.Listen("tcp4", net.JoinHostPort(addr, port))
				if err != nil {
					return err
				}
				l.t.Cleanup(func() { stream.Close() })
				go func() {
					for {
						c, err := stream.Accept()
						if err != nil {
							return
						}
						got.Add(1)
						_, _ = io.WriteString(c, "impostor 10.0.0.1:1\n")
						c.Close()
					}
				}()
				packets, err := net.ListenPacket("udp4", net.JoinHostPort(addr, port))
				if err != nil {
					return err
				}
				l.t.Cleanup(func() { packets.Close() })
				go func() {
					buffer := make([]byte, 1000)
					for {
						_, from, err := packets.ReadFrom(buffer)
						if err != nil {
							return
						}
						got.Add(1)
						_, _ = packets.WriteTo([]byte("impostor 10.0.0.1:1\n"), from)
					}
				}()
			}
		}
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	return got
}

// Who binds the ports of a relay that was killed gets neither new connections nor flows that the relay has carried, and does not keep the next process
// from serving.
func TestImpostors(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	flow, err := l.visitor.Dial(t.Context(), state.UDP, netip.MustParseAddrPort(frontend), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	talk := func(patience time.Duration) (string, error) {
		_ = flow.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(flow, "hello\n")
		answer := make([]byte, 100)
		n, err := flow.Read(answer)
		return string(answer[:n]), err
	}
	if _, err := talk(await.Patience); err != nil {
		t.Fatal(err)
	}
	l.kill()
	got := l.impostors()
	served := func(when string) {
		t.Helper()
		for _, host := range []*topology.Host{l.visitor, l.Node()} {
			for _, proto := range []state.Protocol{state.TCP, state.UDP} {
				a := host.Probe(t.Context(), proto, netip.MustParseAddrPort(frontend), topology.ProbeOptions{Timeout: await.Patience})
				if a.Outcome != topology.Answered || a.Server != "pod" {
					t.Errorf("%s, %v from %s is %v by %q (%v)", when, proto, host.Name, a.Outcome, a.Server, a.Err)
				}
			}
		}
	}
	served("without a relay")
	if answer, err := talk(200 * time.Millisecond); err == nil && !strings.HasPrefix(answer, "pod") {
		t.Errorf("a flow that the relay has carried is answered %q", answer)
	}
	l.start()
	l.apply(nil, l.at(answers))
	served("with the next relay")
	if n := got.Load(); n > 0 {
		t.Errorf("the impostors have got %d connections and datagrams", n)
	}
	if err := errors.Join(l.pair.Problems()...); err == nil || !strings.Contains(err.Error(), "61871") {
		t.Errorf("that the ports are taken is reported as %v", err)
	}
}

// A process that is killed leaves no table that leads to it. Its own sockets are led nowhere by the base, also not by frontends that others name.
func TestOwnConnectionsAreLeftAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	// Somebody names the address of the pod as an external one of his own Service.
	thief := service(func(p *state.Port) {
		p.Frontends[0] = state.Frontend{Kind: state.ExternalIP, Addr: l.pod.Addrs[0], Port: answers}
		p.External = p.Internal
	}, l.at(refuses))
	thief.Name.Name = "thief"
	l.applyAll(thief, service(nil, l.at(answers)))
	l.mustAnswer(state.TCP)
	l.mustAnswer(state.UDP)
}

// A router tells the relay of a smaller MTU on the way to a client: what answers come from is the frontend there.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	to := netip.MustParseAddrPort(frontend)
	flow, err := l.visitor.Dial(t.Context(), state.UDP, to, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	_ = flow.SetDeadline(time.Now().Add(await.Patience))
	if _, err := io.WriteString(flow, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := flow.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	client := flow.LocalAddr().(*net.UDPAddr).AddrPort()
	const mtu = 1000
	answer := ipv4.Header{Version: 4, Len: ipv4.HeaderLen, TotalLen: 1400, TTL: 63, Protocol: unix.IPPROTO_UDP, Src: to.Addr().AsSlice(), Dst: client.Addr().AsSlice()}
	header, err := answer.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	body := append([]byte{0, 0, mtu >> 8, mtu & 0xff}, header...)
	for _, field := range []uint16{to.Port(), client.Port(), 1380, 0} {
		body = binary.BigEndian.AppendUint16(body, field)
	}
	tooBig, err := (&icmp.Message{Type: ipv4.ICMPTypeDestinationUnreachable, Code: 4, Body: &icmp.RawBody{Data: body}}).Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.visitor.Do(func() error {
		c, err := net.Dial("ip4:icmp", to.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(tooBig)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var known int
	for deadline := time.Now().Add(5 * time.Second); known != mtu && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if err := l.Node().Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: client.Addr().As4(), Port: 1}); err != nil {
				return err
			}
			known, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if known != mtu {
		t.Errorf("the node knows an MTU of %d on the way to the client, want %d", known, mtu)
	}
}
