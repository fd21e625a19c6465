package node_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/node"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

const (
	clusterIP = "10.96.0.10"
	endpoint  = "10.244.0.1"
	// idleTimeout is for how long the relay keeps a flow of UDP. It is longer than a busy machine takes from one question to the next,
	// because a flow that ends in between has another source afterwards.
	idleTimeout = 10 * time.Second
	// patience is for what must come about. Only a fault takes so long.
	patience = 2 * time.Minute
)

// loneNode is a network namespace with a client and an echo server as the only endpoint of a Service.
type loneNode struct {
	t    *testing.T
	ns   *netns.NS
	feed *backendtest.Feed
	c    *config.Config
	node *node.Node
	stop func()
	log  *await.Log
	// held is set while there is no state.
	held atomic.Bool
}

// Next implements [state.Feed].
func (l *loneNode) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	for l.held.Load() {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return l.feed.Next(ctx, after)
}

func (l *loneNode) latest() (state.Revision, int) {
	if l.held.Load() {
		return 0, 0
	}
	return l.feed.Revision(), 1
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newLoneNode(t *testing.T, mode config.Mode) *loneNode {
	ns := netnstest.New(t)
	l := &loneNode{t: t, ns: ns, feed: &backendtest.Feed{}, log: &await.Log{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.log)
		}
	})
	check(t, ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, _ := netlink.ParseAddr(endpoint + "/32")
		_, services, _ := net.ParseCIDR("10.96.0.0/16")
		if err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, addr),
			netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: services})); err != nil {
			return err
		}
		server, err := net.Listen("tcp", endpoint+":8080")
		if err != nil {
			return err
		}
		t.Cleanup(func() { server.Close() })
		go echo(server)
		datagrams, err := net.ListenPacket("udp", endpoint+":8080")
		if err != nil {
			return err
		}
		t.Cleanup(func() { datagrams.Close() })
		go name(datagrams)
		return nil
	}))
	to := []state.Endpoint{{Addr: netip.MustParseAddrPort(endpoint + ":8080"), Local: true}}
	route := state.Route{Verdict: state.Forward, Endpoints: to}
	service := &state.Service{Name: state.ServiceName{Namespace: "shop", Name: "web"}}
	for _, protocol := range []state.Protocol{state.TCP, state.UDP} {
		service.Ports = append(service.Ports, state.Port{
			Name: protocol.String(), Family: state.IPv4, Protocol: protocol,
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr(clusterIP), Port: 80}},
			Internal:  state.Traffic{Inside: route, Outside: route}, External: state.Traffic{Inside: route, Outside: route},
		})
	}
	l.feed.Publish([]*state.Service{service})
	l.c = config.Default()
	l.c.HealthzBindAddress, l.c.MetricsBindAddress = netip.AddrPort{}, netip.AddrPort{}
	l.c.Mode = mode
	l.c.Userspace.UDPIdleTimeout.Duration = idleTimeout
	l.start()
	return l
}

// name answers each datagram with the address that it has come from.
func name(server net.PacketConn) {
	b := make([]byte, 100)
	for {
		_, from, err := server.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = server.WriteTo([]byte(from.String()), from)
	}
}

func echo(server net.Listener) {
	for {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for lines := bufio.NewReader(conn); ; {
				line, err := lines.ReadString('\n')
				if err != nil {
					return
				}
				fmt.Fprint(conn, line)
			}
		}()
	}
}

// start runs a process.
func (l *loneNode) start() {
	l.t.Helper()
	ready := make(chan int, 1)
	check(l.t, l.ns.Do(func() (err error) {
		l.node, err = node.New(context.Background(), node.Options{
			Config: l.c, OnReady: func(services int) { ready <- services }, TakeOver: patience,
			Logger: slog.New(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			States: &node.States{Feed: l, Latest: l.latest},
		})
		return err
	}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.node.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	})
	l.stop = stop
	l.t.Cleanup(stop)
	await.Receive(l.t, "a state is programmed", ready)
}

// switchTo changes the mode.
func (l *loneNode) switchTo(mode config.Mode) error {
	c := *l.c
	c.Mode = mode
	err := l.node.Reconfigure(&c)
	if err == nil {
		l.c = &c
	}
	return err
}

func (l *loneNode) dial() (conn net.Conn, err error) {
	err = l.ns.Do(func() error {
		conn, err = net.DialTimeout("tcp", clusterIP+":80", patience)
		return err
	})
	return conn, err
}

// flow returns a client of UDP.
func (l *loneNode) flow() (conn net.Conn) {
	check(l.t, l.ns.Do(func() (err error) { conn, err = net.Dial("udp", clusterIP+":80"); return err }))
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a datagram, and returns the address that the endpoint has seen.
func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	check(t, conn.SetDeadline(time.Now().Add(patience)))
	fmt.Fprint(conn, "who")
	b := make([]byte, 100)
	n, err := conn.Read(b)
	check(t, err)
	return string(b[:n])
}

// exchange sends a line and waits for it.
func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	fmt.Fprintln(conn, "hello")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "hello\n" {
		return fmt.Errorf("answer %q: %w", line, err)
	}
	return nil
}

// once connects and exchanges a line.
func (l *loneNode) once() error {
	conn, err := l.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := exchange(conn); err != nil {
		return err
	}
	return retransmitted(conn)
}

// retransmitted returns an error if a packet of a connection was lost.
func retransmitted(conn net.Conn) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	if errControl := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); errControl != nil || err != nil {
		return errors.Join(errControl, err)
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("%d packets were sent again", info.Total_retrans)
	}
	return nil
}

// traffic makes connections without pause until it is stopped, and returns how many there were. Each must be answered.
func (l *loneNode) traffic() (stop func() int) {
	var ending atomic.Bool
	var done sync.WaitGroup
	count := 0
	done.Go(func() {
		for !ending.Load() {
			if err := l.once(); err != nil {
				l.t.Errorf("connection %d: %v", count, err)
				return
			}
			count++
		}
	})
	return func() int {
		ending.Store(true)
		done.Wait()
		return count
	}
}

// programmed returns the modes that the kernel holds something of.
func (l *loneNode) programmed() (modes []config.Mode) {
	check(l.t, l.ns.Do(func() error {
		for _, of := range []struct {
			mode config.Mode
			held func() (bool, error)
		}{{config.ModeNFTables, nftables.Programmed}, {config.ModeIPTables, iptables.Programmed}, {config.ModeUserspace, userspace.Programmed}} {
			held, err := of.held()
			if err != nil {
				return err
			}
			if held {
				modes = append(modes, of.mode)
			}
		}
		return nil
	}))
	return modes
}

// wantProgrammed waits until the kernel holds nothing of other modes than these.
func (l *loneNode) wantProgrammed(want ...config.Mode) {
	l.t.Helper()
	await.Until(l.t, fmt.Sprintf("the kernel holds something of %v only", want), func() bool { return fmt.Sprint(l.programmed()) == fmt.Sprint(want) },
		func() any { return l.programmed() })
}

// linuxModes are those that this test can have, each with what the kernel holds then.
func linuxModes(t *testing.T) map[config.Mode][]config.Mode {
	modes := map[config.Mode][]config.Mode{
		config.ModeNFTables:  {config.ModeNFTables},
		config.ModeUserspace: {config.ModeNFTables, config.ModeUserspace},
		config.ModeEBPF:      {config.ModeNFTables}, // the hooks, or nftables alone
	}
	if err := iptables.Available(); err != nil {
		t.Logf("without mode iptables: %v", err)
	} else {
		modes[config.ModeIPTables] = []config.Mode{config.ModeIPTables}
	}
	return modes
}

// TestSwitch: from each mode to each other one, all new connections are answered, and open ones go on. What the previous mode has
// programmed goes once it carries nothing.
func TestSwitch(t *testing.T) {
	modes := linuxModes(t)
	for from := range modes {
		for to, holds := range modes {
			if from == to {
				continue
			}
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				t.Parallel()
				l := newLoneNode(t, from)
				l.wantProgrammed(modes[from]...)
				open, err := l.dial()
				check(t, err)
				defer open.Close()
				check(t, exchange(open))
				flow := l.flow()
				before := ask(t, flow)
				stop := l.traffic()
				check(t, l.switchTo(to))
				check(t, exchange(open))
				for range 3 {
					if after := ask(t, flow); after != before {
						t.Errorf("the flow of UDP comes from %s, and came from %s before", after, before)
					}
					time.Sleep(400 * time.Millisecond) // stale flows are cut within this time
				}
				if n := stop(); n == 0 {
					t.Error("no connections were made meanwhile")
				}
				check(t, l.once())
				check(t, exchange(open))
				open.Close()
				l.wantProgrammed(holds...)
				check(t, l.once())

				// The next process finds nothing to do, and goes on.
				l.stop()
				l.start()
				check(t, l.once())
				l.wantProgrammed(holds...)
			})
		}
	}
}

// TestSwitchBack: a mode that still carries connections takes new ones again.
func TestSwitchBack(t *testing.T) {
	l := newLoneNode(t, config.ModeUserspace)
	open, err := l.dial()
	check(t, err)
	defer open.Close()
	check(t, exchange(open))
	for range 3 {
		stop := l.traffic()
		check(t, l.switchTo(config.ModeNFTables))
		check(t, exchange(open))
		check(t, l.switchTo(config.ModeUserspace))
		check(t, exchange(open))
		stop()
	}
	l.wantProgrammed(config.ModeNFTables, config.ModeUserspace)
}

// TestSwitchToBitOfRelay: the dataplane below a relay may use the relay's bit in marks once it is alone, also if both change at a time. What the relay
// carries goes on, and nothing leads to it once it has ended.
func TestSwitchToBitOfRelay(t *testing.T) {
	l := newLoneNode(t, config.ModeUserspace)
	open, err := l.dial()
	check(t, err)
	defer open.Close()
	check(t, exchange(open))
	for _, service := range l.feed.Services() {
		masqueraded := *service
		masqueraded.Ports = slices.Clone(service.Ports)
		for i := range masqueraded.Ports {
			masqueraded.Ports[i].Internal.Masquerade = state.MasqueradeAlways
		}
		l.feed.Publish([]*state.Service{&masqueraded})
	}
	c := *l.c
	l.c = &c
	l.c.NFTables.MasqueradeBit = 12
	check(t, l.switchTo(config.ModeNFTables))
	check(t, l.once())
	check(t, exchange(open))
	open.Close()
	l.wantProgrammed(config.ModeNFTables)
	check(t, l.once())
	l.c.NFTables.MasqueradeBit = 14
	check(t, l.switchTo(config.ModeUserspace))
	check(t, l.once())
}

// TestSwitchRefused: if a dataplane cannot be opened, the previous one stays in place, and so does the dataplane below it.
func TestSwitchRefused(t *testing.T) {
	modes := linuxModes(t)
	for from, holds := range modes {
		t.Run(string(from), func(t *testing.T) {
			l := newLoneNode(t, from)
			l.wantProgrammed(holds...)
			stop := l.traffic()
			c := *l.c
			c.Mode, c.Userspace.Listen = config.ModeEBPF, nil
			c.EBPF.NamespaceMap = "/there/is/none"
			err := l.node.Reconfigure(&c)
			if from == config.ModeEBPF {
				check(t, err) // namespaceMap takes effect with a restart
			} else if err == nil || !strings.Contains(err.Error(), "namespaceMap") {
				t.Errorf("the error is %v", err)
			}
			check(t, l.once())
			stop()
			l.wantProgrammed(holds...)
			check(t, l.switchTo(config.ModeNFTables))
			check(t, l.once())
			l.wantProgrammed(config.ModeNFTables)
		})
	}
}

// TestRestartInAnotherMode: what an earlier process has left serves until the next one has programmed its own, and goes then.
func TestRestartInAnotherMode(t *testing.T) {
	modes := linuxModes(t)
	for from := range modes {
		for to, holds := range modes {
			if from == to {
				continue
			}
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				t.Parallel()
				l := newLoneNode(t, from)
				var stop func() int
				if from != config.ModeUserspace { // nobody accepts while no process runs
					stop = l.traffic()
				}
				l.stop()
				l.c.Mode = to
				l.start()
				if stop != nil {
					stop()
				}
				check(t, l.once())
				l.wantProgrammed(holds...)
				check(t, l.once())
			})
		}
	}
}

// TestHandoverToAnotherMode: what a relay carries goes on in the next process, whose mode is another one.
func TestHandoverToAnotherMode(t *testing.T) {
	modes := linuxModes(t)
	for to, holds := range modes {
		if to == config.ModeUserspace {
			continue
		}
		t.Run(string(to), func(t *testing.T) {
			t.Parallel()
			l := newLoneNode(t, config.ModeUserspace)
			open, err := l.dial()
			check(t, err)
			defer open.Close()
			check(t, exchange(open))
			flow := l.flow()
			before := ask(t, flow)
			ended := make(chan struct{})
			go func(stop func()) {
				defer close(ended)
				stop()
			}(l.stop)
			l.c.Mode = to
			l.start()
			check(t, exchange(open))
			<-ended
			check(t, l.once())
			check(t, exchange(open))
			if after := ask(t, flow); after != before {
				t.Errorf("the flow of UDP comes from %s, and came from %s before", after, before)
			}
			open.Close()
			l.wantProgrammed(holds...)
			check(t, l.once())
		})
	}
}

// TestSwitchIdleFlow: the kernel keeps a flow of UDP for longer than the relay. Its client goes on when the relay is gone.
func TestSwitchIdleFlow(t *testing.T) {
	for to, holds := range linuxModes(t) {
		if to == config.ModeUserspace {
			continue
		}
		t.Run(string(to), func(t *testing.T) {
			t.Parallel()
			l := newLoneNode(t, config.ModeUserspace)
			flow := l.flow()
			ask(t, flow)
			check(t, l.switchTo(to))
			l.wantProgrammed(holds...)
			ask(t, flow)
		})
	}
}

// TestSwitchSourceWithoutState: between a source and the next one, which has no state yet, the node goes on by what it has programmed.
// It does so even if its mode changes in between.
func TestSwitchSourceWithoutState(t *testing.T) {
	modes := linuxModes(t)
	for from := range modes {
		for to, holds := range modes {
			if from == to {
				continue
			}
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				t.Parallel()
				l := newLoneNode(t, from)
				open, err := l.dial()
				check(t, err)
				defer open.Close()
				check(t, exchange(open))
				flow := l.flow()
				before := ask(t, flow)
				l.held.Store(true)
				check(t, l.switchTo(to))
				check(t, l.once())
				check(t, exchange(open))
				l.held.Store(false)
				for range 3 {
					check(t, l.once())
					time.Sleep(100 * time.Millisecond)
				}
				check(t, exchange(open))
				if after := ask(t, flow); after != before {
					t.Errorf("the flow of UDP comes from %s, and came from %s before", after, before)
				}
				open.Close()
				l.wantProgrammed(holds...)
				check(t, l.once())
			})
		}
	}
}

// TestSwitchLeavesNothing: a process that switches again and again keeps no goroutine and no descriptor of what it has left.
func TestSwitchLeavesNothing(t *testing.T) {
	l := newLoneNode(t, config.ModeNFTables)
	cycle := []config.Mode{config.ModeUserspace, config.ModeEBPF, config.ModeNFTables}
	if iptables.Available() == nil {
		cycle = slices.Insert(cycle, 1, config.ModeIPTables)
	}
	round := func() {
		for _, mode := range cycle {
			check(t, l.switchTo(mode))
			check(t, l.once())
		}
		l.wantProgrammed(config.ModeNFTables)
	}
	count := func() (goroutines, files int) {
		list, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return runtime.NumGoroutine(), len(list)
	}
	round() // what is made once
	goroutines, files := count()
	for range 3 {
		round()
	}
	var g, f int
	await.Until(t, fmt.Sprintf("there are %d goroutines and %d descriptors", goroutines, files), func() bool {
		g, f = count()
		return g <= goroutines && f <= files
	}, func() any { return []int{g, f} })
}
