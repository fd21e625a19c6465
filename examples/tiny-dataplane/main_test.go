//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/test/apitest"
	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestMain is the program itself if a test has started it so.
func TestMain(m *testing.M) {
	if os.Getenv("TINY_DATAPLANE") != "" {
		main()
		return
	}
	os.Exit(netnstest.Main(m))
}

func TestIsTiny(t *testing.T) {
	text, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n >= 200 {
		t.Errorf("main.go has %d lines; it promises to have under 200", n)
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) != 2 {
		t.Errorf("the program is in more than main.go, where lines are counted: %v %v", files, err)
	}
}

// node is a node on which the program runs. Its endpoints are addresses of its own, on which servers say who they are.
type node struct {
	*testing.T
	ns        *netns.NS
	manifests string
	statuses  chan server.Status
}

const (
	one  = "10.244.1.5"
	two  = "10.244.1.6"
	six  = "fd00:10:244:1::5"
	port = "8080" // of all endpoints
)

func start(t *testing.T, manifest string) *node {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("this dataplane needs the program ip: apt-get install iproute2")
	}
	ns := netnstest.New(t)
	n := &node{t, ns, filepath.Join(t.TempDir(), "shop.yaml"), make(chan server.Status, 1000)}
	n.run("ip link set lo up")
	for _, address := range []string{one, two, six} {
		n.run("ip address add " + address + " dev lo nodad")
		n.serve(net.JoinHostPort(address, port), address)
	}
	target := apitest.Serve(t, apitest.Write(t, n.manifests, ranges+manifest), func(_ server.Client, s server.Status) { n.statuses <- s })
	cmd := exec.Command(os.Args[0], "-api", target)
	cmd.Env = append(os.Environ(), "TINY_DATAPLANE=1")
	cmd.Stderr = t.Output()
	n.inside(cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return n
}

func (n *node) inside(fn func() error) {
	n.Helper()
	if err := n.ns.Do(fn); err != nil {
		n.Fatal(err)
	}
}

func (n *node) run(command string) {
	n.Helper()
	n.inside(func() error {
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	})
}

// serve answers "NAME WHAT": over UDP to each message, over TCP the name at once and what was said when the client has said all.
func (n *node) serve(address, name string) {
	n.Helper()
	n.inside(func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		n.Cleanup(func() { l.Close() })
		p, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		n.Cleanup(func() { p.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				go func() {
					defer c.Close()
					fmt.Fprint(c, name, " ")
					said, _ := io.ReadAll(c)
					_, _ = c.Write(said)
				}()
			}
		}()
		go func() {
			packet := make([]byte, 65535)
			for n, from, err := p.ReadFrom(packet); err == nil; n, from, err = p.ReadFrom(packet) {
				_, _ = p.WriteTo(fmt.Append(nil, name, " ", string(packet[:n])), from)
			}
		}()
		return nil
	})
}

// shown waits until the program shows the revision, and returns what it says is wrong with the service shop/web.
func (n *node) shown(revision int) string {
	n.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case s := <-n.statuses:
			if int(s.Applied) >= revision {
				for name, why := range s.Failed {
					if name.String() == "shop/web" {
						return why
					}
				}
				return ""
			}
		case <-timeout:
			n.Fatalf("revision %d is not shown after 20 s", revision)
		}
	}
}

func (n *node) dial(network, address string) (c net.Conn) {
	n.Helper()
	n.inside(func() (err error) {
		if c, err = net.DialTimeout(network, address, 10*time.Second); err == nil {
			n.Cleanup(func() { c.Close() })
			err = c.SetDeadline(time.Now().Add(time.Minute))
		}
		return err
	})
	return c
}

// ask says "hello" and returns the name in the answer.
func (n *node) ask(c net.Conn) string {
	n.Helper()
	_, err := io.WriteString(c, "hello")
	answer := make([]byte, 100)
	size := 0
	if t, ok := c.(*net.TCPConn); ok && err == nil {
		if err = t.CloseWrite(); err == nil {
			answer, err = io.ReadAll(c)
			size = len(answer)
		}
	} else if err == nil {
		size, err = c.Read(answer)
	}
	name, said, _ := strings.Cut(string(answer[:size]), " ")
	if err != nil || said != "hello" {
		n.Fatalf("%s %s answers %q, %v", c.RemoteAddr().Network(), c.RemoteAddr(), answer[:size], err)
	}
	return name
}

// wantRefused checks that connections are refused, over TCP and UDP.
func (n *node) wantRefused(address string) {
	n.Helper()
	err := n.ns.Do(func() error {
		c, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		n.Errorf("tcp %s: %v, want connection refused", address, err)
	}
	c := n.dial("udp", address)
	_, _ = c.Write([]byte("hello"))
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
		n.Errorf("udp %s: %v, want connection refused", address, err)
	}
}

const ranges = `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16, "fd00:10:96::/112"]}
`

// web is a service with endpoints.
func web(endpoints ...string) string {
	return `
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ports: [{name: http, port: 80}, {name: dns, protocol: UDP, port: 80}]
` + slice("4", "IPv4", endpoints...) + slice("6", "IPv6", six)
}

func slice(name, family string, endpoints ...string) string {
	return fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%s, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{name: http, protocol: TCP, port: %s}, {name: dns, protocol: UDP, port: %[3]s}]
endpoints: [{addresses: ["%s"]}]
`, name, family, port, strings.Join(endpoints, `"]}, {addresses: ["`))
}

func (n *node) write(manifest string) {
	n.Helper()
	apitest.Write(n, n.manifests, ranges+manifest)
}

func TestCopies(t *testing.T) {
	n := start(t, web(one, two))
	if failed := n.shown(1); failed != "" {
		t.Fatal(failed)
	}
	for _, network := range []string{"tcp", "udp"} {
		met := make(map[string]int)
		for range 40 { // that all meet the same one is as likely as 39 times heads
			met[n.ask(n.dial(network, "10.96.0.10:80"))]++
		}
		if met[one] == 0 || met[two] == 0 || met[one]+met[two] != 40 {
			t.Errorf("%s: clients met %v, want both endpoints", network, met)
		}
		if met := n.ask(n.dial(network, "[fd00:10:96::10]:80")); met != six {
			t.Errorf("%s, IPv6: met %s", network, met)
		}
	}
	n.wantRefused("10.96.0.10:81") // another port
	n.wantRefused("10.96.0.11:80") // nobody's address
}

// TestFollows changes the endpoint under an open TCP connection and a UDP session, and then removes the service.
func TestFollows(t *testing.T) {
	n := start(t, web(one))
	n.shown(1)
	open, session := n.dial("tcp", "10.96.0.10:80"), n.dial("udp", "10.96.0.10:80")
	for range 2 {
		if met := n.ask(session); met != one {
			t.Fatalf("a new session met %s, want %s", met, one)
		}
	}
	greeting := make([]byte, len(one+" "))
	if _, err := io.ReadFull(open, greeting); err != nil || string(greeting) != one+" " {
		t.Fatalf("a new connection met %q, %v, want %s", greeting, err, one)
	}

	n.write(web(two))
	n.shown(2)
	for _, network := range []string{"tcp", "udp"} {
		if met := n.ask(n.dial(network, "10.96.0.10:80")); met != two {
			t.Errorf("%s: after the change, a client met %s, want %s", network, met, two)
		}
	}
	if met := n.ask(session); met != two {
		t.Errorf("a UDP session from before the change leads to %s, want %s", met, two)
	}

	n.write("")
	n.shown(3)
	n.wantRefused("10.96.0.10:80")
	n.wantRefused("[fd00:10:96::10]:80")
	_, err := io.WriteString(open, "still here")
	err = errors.Join(err, open.(*net.TCPConn).CloseWrite())
	if said, e := io.ReadAll(open); err != nil || e != nil || string(said) != "still here" {
		t.Errorf("a TCP connection from before the changes: %v, %v, answered %q", err, e, said)
	}
}

// TestReports takes a port away from the program, and gives it back.
func TestReports(t *testing.T) {
	n := start(t, "")
	n.shown(1)
	var other net.Listener
	n.inside(func() (err error) {
		other, err = net.Listen("tcp4", "0.0.0.0:80")
		return err
	})
	n.write(web(one))
	if why := n.shown(2); !strings.Contains(why, "10.96.0.10:80: bind: address already in use") {
		t.Errorf("the service that cannot be served is reported as %q", why)
	}
	if met := n.ask(n.dial("udp", "10.96.0.10:80")); met != one {
		t.Errorf("the rest of the service leads to %s, want %s", met, one)
	}
	other.Close()
	for n.shown(2) != "" { // it tries again by itself
	}
	if met := n.ask(n.dial("tcp", "10.96.0.10:80")); met != one {
		t.Errorf("the service leads to %s, want %s", met, one)
	}
}
