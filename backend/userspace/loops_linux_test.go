package userspace_test

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/topology"
)

const loopPort = 30080

// loop returns a Service at another cluster IP and at a NodePort.
func loop(endpoints ...state.Endpoint) *state.Service {
	s := service(func(p *state.Port) {
		p.Frontends[0].Addr = netip.MustParseAddr(loopIP)
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.NodePort, Port: loopPort})
		p.External = p.Internal
	}, endpoints...)
	s.Name.Name = "loop"
	return s
}

const (
	loopIP       = "10.96.0.11"
	loopFrontend = loopIP + ":80"
)

// applyAll shows these Services.
func (l *lab) applyAll(services ...*state.Service) {
	l.t.Helper()
	l.revision++
	u := &state.Update{Revision: l.revision, Full: true, Node: l.node(), Changed: services}
	if result, err := l.pair.Apply(l.t.Context(), u); err != nil || len(result.Failed) > 0 {
		l.t.Fatal(result.Failed, err)
	}
}

// attack sends a connection and a datagram to the Service that leads back, and reports how much the relay carries at most until the connection has ended, and
// a moment later.
func (l *lab) attack() (most int) {
	l.t.Helper()
	flow, err := l.visitor.Dial(l.t.Context(), state.UDP, netip.MustParseAddrPort(loopFrontend), netip.AddrPort{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { flow.Close() })
	if _, err := io.WriteString(flow, "hello\n"); err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		c, err := l.visitor.Dial(l.t.Context(), state.TCP, netip.MustParseAddrPort(loopFrontend), netip.AddrPort{})
		if err != nil { // it is reset at once
			ended <- err
			return
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err = c.Read(make([]byte, 1))
		ended <- err
	}()
	for moments := 20; moments > 0; {
		select {
		case err := <-ended:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				l.t.Error("a connection to a Service that leads back goes on")
			}
			ended = nil
		case <-time.After(5 * time.Millisecond):
		}
		if ended == nil {
			moments--
		}
		most = max(most, l.pair.Carried())
	}
	return most
}

// The relay makes no connection to itself: neither by a cluster IP, nor by a NodePort. Others are served, and the Service is reported.
func TestEndpointLeadsBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		at   func(*lab) netip.AddrPort
	}{
		{"cluster IP", func(*lab) netip.AddrPort { return netip.MustParseAddrPort(loopFrontend) }},
		{"NodePort", func(l *lab) netip.AddrPort { return netip.AddrPortFrom(l.Node().Addrs[0], loopPort) }},
		{"listener", func(*lab) netip.AddrPort { return netip.AddrPortFrom(userspace.DefaultAddresses()[0], 61871) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, userspace.Options{MaxConnections: 300, MaxUDPFlows: 300})
			l.applyAll(loop(state.Endpoint{Addr: c.at(l)}), service(nil, l.at(answers)))
			if most := l.attack(); most > 4 {
				t.Errorf("the relay carries %d connections and flows of one client", most)
			}
			l.mustAnswer(state.TCP)
			l.mustAnswer(state.UDP)
			if problems := l.pair.Problems(); len(problems) != 1 || !strings.Contains(problems[0].Error(), "default/loop") {
				t.Errorf("reported: %v", problems)
			}
			l.applyAll(loop(l.at(answers)), service(nil, l.at(answers)))
			if problems := l.pair.Problems(); len(problems) != 0 {
				t.Errorf("reported after the endpoint has changed: %v", problems)
			}
			if a := l.visitor.Probe(t.Context(), state.TCP, netip.MustParseAddrPort(loopFrontend), topology.ProbeOptions{Timeout: await.Patience}); a.Outcome != topology.Answered {
				t.Errorf("after the endpoint has changed, a connection is %v (%v)", a.Outcome, a.Err)
			}
		})
	}
}

// Two relays that lead to each other pass a connection on until its hop limit is used up.
func TestLoopOfTwoNodes(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{MaxConnections: 300, MaxUDPFlows: 300})
	other := netip.AddrPortFrom(l.pod.Addrs[0], loopPort)
	var b *userspace.Backend
	err := l.pod.Do(func() (err error) { // the pod plays the other node
		o := userspace.Options{MaxConnections: 300, MaxUDPFlows: 300}
		for _, proto := range []state.Protocol{state.TCP, state.UDP} {
			o.Listen = append(o.Listen, userspace.Listen{Protocol: proto, Frontend: netip.MustParseAddrPort(frontend), At: other})
		}
		b, err = userspace.New(nil, o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	back := service(nil, state.Endpoint{Addr: netip.AddrPortFrom(l.Node().Addrs[0], loopPort)})
	if _, err := b.Apply(t.Context(), &state.Update{Full: true, Node: &state.Node{}, Changed: []*state.Service{back}}); err != nil {
		t.Fatal(err)
	}
	l.applyAll(loop(state.Endpoint{Addr: other, Local: true}), service(nil, l.at(answers)))
	if most := l.attack(); most > 70 { // each passes on half of 64
		t.Errorf("the relay carries %d connections and flows of one client", most)
	}
	l.mustAnswer(state.TCP)
	l.mustAnswer(state.UDP)
	for _, relay := range []interface{ Problems() []error }{l.pair, b} {
		for _, problem := range relay.Problems() {
			if strings.Contains(problem.Error(), "hop limit") {
				return
			}
		}
	}
	t.Error("neither relay reports the loop")
}

// A client that sends with hop limit 1 is named itself, and not only the Service that it connects to.
func TestProblemNamesClient(t *testing.T) {
	t.Parallel()
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	flow, err := l.visitor.Dial(t.Context(), state.UDP, netip.MustParseAddrPort(frontend), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	if err := ipv4.NewConn(flow).SetTTL(1); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(flow, "hello\n"); err != nil {
		t.Fatal(err)
	}
	var problems []error
	await.Until(t, "the loop is reported", func() bool { problems = l.pair.Problems(); return len(problems) > 0 })
	if err := errors.Join(problems...); err == nil || !strings.Contains(err.Error(), "client "+l.visitor.Addrs[0].String()) {
		t.Errorf("reported: %v", err)
	}
}
