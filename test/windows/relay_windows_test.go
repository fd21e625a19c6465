package windows

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// relayedService has frontends at addresses that each machine has: a cluster IP among the loopback ones, and a node port.
const relayedService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: 127.96.0.1
  ports: [{port: PORT, nodePort: NODEPORT, protocol: PROTOCOL}]
`

// relayedSlice has one endpoint: each has a port of its own.
const relayedSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-NUMBER, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: PORT, protocol: PROTOCOL}]
endpoints:
- {addresses: [ADDRESS], conditions: {ready: true}}
`

// TestRelayTCP has the program relay TCP connections in mode userspace.
func TestRelayTCP(t *testing.T) { testRelay(t, "tcp") }

// TestRelayUDP has it relay datagrams. Wine lacks a setting that Go gives each socket of UDP: there, this runs if it and the program are built with the
// overlay of scripts/wine.sh.
func TestRelayUDP(t *testing.T) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	isWine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
	if isWine && errors.Is(err, windows.WSAEOPNOTSUPP) {
		t.Skipf("wine has no SIO_UDP_NETRESET; make test-windows builds with an overlay that does without: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	testRelay(t, "udp")
}

// testRelay: the cluster IP and the node port of a Service lead to each of its endpoints. One that leaves gets nothing new, and keeps its TCP connections.
func testRelay(t *testing.T, network string) {
	dir, machine := t.TempDir(), machineAddress(t)
	clusterIP, nodePort := freeAddress(t, "127.96.0.1"), freeAddress(t, "127.0.0.1")
	healthz, metrics := freeAddress(t, "127.0.0.2"), freeAddress(t, "127.0.0.3")
	a, b, c := answer(t, network, machine, "a"), answer(t, network, machine, "b"), answer(t, network, machine, "c")
	lead := func(endpoints ...netip.AddrPort) {
		t.Helper()
		protocol := strings.ToUpper(network)
		manifests := []string{strings.NewReplacer("NODEPORT", port(nodePort), "PORT", port(clusterIP), "PROTOCOL", protocol).Replace(relayedService)}
		for i, e := range endpoints {
			r := strings.NewReplacer("NUMBER", fmt.Sprint(i), "PORT", fmt.Sprint(e.Port()), "PROTOCOL", protocol, "ADDRESS", e.Addr().String())
			manifests = append(manifests, r.Replace(relayedSlice))
		}
		write(t, filepath.Join(dir, "web.yaml"), strings.Join(manifests, ""))
	}
	lead(a, b)
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, config, "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: userspace\n")
	lines := start(t, *program, "run", "--source", dir, "--node", "node-a", "--config", config, "--nodeport-addresses", "127.0.0.0/8",
		"--healthz-bind-address", healthz, "--metrics-bind-address", metrics)
	for ready := false; !ready; {
		line, ok := <-lines
		if !ok {
			t.Fatal("the program has ended")
		}
		ready = strings.HasSuffix(line, "routes 1 service")
	}

	for _, frontend := range []string{clusterIP, nodePort} {
		for _, name := range []string{"a", "b"} {
			awaitAnswer(t, network, frontend, name).Close()
		}
	}
	if status, body := get(t, "http://"+healthz+"/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d, %s", status, body)
	}
	if status, body := get(t, "http://"+metrics+"/metrics"); status != http.StatusOK || !strings.Contains(body, "kubeproxy_sync_proxy_rules") {
		t.Errorf("/metrics: %d, %s", status, body)
	}

	open := awaitAnswer(t, network, clusterIP, "b")
	defer open.Close()
	lead(a, c)
	awaitAnswer(t, network, clusterIP, "c").Close() // from here on, b has left
	for _, frontend := range []string{clusterIP, nodePort} {
		for range 50 {
			name, conn, err := ask(t, network, frontend)
			if err != nil {
				t.Fatalf("%s: %v", frontend, err)
			}
			conn.Close()
			if name == "b" {
				t.Fatalf("%s leads to an endpoint that has left", frontend)
			}
		}
	}
	if network == "udp" {
		return
	}
	fmt.Fprintln(open, "still there")
	if echo, err := bufio.NewReader(open).ReadString('\n'); echo != "still there\n" {
		t.Errorf("a connection whose endpoint has left: %q, %v", echo, err)
	}
}

// machineAddress returns an address of this machine that endpoints may have: EndpointSlices have no loopback ones. It asks for IPv4 only: for the
// prefixes of IPv6, which net.InterfaceAddrs asks for, wine fails.
func machineAddress(t *testing.T) string {
	t.Helper()
	buffer := make([]byte, 1<<20)
	first, size := (*windows.IpAdapterAddresses)(unsafe.Pointer(&buffer[0])), uint32(len(buffer))
	if err := windows.GetAdaptersAddresses(windows.AF_INET, 0, 0, first, &size); err != nil {
		t.Fatalf("GetAdaptersAddresses: %v", err)
	}
	for adapter := first; adapter != nil; adapter = adapter.Next {
		for unicast := adapter.FirstUnicastAddress; unicast != nil; unicast = unicast.Next {
			if ip := unicast.Address.IP(); ip.IsGlobalUnicast() {
				return ip.String()
			}
		}
	}
	t.Skip("this machine has no address that an EndpointSlice may have: loopback and link-local ones are refused")
	return ""
}

func port(addr string) string { return fmt.Sprint(netip.MustParseAddrPort(addr).Port()) }

// answer starts an endpoint. It answers each connection, or datagram, with its name on a line, and echoes what comes after it over TCP.
func answer(t *testing.T, network, host, name string) netip.AddrPort {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp4", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 1500)
			for {
				_, from, err := c.ReadFrom(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					_, _ = c.WriteTo([]byte(name+"\n"), from)
				}
			}
		}()
		return c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	l, err := net.Listen("tcp4", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, name)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// resendAfter is after how long a datagram is sent again that was not answered: with an endpoint that leaves goes what is under way to it.
const resendAfter = time.Second

// ask connects to a frontend and returns the name of the endpoint that answers.
func ask(t *testing.T, network, frontend string) (name string, conn net.Conn, err error) {
	t.Helper()
	conn, err = net.DialTimeout(network, frontend, timeout)
	if err != nil {
		return "", nil, err
	}
	b := make([]byte, 10)
	var n int
	for end := time.Now().Add(timeout); ; {
		if network == "udp" {
			fmt.Fprintln(conn, "who")
			_ = conn.SetDeadline(time.Now().Add(resendAfter))
		} else {
			_ = conn.SetDeadline(end)
		}
		if n, err = conn.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			break
		}
	}
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if err != nil {
		conn.Close()
		return "", nil, err
	}
	return strings.TrimSpace(string(b[:n])), conn, nil
}

// awaitAnswer connects to a frontend until an endpoint answers, and returns that connection.
func awaitAnswer(t *testing.T, network, frontend, endpoint string) net.Conn {
	t.Helper()
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		name, conn, err := ask(t, network, frontend)
		if err != nil {
			t.Fatalf("%s: %v", frontend, err)
		}
		if name == endpoint {
			return conn
		}
		conn.Close()
	}
	t.Fatalf("%s does not lead to endpoint %s", frontend, endpoint)
	return nil
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: timeout}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return r.StatusCode, string(b)
}
