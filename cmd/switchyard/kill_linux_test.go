package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/await"
)

// kills is how often each side is killed: 24 times, or as often as the environment variable SWITCHYARD_KILLS says.
func kills(t *testing.T) int {
	text := os.Getenv("SWITCHYARD_KILLS")
	if text == "" {
		return 24
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal("SWITCHYARD_KILLS: ", err)
	}
	return n
}

const (
	stableIP  = "10.96.0.10" // of the service web, whose endpoints stay
	stableTCP = stableIP + ":80"
	stableUDP = stableIP + ":53"
)

// traffic goes through the service web all the time. A packet that is lost, or goes elsewhere, is a fault: either the connection
// fails, or TCP has had to send something again, which the kernel counts.
type traffic struct {
	mu     sync.Mutex
	made   map[string]int           // exchanges that succeeded, by kind
	gaps   map[string]time.Duration // the longest time from one to the next
	faults []string
}

// startTraffic makes the endpoint of web, and connections to it until the test ends or stop is called. It begins when the
// service is routed.
func startTraffic(t *testing.T) (tr *traffic, stop func()) {
	tr = &traffic{made: map[string]int{}, gaps: map[string]time.Duration{}}
	tr.serve(t)
	await.Until(t, "the service is routed", func() bool { return connects(stableTCP) })
	ctx, cancel := context.WithCancel(t.Context())
	var flows sync.WaitGroup
	keep := func(kind string, exchange func() error) {
		flows.Go(func() {
			last := time.Now()
			for ctx.Err() == nil {
				if err := exchange(); err != nil {
					tr.fault("%s: %v", kind, err)
				}
				tr.note(kind, time.Since(last))
				last = time.Now()
				time.Sleep(4 * time.Millisecond)
			}
		})
	}
	for range 2 {
		keep("short TCP", func() error { return once("tcp", stableTCP) })
	}
	keep("short UDP", func() error { return once("udp", stableUDP) })
	var open []net.Conn
	for kind, addr := range map[string]string{"tcp": stableTCP, "udp": stableUDP} {
		conn, err := net.Dial(kind, addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
		keep("long-lived "+kind, func() error { return talk(conn) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		flows.Wait()
		for _, conn := range open {
			conn.Close()
		}
		tr.mu.Lock()
		defer tr.mu.Unlock()
		for kind, n := range tr.made {
			t.Logf("%s: %d exchanges, longest gap %v", kind, n, tr.gaps[kind].Round(time.Millisecond))
		}
		if len(tr.faults) > 0 {
			t.Errorf("%d faults, first: %.2000q", len(tr.faults), tr.faults[:min(len(tr.faults), 5)])
		}
		if len(tr.made) != 4 || tr.made["short TCP"] < 10 {
			t.Errorf("too little traffic to judge: %v", tr.made)
		}
	})
	t.Cleanup(stop)
	return tr, stop
}

func (tr *traffic) note(kind string, gap time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.made[kind]++
	tr.gaps[kind] = max(tr.gaps[kind], gap)
}

func (tr *traffic) fault(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.faults = append(tr.faults, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// serve echoes what arrives at the endpoint of web.
func (tr *traffic) serve(t *testing.T) {
	l, err := net.Listen("tcp", endpointAddr+":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
				if n, err := resent(conn); err == nil && n > 0 {
					tr.fault("the endpoint had to send %d segments again", n)
				}
			}()
		}
	}()
	u, err := net.ListenPacket("udp", endpointAddr+":8053")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := u.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(buffer[:n], from)
		}
	}()
}

// once makes a connection, and one exchange over it.
func once(network, addr string) error {
	conn, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // no TIME_WAIT: there are many connections
	}
	return talk(conn)
}

// talk sends a line and wants it back.
func talk(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	line := fmt.Appendf(nil, "%016x", rand.Uint64())
	if _, err := conn.Write(line); err != nil {
		return err
	}
	answer := make([]byte, len(line))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if string(answer) != string(line) {
		return fmt.Errorf("got %q back for %q", answer, line)
	}
	if n, err := resent(conn); err != nil || n > 0 {
		return fmt.Errorf("%d segments had to be sent again, %w", n, err)
	}
	return nil
}

// resent is how many segments of a TCP connection were sent again.
func resent(conn net.Conn) (n uint32, err error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	var infoErr error
	err = raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); infoErr == nil {
			n = info.Total_retrans
		}
	})
	return n, errors.Join(err, infoErr)
}

// churn changes other services all the time, until the test ends or stop is called: their endpoints, and whether they exist.
func (s *site) churn() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			i := rand.IntN(20)
			var endpoints []string
			for e := range rand.IntN(5) {
				endpoints = append(endpoints, fmt.Sprintf("10.1.%d.%d", 1+e, 1+rand.IntN(200)))
			}
			text := "# there is nothing in here\n"
			if rand.IntN(4) > 0 {
				text = rendered(fmt.Sprintf("other-%d", i), fmt.Sprintf("10.96.1.%d", 1+i), "", endpoints...)
			}
			s.write(fmt.Sprintf("other-%d.yaml", i), text)
			time.Sleep(20 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	s.Cleanup(stop)
	return stop
}

// TestKills kills server and dataplane, each by itself and at any moment, while other services change and connections go through
// one that does not: no packet is lost. In the end the two show what they should.
func TestKills(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s := newSite(t)
	s.write("web.yaml", rendered("web", stableIP, "", endpointAddr))
	server, dataplane := s.serve(), s.apply()
	_, stopTraffic := startTraffic(t)
	stopChurn := s.churn()

	var killers sync.WaitGroup
	side := func(last *process, start func() *process, ready string) {
		killers.Go(func() {
			reached := 0
			for round := range kills(t) {
				// Every other time it is left to get to its work first.
				if round%2 == 0 {
					within(last.says(ready))
				}
				time.Sleep(rand.N(500 * time.Millisecond))
				if last.says(ready)() {
					reached++
				}
				last.Kill()
				if round%3 == 0 {
					time.Sleep(rand.N(300 * time.Millisecond))
				}
				last = start()
			}
			t.Logf("killed %d times, %d of them after %q", kills(t), reached, ready)
			if reached == 0 {
				t.Errorf("it never came to %q before it was killed", ready)
			}
		})
	}
	side(server, func() *process { return s.serve() }, serving)
	side(dataplane, func() *process { return s.apply() }, routing)
	killers.Wait()

	stopChurn()
	const lastIP = "10.96.0.99"
	s.write("last.yaml", rendered("last", lastIP, "", endpointAddr))
	await.Until(t, "the last change is shown", func() bool { return once("tcp", lastIP+":80") == nil })
	stopTraffic()
}
